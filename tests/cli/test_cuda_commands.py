"""Commands of people who have a CUDA GPU, on this processor, and of people who have none."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Done, weft
from tests.cuda_shim import ShimCalls, compiler
from tests.llm.tiny import write_model
from weft.backends.cases import all_cases
from weft.backends.cuda import devices, library
from weft.errors import DeviceError
from weft.execute import doctor as checks

FEW = ("-n", "3", "--temp", "0", "-t", "1", "-c", "32", "--ignore-eos", "-fa", "off")
shim = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


def done(*args: str | Path) -> Done:
    process = weft(*args)
    assert process.returncode == 0, process.stderr
    return process


# **** with a device ****


@shim
def test_layers_on_a_device(path: Path) -> None:
    want = done("run", path, "abc", *FEW).stdout
    for more in (("-ngl", "1"), ("--fit",), ("-ngl", "0")):
        ran = done("run", path, "abc", *FEW, "--devices", "cuda:shim,cpu", *more)
        assert ran.stdout == want and "note" not in ran.stderr
        assert "placement: cuda:shim: " in ran.stderr
        assert ("CUDA0: weights" in ran.stderr) == (more != ("-ngl", "0"))


@shim
def test_a_plan_is_explained(path: Path) -> None:
    said = done("explain", path, "--devices", "cuda:shim,cpu", "-ngl", "1", "-c", "32").stdout
    assert "weights   CUDA0" in said and "sent to the device at load" in said
    fitted = done("explain", path, "--devices", "cuda:shim,cpu", "--fit", "-c", "32",
                  "--memory", "cuda:shim=100KiB").stdout  # fmt: skip
    assert "CUDA0" in fitted
    refused = weft("run", path, "abc", *FEW, "-dev", "cuda:shim,cpu", "--memory", "cuda:shim=1KiB")
    assert refused.returncode == 1 and "not even a layer fits there" in refused.stderr


@shim
def test_the_bench_names_the_device(path: Path) -> None:
    line = "-p 0 -n 2 -r 1 -t 1 -ngl 1 -fa off -dev cuda:shim/cpu -o json".split()
    (row,) = json.loads(done("bench", path, *line).stdout)
    assert row["backends"] == "CUDA" and row["gpu_info"].startswith("this processor, through")


@shim
def test_doctor_takes_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [case for case in all_cases() if case.op == "SCALE"]
    monkeypatch.setattr(checks, "some_cases", lambda: some)
    checked = done("doctor", "--devices", "cuda:shim")
    assert f"cuda:shim: SCALE: {len(some) - 1} ok" in checked.stderr
    assert "--all checks every format" in checked.stdout
    assert f"cuda:shim: ok, {len(some)} cases of 1 ops against NumPy in" in checked.stdout
    assert "in use" not in checked.stdout
    monkeypatch.setattr(ShimCalls, "launch", lambda self, launching: None)
    wrong = weft("doctor", "--devices", "cuda:shim")
    assert wrong.returncode == 1 and "cuda:shim: FAILED" in wrong.stdout
    assert f"cuda:shim: SCALE: {len(some) - 1} of {len(some) - 1} wrong" in wrong.stderr
    refused = weft("doctor", "--devices", "reference", "--threads", "1")
    assert refused.returncode == 1 and "leave out --devices" in refused.stderr
    refused = weft("doctor", "--limit", "10")
    assert refused.returncode == 1 and "add --devices" in refused.stderr


# **** without ****


class _Driver:
    """cuda-bindings on a machine with no GPU, or with none that CUDA_VISIBLE_DEVICES names."""

    class Error(int):
        name = "CUDA_ERROR_NO_DEVICE"

    def cuInit(self, flags: int) -> tuple[Any]:
        return (self.Error(100),)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "CUDA0"])
def test_without_the_extra(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    devices.find_devices.cache_clear()
    refused = weft("run", path, "abc", *FEW, "--devices", f"{name},cpu")
    assert refused.returncode == 1 and "pip install 'weft[cuda]'" in refused.stderr
    assert "'cuda-bindings'" in refused.stderr


@pytest.mark.parametrize("name", ["cuda", "CUDA0"])
def test_without_a_gpu(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what hides GPUs; with a fallback the text comes from it, after a warning."""
    monkeypatch.setattr(library, "_bindings", lambda module: _Driver())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    devices.find_devices.cache_clear()
    line = ("run", path, "abc", *FEW, "-dev", f"{name},cpu")
    refused = weft(*line)
    why = "(CUDA_ERROR_NO_DEVICE); is there a GPU?; CUDA_VISIBLE_DEVICES=7"
    assert refused.returncode == 1 and why in refused.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # a person sees it, a test would end there
        ran = done(*line, "--fallback", "cpu")
    assert ran.stdout == done("run", path, "abc", *FEW).stdout
    assert f"going on with cpu: the NVIDIA driver does not start {why}" in ran.stderr
    assert "CUDA_ERROR_NO_DEVICE" in done("devices").stdout


def test_a_device_that_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs are numbered as CUDA_VISIBLE_DEVICES leaves them."""
    found = devices.Found(0, "GPU", 90, 1 << 36, 132, 227 << 10, False, False)
    monkeypatch.setattr(devices, "find_devices", lambda: (found,))
    monkeypatch.setattr(devices, "nvrtc", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert devices.pick(None) == devices.pick("0") == found
    with pytest.raises(DeviceError, match=r"has cuda:0 \(GPU\); CUDA_VISIBLE_DEVICES=3"):
        devices.pick("1")
