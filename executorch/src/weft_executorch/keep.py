"""The kernels that models need, as the list from which CMake's WEFT_KEEP builds a small weft.

A list is text: a line `op NAME` for each op of a step, `read TYPE` and `write TYPE` for the types
of tensors that steps read and write. `native/cmake/keep.cmake` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.dtype import dtype_from_id
from weft.errors import FormatError
from weft.llm import Model
from weft_executorch.describe import read_blob
from weft_executorch.gguf import delegated_model
from weft_executorch.options import Options
from weft_executorch.prepare import prepare
from weft_executorch.pte import read_pte

__all__ = ["Needs", "keep_list", "needs_of"]


@dataclass(slots=True)
class Needs:
    """The names of ops that steps use, and of the types that they read and write."""

    ops: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def lines(self) -> list[str]:
        """The lines of a list, in order."""
        words = (("op", self.ops), ("read", self.reads), ("write", self.writes))
        return [f"{word} {name}" for word, names in words for name in sorted(names)]

    def add(self, blob: Any) -> None:
        """Adds the steps of a blob."""
        for step in blob.steps:
            self.ops.add(blob.ops[step.op].decode())
            self.writes.add(_type_name(blob.tensors[step.dst].type))
            self.reads |= {_type_name(blob.tensors[s].type) for s in step.src if s >= 0}


def keep_list(models: Sequence[str | Path], **options: Any) -> str:
    """The list of the models: .pte files, and GGUF files as `weft export` would write them.

    `options` are the options of `export_gguf` about the cache and the size of calls. Raises
    FormatError for a file that is neither, or a .pte file of which weft runs nothing, and
    UnsupportedOpError for a model that cannot be exported."""
    needs = Needs()
    for model in models:
        needs_of(model, needs, **options)
    names = ", ".join(_printable(Path(model).name) for model in models)
    return "\n".join([f"# weft keep 1: {names}", *needs.lines(), ""])


def needs_of(model: str | Path, needs: Needs, **options: Any) -> None:
    """Adds what a model needs; raises the errors of `keep_list`."""
    for data in _parts(model) if str(model).endswith(".pte") else [_planned(model, **options)]:
        try:
            needs.add(read_blob(data))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{model}: the delegated data is damaged: {error!r}") from None


def _parts(path: str | Path) -> Iterable[bytes]:
    """The parts of a .pte file that weft runs."""
    _, methods = read_pte(path)
    parts = [d.data for m in methods for d in m.delegates if d.backend == "WeftBackend"]
    if not parts:
        raise FormatError(f"{path}: no part of this program was lowered to weft")
    return parts


def _planned(path: str | Path, **options: Any) -> bytes:
    """The program that `weft export` would put into the file."""
    delegated, fixed = delegated_model(Model.open(path), **options)
    return prepare(delegated, Options(), fixed=fixed).processed


def _type_name(number: int) -> str:
    dtype = dtype_from_id(number)
    if dtype is None:
        raise ValueError(f"no type has the number {number}")
    return dtype.name


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)
