"""Workers whose kernels this machine does not have, and workers with other devices than a cpu."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.cluster.worker_processes import WorkerProcess
from weft.backends import make_backend
from weft.backends.remote import rules
from weft.llm import Context, Model

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/weft-demo.gguf"
SIZES: dict[str, Any] = {"n_ctx": 96, "n_ubatch": 16, "n_threads": 1}
TOKENS = [5, 9, 40, 7, 100, 41, 12, 60, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(tmp_path_factory.mktemp("cache"), [ROOT / "examples"]) as process:
        yield process


def same(a: Context, b: Context) -> None:
    for part in (TOKENS, [4], [6]):
        rows = [c.decode(part, outputs="all") for c in (a, b)]
        np.testing.assert_array_equal(*(row.view(np.uint32) for row in rows))


def test_kernels_that_are_not_here(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is asked what its kernels take: the plan is the one that is made here, and the
    bits are the same. A second context asks nothing that the first one asked."""
    known = make_backend(worker.cpu)
    monkeypatch.setattr(rules, "_native", SimpleNamespace(targets=lambda: []))
    asked = make_backend(worker.cpu)
    model = Model.open(DEMO)
    here = Context(model, devices=[known, "cpu"], **SIZES)
    far = Context(model, devices=[asked, "cpu"], **SIZES)
    for mine, theirs in zip(here.program.splits, far.program.splits, strict=True):
        assert [s.op for s in mine.steps] == [s.op for s in theirs.steps]
        assert mine.work_bytes == theirs.work_bytes
    same(here, far)
    machine = asked.machine  # type: ignore[attr-defined]
    before = machine.waits
    Context(model, devices=[asked, "cpu"], **SIZES)
    first = machine.waits - before
    Context(model, devices=[known, "cpu"], **SIZES)
    assert first == machine.waits - before - first


@pytest.mark.parametrize("question", [
    [], ["nonsense"], ["refusal"], ["refusal", 9999, [], [], [], 0], ["activation_type", 1 << 40],
    ["refusal", 2, [0, [1] * 4, [4] * 3], [], [], 0], ["scratch_bytes", 2, [0, [], []], [], [], 0],
    ["refusal", 30, [0, [1 << 60] * 4, [4] * 4], [[0, [], []]] * 20, [1.5] * 9, 0],
])  # fmt: skip
def test_questions_that_are_none(worker: WorkerProcess, question: list[Any]) -> None:
    device = make_backend(worker.cpu)
    machine = device.machine  # type: ignore[attr-defined]
    with pytest.raises(weft.DeviceError):
        machine.call(["ask", 0, *question])
    assert machine.call(["ask", 0, "interleaved_types"])[0]


def test_an_opencl_device(tmp_path: Path) -> None:
    """The device of a worker computes what the same device computes here; its cpu can be in the
    same stage."""
    own = opencl()
    model = Model.open(DEMO)
    with WorkerProcess(tmp_path / "cache", [ROOT / "examples"], devices="opencl,cpu") as process:
        far = make_backend(f"remote:{process.address}/opencl")
        here = Context(model, devices=[own, "cpu"], **SIZES)
        there = Context(model, devices=[far, "cpu"], **SIZES)
        same(here, there)
        cpu = make_backend(process.cpu)
        place = {"blk.0.*": cpu.name}
        both = Context(model, devices=[far, cpu, "cpu"], place=place, **SIZES)
        assert {far.name, cpu.name} <= {split.device for split in both.program.splits}
        row, want = both.decode(TOKENS), here.decode(TOKENS, positions=range(22, 42))
        assert row.shape == want.shape and np.isfinite(row).all()


def test_a_device_that_a_worker_has_not(worker: WorkerProcess) -> None:
    with pytest.raises(weft.DeviceError, match="offers cpu, reference"):
        make_backend(f"remote:{worker.address}/opencl:7")
