"""An option that there is not is an error that names it, wherever options are taken."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.test_exports import PACKAGES
from weft import graph as g
from weft.backends import make_backend
from weft.llm import ChatTemplate, CodeSpeaker, Context, Model

MODEL = Path(__file__).parent / "data/vectors/models/archs/llama3.gguf"
HELLO = [{"role": "user", "content": "hello"}]


ROPE = (weft.input("x", (1, 4, 8)), weft.input("positions", (1,), "i32"))


def graph() -> weft.Graph:
    return weft.Graph(g.sqr(weft.input("x", (4,))).as_output("y"))


def llm() -> weft.LLM:
    return weft.LLM(MODEL, n_ctx=64)


def from_torch() -> None:
    torch = pytest.importorskip("torch")
    weft.from_torch(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), n_thread=2)


def async_llm() -> weft.AsyncLLM:
    return weft.AsyncLLM(MODEL, n_ctx=64)


CALLS: dict[str, Callable[[], Any]] = {
    "weft.LLM": lambda: weft.LLM(MODEL, n_thread=2),
    "weft.LLM.generate": lambda: llm().generate("a", n_thread=2),
    "weft.LLM.chat": lambda: llm().chat(HELLO, n_thread=2),
    "weft.AsyncLLM": lambda: weft.AsyncLLM(MODEL, n_thread=2),
    "weft.AsyncLLM.generate": lambda: async_llm().generate("a", n_thread=2),
    "weft.AsyncLLM.chat": lambda: async_llm().chat(HELLO, n_thread=2),
    "weft.Speaker": lambda: weft.Speaker(MODEL, n_thread=2),
    "weft.llm.CodeSpeaker": lambda: CodeSpeaker(MODEL, MODEL, n_thread=2),
    "weft.Transcriber": lambda: weft.Transcriber(MODEL, n_thread=2),
    "weft.Scheduler": lambda: weft.Scheduler(["cpu"], n_thread=2),
    "weft.compiler.compile": lambda: weft.compile(graph(), n_thread=2),
    "weft.from_torch": from_torch,
    "weft.llm.Context": lambda: Context(Model.open(MODEL), 64, n_thread=2),
    "weft.compiler.resolve_devices": lambda: weft.compiler.resolve_devices(["cpu"], n_thread=2),
    "weft.graph.rope": lambda: g.rope(*ROPE, mode="normal", n_dims=8, n_thread=2),
    "weft.graph.rope_back": lambda: g.rope_back(*ROPE, mode="normal", n_dims=8, n_thread=2),
    "weft.backends.make_backend": lambda: make_backend("cpu", n_thread=2),
}
"""By function: what is called with the option `n_thread`, which nobody has."""
ANY = {"weft.llm.ChatTemplate.render": "what templates may name"}
"""Functions whose named arguments are the caller's own."""


def public_functions() -> Iterator[tuple[str, Any]]:
    """Functions, classes and methods, each by its first name."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            inner = vars(value).items() if inspect.isclass(value) else ()
            for path, function in (
                (f"{package}.{name}", value),
                *((f"{package}.{name}.{k}", f) for k, f in inner if not k.startswith("_")),
            ):
                if callable(function) and id(function) not in seen:
                    seen.add(id(function))
                    yield path, function


def takes_any_name(function: Any) -> bool:
    """Whether Python itself lets every named argument through."""
    function = inspect.unwrap(function)
    if inspect.isclass(function):
        function = function.__init__
    if not str(getattr(function, "__module__", "")).startswith("weft."):
        return False  # of Enum and Protocol
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_VARKEYWORDS)


def test_every_function_that_takes_options_is_tried() -> None:
    taking = {path for path, function in public_functions() if takes_any_name(function)}
    assert taking == CALLS.keys() | ANY.keys()
    assert ChatTemplate.render.__doc__


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_option_is_named(name: str) -> None:
    with pytest.raises(weft.ArgumentError, match="has no option 'n_thread'; "):
        CALLS[name]()


@pytest.mark.parametrize("device", ["blas", "opencl", "reference", "null"])
def test_devices_name_unknown_options(device: str) -> None:
    with pytest.raises(
        (weft.ArgumentError, weft.DeviceError), match=r"has no option 'speed'|extra"
    ):
        make_backend(device, speed=3)
