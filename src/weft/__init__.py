"""weft runs models and tensor graphs on whatever devices a machine has, and says why.

    import weft

    llm = weft.LLM("model.gguf")
    print(llm.generate("Once upon a time", max_tokens=64))

`LLM` and `AsyncLLM` run models, `SamplingParams` says how tokens are drawn, `from_torch` converts
a module of PyTorch, `open_gguf` reads a file; `help(weft.LLM)` describes one of them. Modules
that docs/api.md does not list are internal.

Graphs built by hand use the constructors of `weft.graph`, `weft.compile` and `weft.Session`.
Each name is imported when it is first used. `from weft import *` leaves out `compile` and `input`,
which would shadow functions of Python.
"""

from __future__ import annotations

from weft.lazy import imported_when_used

TYPE_CHECKING = False  # as in typing, which is slow to import: Ctrl-C could come in between
if TYPE_CHECKING:
    from typing import Any

    from weft import graph
    from weft.backends.cpu import ThreadOptions
    from weft.compiler import compile as compile
    from weft.dtype import DType, find_dtype
    from weft.errors import (
        AbortedError,
        AllocationError,
        ArgumentError,
        BusyError,
        ChatError,
        ContextError,
        ContextFull,
        DeviceError,
        FormatError,
        GraphError,
        LinkError,
        MissingFileError,
        OutOfMemoryError,
        ProgramError,
        ScheduleError,
        TokenizerError,
        UnsupportedOpError,
        WeftError,
    )
    from weft.execute import Scheduler, Session
    from weft.frontends.gguf import open_gguf
    from weft.graph import Graph, Sym, Tensor, constant, state
    from weft.graph import input as input
    from weft.llm import LLM, AsyncLLM, Completion, SamplingParams, Speaker, Transcriber
    from weft.program import Program
    from weft.torch_module import from_torch
    from weft.version import __version__

_HOMES = {
    "weft.backends.cpu": ("ThreadOptions",),
    "weft.compiler": ("compile",),
    "weft.dtype": ("DType", "find_dtype"),
    "weft.errors": (
        "AbortedError", "AllocationError", "ArgumentError", "BusyError", "ChatError",
        "ContextError", "ContextFull", "DeviceError", "FormatError", "GraphError", "LinkError",
        "MissingFileError", "OutOfMemoryError", "ProgramError", "ScheduleError", "TokenizerError",
        "UnsupportedOpError", "WeftError",
    ),
    "weft.execute": ("Scheduler", "Session"),
    "weft.frontends.gguf": ("open_gguf",),
    "weft.graph": ("Graph", "Sym", "Tensor", "constant", "graph", "input", "state"),
    "weft.llm": ("LLM", "AsyncLLM", "Completion", "SamplingParams", "Speaker", "Transcriber"),
    "weft.program": ("Program",),
    "weft.torch_module": ("from_torch",),
    "weft.version": ("__version__",),
}  # fmt: skip
_get, __dir__ = imported_when_used(__name__, _HOMES)

__all__ = [
    "LLM",
    "AbortedError",
    "AllocationError",
    "ArgumentError",
    "AsyncLLM",
    "BusyError",
    "ChatError",
    "Completion",
    "ContextError",
    "ContextFull",
    "DType",
    "DeviceError",
    "FormatError",
    "Graph",
    "GraphError",
    "LinkError",
    "MissingFileError",
    "OutOfMemoryError",
    "Program",
    "ProgramError",
    "SamplingParams",
    "ScheduleError",
    "Scheduler",
    "Session",
    "Speaker",
    "Sym",
    "Tensor",
    "ThreadOptions",
    "TokenizerError",
    "Transcriber",
    "UnsupportedOpError",
    "WeftError",
    "__version__",
    "constant",
    "find_dtype",
    "from_torch",
    "graph",
    "open_gguf",
    "state",
]


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        if name != "from_torch" or error.name != "torch":
            raise
        return _without_torch


def _without_torch(*_: object, **__: object) -> Any:
    """Stands in for `from_torch` where PyTorch is not installed."""
    from weft.extras import how_to_install

    raise ImportError(f"weft.from_torch needs PyTorch; {how_to_install('torch')}")
