"""An OpenCL device that is lost: at the driver's every call, texts are those of the cpu."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.backends.opencl_device import opencl
from weft.backends.kernels import assembly
from weft.backends.kernels.compiling import Compiling
from weft.backends.opencl import OpenCLBackend, builds
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model, SamplingParams, Tokenizer
from weft.llm.engine import Delta, Done, Engine, Event, Request

MODEL = Path(__file__).resolve().parents[1] / "data/vectors/models/archs/llama3.gguf"
OPTIONS: dict[str, Any] = {"activations": "f32", "n_threads": 1, "type_k": "f32", "type_v": "f32"}
WANTED: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
PROMPT = [5, 9, 40, 7, 100, 33]
FAULTS = {
    "create": "buffer of .* could not be created",
    "build": r"\.cl line 99",
    "write": "copy of .* to the device",
    "launch": r"split \d on opencl .*: clSomething",
    "wait": "copy of .* from the device",
}
"""Calls of the driver and what the error says of them. Whoever reads waits for all before."""


class _Broken:
    """pyopencl, of which one kind of call fails once it has been made `left` times."""

    def __init__(self, cl: Any, what: str, left: int) -> None:
        self._cl, self._what, self._left = cl, what, left

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._cl, name)
        if name == {"create": "Buffer", "launch": "enqueue_nd_range_kernel"}.get(
            self._what, "enqueue_copy"
        ):
            return lambda *a, **k: self._call(real, *a, **k)
        return real

    def _call(self, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        is_read = "is_blocking" not in named
        if self._what in ("create", "launch") or (self._what == "wait") == is_read:
            self._left -= 1
            if self._left < 0:
                raise self._cl.RuntimeError("clSomething failed: OUT_OF_RESOURCES")
        return real(*arguments, **named)


def lose(device: OpenCLBackend, what: str, after: int, patch: pytest.MonkeyPatch) -> None:
    """The device fails from now on, at calls of one kind."""
    cl = pytest.importorskip("pyopencl")
    if what != "build":
        patch.setattr(device.driver, "_cl", _Broken(cl, what, after))
        return
    real = assembly.source_of
    patch.setattr(builds, "source_of", lambda file: f'{real(file)}\n#line 99 "{file}"\nnonsense;\n')
    patch.setattr(device.driver, "compiling", Compiling(device.name))


@pytest.fixture(scope="module")
def text() -> str:
    return weft.LLM(MODEL, n_ctx=64, **OPTIONS).generate(PROMPT, **WANTED)


@pytest.mark.parametrize(("what", "after"), [
    ("create", 0), ("create", 9), ("build", 0), ("write", 0), ("write", 60),
    ("launch", 0), ("launch", 100), ("launch", 500), ("wait", 0), ("wait", 10),
])  # fmt: skip
def test_a_text_goes_on_without_the_device(
    text: str, what: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the device fails, the text is that of the cpu, and so is the next one."""
    device = opencl(copy_weights=True)
    options = OPTIONS | {"devices": [device, "cpu"], "fallback": ["cpu"]}
    if what == "create":
        lose(device, what, after, monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*{FAULTS[what]}"):
        llm = weft.LLM(MODEL, n_ctx=64, **options)
        if what != "create":
            lose(device, what, after, monkeypatch)
        got = llm.generate(PROMPT, **WANTED)
    assert got == text and [b.name for b in llm.context.plan.backends] == ["cpu"]
    assert llm.generate(PROMPT, **WANTED) == text


def streams(engine: Engine, at: int = 0, fault: Callable[[], None] | None = None) -> list[str]:
    """What three streams over two sequences say; `fault` comes with the `at`th event."""
    results: list[list[Event]] = [[] for _ in range(3)]
    left, seen = threading.Semaphore(0), [0]

    def take(i: int, event: Event) -> None:
        results[i].append(event)
        seen[0] += 1
        if fault is not None and seen[0] == at:
            fault()
        if isinstance(event, Done):
            left.release()

    for i in range(3):
        request = Request(
            tuple(PROMPT[i:]),
            max_tokens=12,
            ignore_eos=True,
            sampling=SamplingParams(temperature=0.7, seed=i),
        )
        engine.submit(request, lambda event, i=i: take(i, event))  # type: ignore[misc]
    for _ in results:
        assert left.acquire(timeout=120)
    assert all(isinstance(e[-1], Done) and e[-1].reason == "length" for e in results)
    return ["".join(e.text for e in events if isinstance(e, Delta)) for events in results]


def engine_on(**options: Any) -> Engine:
    file = open_gguf(MODEL)
    context = Context(Model(file), 96, n_seq_max=2, n_ubatch=16, n_outputs=2, **options)
    return Engine(context, Tokenizer.from_gguf(file))


@pytest.fixture(scope="module")
def told() -> list[str]:
    engine = engine_on(**OPTIONS)
    results = streams(engine)
    engine.close()
    return results


@pytest.mark.parametrize("what", ["create", "build", "write", "launch", "wait"])
def test_streams_go_on_without_the_device(
    told: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream loses a token or says one twice."""
    device = opencl()
    options = OPTIONS | {"devices": [device, "cpu"], "fallback": ["cpu"]}
    at_load = what in ("create", "build")
    if at_load:
        lose(device, what, 0, monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*{FAULTS[what]}"):
        engine = engine_on(**options)
        if at_load:
            got = streams(engine)
        else:
            got = streams(engine, 9, lambda: lose(device, what, 0, monkeypatch))
    assert got == told and streams(engine) == told
    engine.close()


def test_without_a_fallback_the_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    device = opencl()
    llm = weft.LLM(MODEL, n_ctx=64, devices=[device, "cpu"], n_threads=1)
    with monkeypatch.context() as patch:
        lose(device, "launch", 100, patch)
        with pytest.raises(weft.DeviceError, match=r"split \d on opencl"):
            llm.generate(PROMPT, **WANTED)
    assert llm.generate(PROMPT, **WANTED)


def test_a_device_that_cannot_be_opened_or_loaded(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opencl()
    fallback: dict[str, Any] = OPTIONS | {"n_ctx": 64, "fallback": ["cpu"]}
    with pytest.warns(RuntimeWarning, match="going on with cpu: there is no device opencl:77"):
        llm = weft.LLM(MODEL, devices=["opencl:77", "cpu"], n_gpu_layers=2, **fallback)
    assert llm.generate(PROMPT, **WANTED) == text

    def refuse(nbytes: int) -> Any:
        raise weft.OutOfMemoryError(f"no {nbytes} bytes")

    monkeypatch.setattr(device.memory_type, "allocate", refuse)
    with pytest.warns(RuntimeWarning, match=r"going on with cpu: .*no \d+ bytes"):
        llm = weft.LLM(MODEL, devices=[device, "cpu"], **fallback)
    assert llm.generate(PROMPT, **WANTED) == text
    with pytest.raises(weft.DeviceError, match="no device opencl:77"):
        weft.LLM(MODEL, n_ctx=64, devices=["opencl:77", "cpu"])
