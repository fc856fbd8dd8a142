"""A graph as stable text; `weft.graph.text` describes the format, and reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, fields
from enum import IntEnum
from typing import Any, Protocol

from weft.graph.node import f32
from weft.graph.params import Params
from weft.graph.size import Size, Sym, symbols
from weft.graph.tensor import Tensor, contiguous_nb

HEADER = "weft graph 1"

_SHOWN = 100
"""Lines of a graph that are printed at its beginning and at its end when it is long."""


class _Graph(Protocol):
    @property
    def nodes(self) -> list[Tensor]: ...
    @property
    def leaves(self) -> list[Tensor]: ...
    @property
    def tensors(self) -> Iterable[Tensor]: ...
    @property
    def symbols(self) -> dict[str, Sym]: ...
    def __contains__(self, tensor: Tensor) -> bool: ...


def format_shortly(graph: _Graph) -> str:
    """`format_graph` without the middle of a long text."""
    lines = format_graph(graph).splitlines()
    left_out = len(lines) - 2 * _SHOWN
    if left_out > 1:
        note = f"# {left_out} more lines; weft.graph.text.format_graph(graph) has them all"
        lines = [*lines[:_SHOWN], note, *lines[-_SHOWN:]]
    return "\n".join(lines)


def format_graph(graph: _Graph) -> str:
    """The graph as text that `parse_graph` reads back; ends in a newline."""
    outside = _bases_outside(graph)
    ids = {t: f"%{i}" for i, t in enumerate([*outside, *graph.tensors])}
    syms = {s.name: s for s in graph.symbols.values()}
    for t in outside:
        syms.update({s.name: s for n in (*t.ne, *t.nb) for s in symbols(n)})
    lines = [HEADER]
    lines += [f"sym {s.name} {s.min}..{s.max}" for _, s in sorted(syms.items())]
    lines += [_line(t, "base", ids) for t in outside]
    lines += [_line(t, _leaf_kind(t), ids) for t in graph.leaves]
    lines += [_line(t, _op_text(t, ids), ids) for t in graph.nodes]
    return "\n".join(lines) + "\n"


def _bases_outside(graph: _Graph) -> list[Tensor]:
    bases = (t.view_src for t in graph.tensors if t.view_src is not None)
    return list(dict.fromkeys(base for base in bases if base not in graph))


def _leaf_kind(t: Tensor) -> str:
    if t.is_input:
        return "input"
    if t.buffer is not None and t.buffer.usage == "weights":
        return "constant"
    return "leaf"


def _op_text(t: Tensor, ids: dict[Tensor, str]) -> str:
    sources = ", ".join("-" if s is None else ids[s] for s in t.src)
    return f"{t.op.name}({sources}){_params_text(t.params)}"


def _line(t: Tensor, head: str, ids: dict[Tensor, str]) -> str:
    name = json.dumps(t.name)
    parts = [f"{ids[t]} = {head} {t.dtype.name}{_sizes(t.ne[: max(len(t.shape), 1)])} {name}"]
    if t.nb != contiguous_nb(t.dtype, t.ne):
        parts.append(f"nb={_sizes(t.nb)}")
    if t.view_src is not None:
        parts.append(f"view={ids[t.view_src]}+{t.view_offs}")
    flags = t.flags - {"input"} if head == "input" else t.flags
    if flags:
        parts.append(f"flags={','.join(sorted(flags))}")
    if t.buffer is not None and (head != "constant" or t.buffer.offset):
        parts.append(f"buffer={t.buffer.usage}+{t.buffer.offset}")
    return " ".join(parts)


def _sizes(sizes: tuple[Size, ...]) -> str:
    return "[" + ", ".join(str(n) for n in sizes) + "]"


def _params_text(params: Params | None) -> str:
    if params is None:
        return ""
    texts = []
    for field in fields(params):
        value = getattr(params, field.name)
        if field.default is MISSING or value != field.default:
            texts.append(f"{field.name}={_value_text(value)}")
    return " {" + ", ".join(texts) + "}"


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(_value_text(v) for v in value) + ")"
    if isinstance(value, IntEnum):
        return value.name
    if not isinstance(value, float):
        return str(value)
    for digits in range(1, 10):
        short = f"{value:.{digits}g}"
        if f32(float(short)) == value or value != value:
            return short
    return f"{value!r}d"
