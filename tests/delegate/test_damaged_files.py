"""Damaged files give errors, never crashes; loading and dropping does not grow memory."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.data.delegate.make import MODELS
from tests.shares import share

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "delegate"


class Cache(nn.Module):
    """Looks up rows, keeps them, and mixes what it has kept."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 64)
        self.mix = nn.Linear(64, 64)
        self.register_buffer("kept", torch.zeros(16, 64))

    def forward(self, tokens, positions):
        self.kept.index_copy_(0, positions, self.table(tokens))
        return torch.softmax(self.mix(self.kept), -1)


def models():
    from weft_executorch import Options

    rows = Dim("rows", min=1, max=9)
    stack = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()
    conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).eval()
    return {
        "sizes": (stack, (torch.randn(5, 64),), Options(weights="q8_0"), ({0: rows},)),
        "state": (Cache().eval(), (torch.tensor([3, 9]), torch.tensor([0, 5])), None, None),
        "conv": (conv, (torch.randn(1, 3, 8, 8),), None, None),
    }


faults = pytest.mark.part("faults")


@pytest.mark.parametrize("rounds", share("faults", (20, 80), (20,)))
def test_mutated_files_are_errors_or_run(lower, tmp_path, rounds):
    paths = []
    for name, (module, inputs, options, shapes) in models().items():
        lowered = lower(module, inputs, options, dynamic_shapes=shapes)
        assert lowered.left() == []
        paths.append(tmp_path / f"{name}.pte")
        paths[-1].write_bytes(lowered.pte)
        torch.save(list(inputs), paths[-1].with_suffix(".inputs"))
    run = subprocess.run(
        [sys.executable, str(HERE / "fuzz.py"), "1", str(rounds), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, f"{run.returncode}: {run.stderr[-2000:]}"
    lines = [line for line in run.stdout.splitlines() if ".pte " in line]
    assert len(lines) == len(paths)
    for line in lines:
        counts = ast.literal_eval(line.partition(".pte ")[2])
        assert sum(counts.values()) == rounds and counts["refused"] > rounds // 8


@faults
def test_mutated_containers_do_not_crash_the_delegate(tmp_path):
    """ExecuTorch's own reader may crash; the delegate gets what it lets through."""
    for name in ("types", "state"):
        shutil.copy(DATA / f"{name}.pte", tmp_path)
        method = "prefill" if name == "state" else "forward"
        torch.save(list(MODELS[name][1][method][0]), tmp_path / f"{name}.inputs")
    run = subprocess.run(
        [sys.executable, str(HERE / "fuzz.py"), "--container", "1", "25",
         *(str(tmp_path / f"{name}.pte") for name in ("types", "state"))],
        capture_output=True, text=True, timeout=600,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert run.stdout.count("crashes") == 2


def test_a_blob_that_is_none_is_refused(lower):
    lowered = lower(nn.Linear(8, 8).eval(), (torch.randn(2, 8),))
    at = lowered.pte.index(b"WEFT")
    lowered.pte = lowered.pte[:at] + b"WEFX" + lowered.pte[at + 4 :]
    with pytest.raises(RuntimeError, match="0x:23"):  # InvalidProgram
        lowered.method()


@pytest.mark.parametrize("memory", ["constant", "input"])
def test_steps_that_write_to_constants_or_inputs_are_refused(lower, rewritten, memory):
    """Methods share constants, and inputs are the caller's."""

    def change(program):
        kinds = ["arena", "constant", "state", "input", "output"]
        (index,) = (
            i for i, t in enumerate(program.tensors)
            if kinds[program.buffers[t.buffer].memory] == memory and t.ne[0].value == 8
        )  # fmt: skip
        program.steps[-1].dst = index

    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("more", torch.randn(2, 8))

        def forward(self, x):
            return x.relu() + self.more

    rewritten(change)
    lowered = lower(Added(), (torch.randn(2, 8),))
    with pytest.raises(RuntimeError, match="0x:23"):  # InvalidProgram
        lowered.method()


@pytest.mark.parametrize(
    ("weights", "version", "reads"),
    [("q6_K", 2, True), ("q6_K", 1, False), ("q8_0", 1, True), ("q8_0", 0, False),
     ("q8_0", 3, False)],
)  # fmt: skip
def test_versions_of_the_format(lower, rewritten, same, monkeypatch, weights, version, reads):
    """Version 1 has other panels of some types, which GGUF files bring; those of q8_0 are the
    same."""
    from weft_executorch import Options
    from weft_executorch import weights as stored

    def change(program):
        assert program.version == 2 and any(b.stored for b in program.buffers)
        program.version = version

    rewritten(change)
    monkeypatch.setitem(stored._FALLBACKS, "q8_0", (weights,))
    module = nn.Linear(256, 64).eval()
    lowered = lower(module, (torch.randn(2, 256),), Options(weights="q8_0"))
    if reads:
        same(lowered.method(), module, torch.randn(2, 256), tolerance=0.1)
    else:
        with pytest.raises(RuntimeError, match="0x:23"):  # InvalidProgram
            lowered.method()


@faults
def test_a_thousand_loads_do_not_grow_memory(lower, tmp_path):
    """It runs in its own process, because the memory of a test run comes and goes by itself."""
    from weft_executorch import Options

    inputs = (torch.randn(2, 256),)
    lowered = lower(nn.Linear(256, 256).eval(), inputs, Options(weights="q8_0"))
    path = tmp_path / "linear.pte"
    path.write_bytes(lowered.pte)
    torch.save(list(inputs), path.with_suffix(".inputs"))
    run = subprocess.run(
        [sys.executable, str(HERE / "loads.py"), "1000", str(path)],
        capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) < 2048  # KiB; the weights alone are 68 KiB each time
