"""weft runs models and tensor graphs on whatever devices a machine has, and says why.

    import weft

    llm = weft.LLM("model.gguf")
    for piece in llm.generate("Once upon a time", max_tokens=64):
        print(piece, end="")

Graphs built by hand use the constructors of `weft.graph`, `weft.compile` and `weft.Session`.
"""

from typing import TYPE_CHECKING, Any

from weft import graph
from weft.backends.cpu import ThreadOptions
from weft.compile import compile
from weft.dtype import DType, find_dtype
from weft.errors import (
    AbortedError,
    AllocationError,
    BusyError,
    ChatError,
    ContextError,
    DeviceError,
    FormatError,
    GraphError,
    OutOfMemoryError,
    ProgramError,
    ScheduleError,
    TokenizerError,
    UnsupportedOpError,
    WeftError,
)
from weft.execute import Scheduler, Session
from weft.frontends.gguf import open_gguf
from weft.graph import Graph, Sym, Tensor, constant, input
from weft.llm import LLM
from weft.program import Program
from weft.version import __version__

if TYPE_CHECKING:
    from weft.torch_module import from_torch

__all__ = [
    "LLM",
    "AbortedError",
    "AllocationError",
    "BusyError",
    "ChatError",
    "ContextError",
    "DType",
    "DeviceError",
    "FormatError",
    "Graph",
    "GraphError",
    "OutOfMemoryError",
    "Program",
    "ProgramError",
    "ScheduleError",
    "Scheduler",
    "Session",
    "Sym",
    "Tensor",
    "ThreadOptions",
    "TokenizerError",
    "UnsupportedOpError",
    "WeftError",
    "__version__",
    "compile",
    "constant",
    "find_dtype",
    "from_torch",
    "graph",
    "input",
    "open_gguf",
]


def __getattr__(name: str) -> Any:
    # torch is imported when it is needed, not by `import weft`
    if name == "from_torch":
        try:
            from weft.torch_module import from_torch
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError("weft.from_torch needs PyTorch: pip install weft[torch]") from error
        return from_torch
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
