"""The golden vectors: the full set where it is at hand, and the sample of tests/data anywhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.backends.opencl_device import opencl
from tests.conftest import ROOT
from tests.vectors.result import Options
from tests.vectors.run import run
from weft import _native

SAMPLE = ROOT / "tests" / "data" / "vectors"
TARGETS = [name for name, score in _native.targets() if score]
WAYS = [Options("reference"), *(Options("cpu", target) for target in TARGETS)]
WAY_NAMES = ["reference", *TARGETS]


def _check(kind: str, folder: Path, options: Options) -> Counter[str]:
    counts: Counter[str] = Counter()
    failures = []
    for result in run(kind, folder, options):
        counts[result.status] += 1
        if result.status == "failed":
            failures.append(f"{result.name}: {result.message}")
    assert not failures, f"{len(failures)} of {sum(counts.values())}:\n" + "\n".join(failures[:20])
    assert counts["passed"], f"nothing in {folder} was run"
    return counts


@pytest.mark.parametrize("options", WAYS, ids=WAY_NAMES)
def test_sample_ops(options: Options) -> None:
    assert _check("ops", SAMPLE / "ops", options)["skipped"] == 0


@pytest.mark.parametrize("options", WAYS, ids=WAY_NAMES)
def test_sample_models(options: Options) -> None:
    _check("models", SAMPLE / "models" / "archs", options)


@pytest.mark.parametrize("options", WAYS, ids=WAY_NAMES)
def test_ops(vectors: Path, options: Options) -> None:
    _check("ops", vectors / "ops", options)


def _opencl() -> Options:
    opencl()  # skips where there is no device
    return Options("opencl")


def test_sample_on_opencl() -> None:
    _check("ops", SAMPLE / "ops", _opencl())
    _check("models", SAMPLE / "models" / "archs", _opencl())


def test_planes_on_opencl() -> None:
    """Products of weights in the device's own layout; `run.py ops FOLDER --backend opencl --planes`
    tries all there are."""
    _opencl()
    some = Options("opencl", filter="mul_mat/MUL_MAT/q[48]_*", planes=True)
    assert _check("ops", SAMPLE / "ops", some) == {"passed": 4}


def test_ops_on_opencl(vectors: Path) -> None:
    """What it takes; ops that it refuses are skipped, with the reason."""
    counts = _check("ops", vectors / "ops", _opencl())
    assert counts["passed"] > 2 * counts["skipped"]


@pytest.mark.parametrize("folder", ["stories260K", "archs", "quant"])
def test_models_on_opencl(vectors: Path, folder: str) -> None:
    _check("models", vectors / "models" / folder, _opencl())


def test_sched(vectors: Path) -> None:
    _check("sched", vectors / "sched", Options())


@pytest.mark.parametrize("options", WAYS, ids=WAY_NAMES)
@pytest.mark.parametrize("folder", ["stories260K", "archs", "quant"])
def test_models(vectors: Path, folder: str, options: Options) -> None:
    _check("models", vectors / "models" / folder, options)


def test_vocab(vectors: Path) -> None:
    _check("vocab", vectors / "models" / "vocab", Options())
