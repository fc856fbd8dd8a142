"""The golden vectors: the full set where it is at hand, and the sample of tests/data anywhere.

Every test is a unit of its own. `tests.targets` says which kernels are tried with what.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.backends.opencl_device import opencl
from tests.backends.webgpu_device import webgpu
from tests.conftest import ROOT
from tests.cuda_shim import compiler
from tests.targets import BEST, DERIVED, TARGETS, WHOLE, own_ops
from tests.vectors.result import Options
from tests.vectors.run import run

SPREAD = True
SAMPLE = ROOT / "tests" / "data" / "vectors"
OTHERS = [target for target in TARGETS if target != BEST]
FOLDERS = ("stories260K", "archs", "quant")
shim = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")
at_length = pytest.mark.part("targets")
on_devices = pytest.mark.part("devices")


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


# ---- ops -----------------------------------------------------------------------------------------

WAYS = [
    pytest.param(Options("reference"), id="reference"),
    *(pytest.param(Options("cpu", target), id=target) for target in WHOLE),
    *(pytest.param(Options("cpu", target, ops=own_ops(target)), id=target) for target in DERIVED),
    *(
        pytest.param(Options("cpu", target), id=f"{target}-every", marks=at_length)
        for target in DERIVED
    ),
]
"""NumPy, and every target with the ops of which it has kernels."""


@pytest.mark.parametrize("options", WAYS)
def test_sample_ops(options: Options) -> None:
    assert _check("ops", SAMPLE / "ops", options)["skipped"] == 0


@pytest.mark.parametrize("options", WAYS)
def test_ops(vectors: Path, options: Options) -> None:
    _check("ops", vectors / "ops", options)


# ---- models --------------------------------------------------------------------------------------

OF_A_FOLDER = {"stories260K": "*/nll", "archs": "*/main", "quant": "*"}
"""What whole targets beside the best take of a folder: a run of each architecture, and the
products of each type."""
OF_REFERENCE = {"stories260K": ("*/tokens/*", "*/F32/*", "*/nll", "*/kv/*")}
"""What NumPy takes of a folder that is long: the greedy texts are of float32 weights only."""


def _models() -> list[Any]:
    """(folder, options) of what runs of the models."""
    cases = []

    def add(folder: str, who: str, *filters: str, marks: Any = ()) -> None:
        target = None if who == "reference" else who
        backend = "reference" if target is None else "cpu"
        for name in filters:
            case = folder, Options(backend, target, filter=name)
            label = "" if name == "*" else f"-{name.replace('/', ' ').strip('* ')}"
            cases.append(pytest.param(*case, id=f"{folder}-{who}{label}", marks=marks))

    for folder in FOLDERS:
        add(folder, BEST, "*")
        some = OF_REFERENCE.get(folder)
        add(folder, "reference", *(some or ("*",)))
        if some:
            add(folder, "reference", "*", marks=at_length)
        for target in OTHERS:
            if target in WHOLE:
                add(folder, target, OF_A_FOLDER[folder])
            if target in DERIVED and folder == "quant":
                add(folder, target, "*/native")
            if target in DERIVED or OF_A_FOLDER[folder] != "*":
                add(folder, target, "*", marks=at_length)
    return cases


@pytest.mark.parametrize(
    "options", [Options("reference"), *(Options("cpu", target) for target in TARGETS)],
    ids=["reference", *TARGETS],
)  # fmt: skip
def test_sample_models(options: Options) -> None:
    _check("models", SAMPLE / "models" / "archs", options)


@pytest.mark.parametrize(("folder", "options"), _models())
def test_models(vectors: Path, folder: str, options: Options) -> None:
    _check("models", vectors / "models" / folder, options)


def test_vocab(vectors: Path) -> None:
    _check("vocab", vectors / "models" / "vocab", Options())


def test_sched(vectors: Path) -> None:
    _check("sched", vectors / "sched", Options())


# ---- OpenCL --------------------------------------------------------------------------------------


def _opencl() -> Options:
    opencl()  # skips where there is no device
    return Options("opencl")


def test_sample_models_on_opencl() -> None:
    _check("models", SAMPLE / "models" / "archs", _opencl())


@on_devices
def test_sample_ops_on_opencl() -> None:
    _check("ops", SAMPLE / "ops", _opencl())


def test_planes_on_opencl() -> None:
    """Products of weights in the device's own layout; `run.py ops FOLDER --backend opencl --planes`
    tries all there are."""
    _opencl()
    some = Options("opencl", filter="mul_mat/MUL_MAT/q[48]_*", planes=True)
    assert _check("ops", SAMPLE / "ops", some) == {"passed": 4}


@on_devices
def test_ops_on_opencl(vectors: Path) -> None:
    """What it takes; ops that it refuses are skipped, with the reason."""
    counts = _check("ops", vectors / "ops", _opencl())
    assert counts["passed"] > 2 * counts["skipped"]


@on_devices
@pytest.mark.parametrize("folder", FOLDERS)
def test_models_on_opencl(vectors: Path, folder: str) -> None:
    _check("models", vectors / "models" / folder, _opencl())


# ---- WebGPU --------------------------------------------------------------------------------------


def _webgpu(beside: str = "", **options: Any) -> Options:
    webgpu()  # skips where there is no device
    if beside:
        opencl()
    return Options(f"webgpu{beside}", **options)


def test_sample_models_on_webgpu() -> None:
    _check("models", SAMPLE / "models" / "archs", _webgpu())


@on_devices
def test_sample_ops_on_webgpu() -> None:
    _check("ops", SAMPLE / "ops", _webgpu())


@on_devices
def test_ops_on_webgpu(vectors: Path) -> None:
    """What it takes; ops that it refuses are skipped, with the reason."""
    counts = _check("ops", vectors / "ops", _webgpu())
    assert counts["passed"] > 2 * counts["skipped"]


@on_devices
@pytest.mark.parametrize("folder", FOLDERS)
def test_models_on_webgpu(vectors: Path, folder: str) -> None:
    _check("models", vectors / "models" / folder, _webgpu())


PLACED = [
    pytest.param("llama_wide-Q4_K_M", "", 1, marks=on_devices),
    ("llama_wide-Q4_K_M", ",opencl", 2),
    *(pytest.param("*", beside, n, marks=on_devices) for beside in ("", ",opencl") for n in (3, 4)),
]
"""Quantized models, what is beside webgpu and the cpu, and the number that decides where weights
are."""


@pytest.mark.parametrize(("name", "beside", "places"), PLACED)
def test_placed_models_on_webgpu(vectors: Path, name: str, beside: str, places: int) -> None:
    """Weights are on one of two or three devices at random: the logits of dequantized weights."""
    options = _webgpu(beside, filter=f"*/{name}/deq", places=places)
    assert _check("models", vectors / "models" / "quant", options)["skipped"] == 0


# ---- CUDA's kernels on this processor ------------------------------------------------------------

SOME_MODELS = ("archs/gemma2/main", "archs/qwen2moe/main", "quant/llama_wide-Q4_K_M/*",
               "quant/gptoss-MXFP4_MOE/native")  # fmt: skip

EVERYTHING = os.environ.get("WEFT_TEST_CUDA") == "all"
"""WEFT_TEST_CUDA=all runs every case on CUDA's kernels, which takes an hour to compile."""


@shim
@pytest.mark.parametrize("planes", [False, True])
def test_ops_on_cuda(request: pytest.FixtureRequest, planes: bool) -> None:
    """A case of each op and type, unless all are wanted."""
    folder = request.getfixturevalue("vectors") / "ops" if EVERYTHING else SAMPLE / "ops"
    options = Options("cuda:shim", planes=planes, sample=not EVERYTHING)
    assert _check("ops", folder, options)["passed"] > (7 if planes else 120)


@shim
def test_sample_models_on_cuda() -> None:
    _check("models", SAMPLE / "models" / "archs", Options("cuda:shim", filter="*/main", places=0))


ON_CUDA = [
    pytest.param(name, marks=() if name == "archs/qwen2moe/main" else on_devices)
    for name in (("archs/*", "quant/*") if EVERYTHING else SOME_MODELS)
]


@shim
@pytest.mark.parametrize("name", ON_CUDA)
def test_models_on_cuda(vectors: Path, name: str) -> None:
    """Weights are on the device or the cpu at random, always in the same way."""
    folder = vectors / "models" / name.partition("/")[0]
    _check("models", folder, Options("cuda:shim", filter=name, places=1))
