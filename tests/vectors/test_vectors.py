"""The golden vectors: the full set where it is at hand, and the sample of tests/data anywhere."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.backends.opencl_device import opencl
from tests.conftest import ROOT
from tests.vectors.result import Options
from tests.vectors.run import run
from weft import _native
from weft.backends.cuda.shim import compiler

SAMPLE = ROOT / "tests" / "data" / "vectors"
TARGETS = [name for name, score in _native.targets() if score]
WAYS = [Options("reference"), *(Options("cpu", target) for target in TARGETS)]
WAY_NAMES = ["reference", *TARGETS]
WHOLE = os.environ.get("WEFT_TEST_CUDA") == "all"
"""WEFT_TEST_CUDA=all runs every case on CUDA's kernels, which takes an hour to compile."""
shim = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")


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


@shim
@pytest.mark.parametrize("planes", [False, True])
def test_ops_on_cuda(request: pytest.FixtureRequest, planes: bool) -> None:
    """CUDA's kernels on this processor; a case of each op and type, unless all are wanted."""
    folder = request.getfixturevalue("vectors") / "ops" if WHOLE else SAMPLE / "ops"
    options = Options("cuda:shim", planes=planes, sample=not WHOLE)
    assert _check("ops", folder, options)["passed"] > (7 if planes else 120)


@shim
def test_sample_models_on_cuda() -> None:
    _check("models", SAMPLE / "models" / "archs", Options("cuda:shim", filter="*/main", places=0))


SOME_MODELS = ("archs/gemma2/main", "archs/qwen2moe/main", "quant/llama_wide-Q4_K_M/*",
               "quant/gptoss-MXFP4_MOE/native")  # fmt: skip


@shim
@pytest.mark.parametrize("name", ("archs/*", "quant/*") if WHOLE else SOME_MODELS)
def test_models_on_cuda(vectors: Path, name: str) -> None:
    """Weights are on the device or the cpu at random, always in the same way."""
    folder = vectors / "models" / name.partition("/")[0]
    _check("models", folder, Options("cuda:shim", filter=name, places=1))


def test_sched(vectors: Path) -> None:
    _check("sched", vectors / "sched", Options())


@pytest.mark.parametrize("options", WAYS, ids=WAY_NAMES)
@pytest.mark.parametrize("folder", ["stories260K", "archs", "quant"])
def test_models(vectors: Path, folder: str, options: Options) -> None:
    _check("models", vectors / "models" / folder, options)


def test_vocab(vectors: Path) -> None:
    _check("vocab", vectors / "models" / "vocab", Options())
