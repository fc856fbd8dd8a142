"""A CUDA device that is lost or full while a model is on it: texts are those of the cpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.cuda_shim import compiler
from tests.llm.tiny import write_model
from weft.backends import make_backend
from weft.backends.cuda import CudaBackend
from weft.backends.cuda.calls import CudaError

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")

OPTIONS: dict[str, Any] = {"n_ctx": 32, "n_threads": 1, "flash": False}
WANTED: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.fixture(scope="module")
def text(path: Path) -> str:
    return weft.LLM(path, **OPTIONS).generate("abc", **WANTED)


def shim() -> CudaBackend:
    backend = make_backend("cuda:shim")
    assert isinstance(backend, CudaBackend)
    return backend


def lose(device: CudaBackend, what: str, after: int, patch: pytest.MonkeyPatch) -> None:
    """Calls of a kind break the device's context once they have been made so often."""
    real, left = getattr(device.driver.calls, what), [after]

    def call(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise CudaError("CUDA_ERROR_LAUNCH_FAILED", sticky=True)
        return real(*arguments, **named)

    patch.setattr(device.driver.calls, what, call)


@pytest.mark.parametrize(("what", "after"), [("launch", 100), ("send", 30), ("fetch", 9)])
def test_a_text_goes_on_without_the_device(
    path: Path, text: str, what: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token is lost or said twice, and the next text is right, too."""
    device = shim()
    llm = weft.LLM(path, devices=[device, "cpu"], fallback=["cpu"], **OPTIONS)
    lose(device, what, after, monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"going on with cpu: .*CUDA_ERROR_LAUNCH_FAILED"):
        assert llm.generate("abc", **WANTED) == text
    assert device.driver.lost == "CUDA_ERROR_LAUNCH_FAILED"
    assert [b.name for b in llm.context.plan.backends] == ["cpu"]
    assert llm.generate("abc", **WANTED) == text


def test_without_a_fallback_the_device_stays_lost(
    path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = shim()
    llm = weft.LLM(path, devices=[device, "cpu"], **OPTIONS)
    lose(device, "launch", 50, monkeypatch)
    with pytest.raises(weft.DeviceError, match=r"split \d+ on cuda:shim \(node.*LAUNCH_FAILED"):
        llm.generate("abc", **WANTED)
    with pytest.raises(weft.DeviceError, match="the device is lost"):
        llm.generate("abc", **WANTED)
    assert weft.LLM(path, devices=[shim(), "cpu"], **OPTIONS).generate("abc", **WANTED) == text


def test_what_does_not_fit_is_refused_before_the_load(path: Path) -> None:
    """Nothing is allocated, also where another process has the memory."""
    device = shim()
    free = device.driver.calls.free_bytes()
    with pytest.raises(weft.OutOfMemoryError, match=r"2000 bytes .*not even a layer fits there"):
        weft.LLM(path, devices=[device, "cpu"], memory={device.name: 2000}, **OPTIONS).embed("abc")
    assert device.driver.calls.free_bytes() == free
    device.driver.calls.allocate(free - 1000)
    with pytest.raises(weft.OutOfMemoryError, match=r"not enough CUDA0 memory: .* 0 bytes"):
        weft.LLM(path, devices=[device, "cpu"], **OPTIONS).embed("abc")
    assert device.driver.calls.free_bytes() == 1000


def test_memory_that_is_gone_when_it_is_asked_for(
    path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(nbytes: int) -> int:
        raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", no_memory=True)

    device = shim()
    monkeypatch.setattr(device.driver.calls, "allocate", allocate)
    with pytest.warns(RuntimeWarning, match="going on with cpu: .*CUDA_ERROR_OUT_OF_MEMORY"):
        llm = weft.LLM(path, devices=[device, "cpu"], fallback=["cpu"], **OPTIONS)
        assert llm.generate("abc", **WANTED) == text
    assert not device.driver.lost


def test_memory_comes_back(path: Path) -> None:
    device = shim()
    llm = weft.LLM(path, devices=[device, "cpu"], **OPTIONS)
    llm.generate("abc", **WANTED)
    del llm
    left = device.driver.calls.free_bytes()
    for _ in range(3):
        llm = weft.LLM(path, devices=[device, "cpu"], **OPTIONS)
        llm.generate("abc", **WANTED)
        assert device.driver.calls.free_bytes() < left
        del llm
        assert device.driver.calls.free_bytes() == left
