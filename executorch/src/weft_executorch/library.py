"""The native delegate: its place and its loading."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path

from weft.graph.op_table import check_native

__all__ = ["library_path", "load"]

_loaded: list[ctypes.CDLL] = []


def library_path() -> Path:
    """`libweft_executorch.so` of this package; raises ImportError where it is not built."""
    spec = find_spec("weft_executorch")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder) / "libweft_executorch.so"
        if path.exists():
            return path
    raise ImportError(
        "libweft_executorch.so is not built; install weft-executorch (in a checkout: make delegate)"
    )


def load() -> None:
    """Registers the backend "WeftBackend" with the ExecuTorch runtime of this process.

    Call it before `executorch.runtime.Runtime.get()`; a second call does nothing. Raises
    ImportError where the delegate or the runtime is missing, or where the delegate was built for
    another op table than weft has, and OSError where it cannot be loaded."""
    if _loaded:
        return
    runtime = _runtime_path()
    # loaded by its path first, so that the delegate finds it by name wherever either is installed
    ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    delegate = ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_LOCAL)
    check_native(
        _op_table(delegate),
        "libweft_executorch.so",
        package="weft-executorch",
        target="delegate",
    )
    _loaded.append(delegate)


def _op_table(delegate: ctypes.CDLL) -> list[str]:
    """The ops that the library was built with, as `weft.graph.op_table` describes them."""
    try:
        line = delegate.weft_op_line
    except AttributeError:  # older than the function
        return []
    line.argtypes, line.restype = [ctypes.c_int], ctypes.c_char_p
    return [row.decode() for row in takewhile(lambda row: row is not None, map(line, count()))]


def _runtime_path() -> Path:
    spec = find_spec("executorch")
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        path = Path(folder) / "lib" / "libexecutorch.so"
        if path.exists():
            return path
    raise ImportError(
        "the ExecuTorch runtime (libexecutorch.so) is missing: pip install executorch==1.5.1"
    )
