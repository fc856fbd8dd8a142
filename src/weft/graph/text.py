"""A graph as stable text, and back: for tests, documentation and bug reports.

    weft graph 1
    sym n_tokens 1..512
    %0 = input f32[64, n_tokens] "x"
    %1 = constant q4_0[64, 32] "w"
    %2 = MUL_MAT(%1, %0) f32[32, n_tokens] "node_0"
    %3 = UNARY(%2) {op=SILU} f32[32, n_tokens] "y" flags=output

One line a tensor: leaves, then nodes, in graph order. `-` is an absent source. Optional fields
behind the name: `nb=[...]` strides that are not the contiguous ones; `view=%N+bytes` the base whose
memory is shared; `flags=`; `buffer=usage+offset`. Parameters equal to their default are left out;
numbers are float32 unless they end in `d`. `base` lines are tensors outside the graph that leaves
of it view. Data is never written: a parsed constant has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any, get_type_hints

from weft.dtype import find_dtype
from weft.errors import GraphError, WeftError
from weft.graph.check import check_graph
from weft.graph.format import HEADER, format_graph
from weft.graph.graph import Graph
from weft.graph.node import f32
from weft.graph.op import NONE, Op, find_op
from weft.graph.params import Params
from weft.graph.size import Size, Sym, size_max, size_min
from weft.graph.tensor import Buffer, Ne, Tensor

__all__ = ["format_graph", "parse_graph"]

# -- parsing ---------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<id>%\d+)
    | (?P<number>\d+\.\.|(?:\d+\.?\d*(?:e[+-]?\d+)?)d?)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark>[-+*=()\[\]{},])
    )""",
    re.VERBOSE,
)

_UNREADABLE = (WeftError, ValueError, KeyError, TypeError, ArithmeticError)

_DEEPEST = 64
"""Levels of brackets and functions in a size; a deeper size is refused before the stack ends."""

_LEAF_KINDS = ("base", "input", "constant", "leaf")


def parse_graph(text: str) -> Graph:
    """The graph that `format_graph` wrote; constants come back without data.

    Raises GraphError with the number of the line that cannot be read, or where the graph is illegal
    (see `check_graph`; the shape rules of single ops are not checked again)."""
    parser = _Parser()
    lines = text.splitlines()
    if not lines or lines[0].strip() != HEADER:
        raise GraphError(f"graph text must start with the line {HEADER!r}")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            parser.line(line)
        except _UNREADABLE as error:
            raise GraphError(f"graph text, line {number}: {error} in {line.strip()!r}") from error
    graph = Graph.of(parser.leaves, parser.nodes)
    check_graph(graph)
    return graph


class _Parser:
    def __init__(self) -> None:
        self.symbols: dict[str, Sym] = {}
        self.tensors: dict[str, Tensor] = {}
        self.leaves: list[Tensor] = []
        self.nodes: list[Tensor] = []
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        self.depth = 0

    # - tokens

    def peek(self, value: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at][1] == value

    def take(self, kind: str | None = None, value: str | None = None) -> str:
        if self.at >= len(self.tokens):
            raise GraphError(f"ends where {value or kind} should stand")
        token_kind, text = self.tokens[self.at]
        if (kind is not None and token_kind != kind) or (value is not None and text != value):
            raise GraphError(f"has {text!r} where {value or kind} should stand")
        self.at += 1
        return text

    def skip(self, value: str) -> bool:
        if self.peek(value):
            self.at += 1
            return True
        return False

    def items(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """Items between an opening mark, already taken, and `close`."""
        items: list[Any] = []
        while not self.skip(close):
            if items:
                self.take(value=",")
            items.append(item())
        return items

    # - lines

    def line(self, line: str) -> None:
        self.tokens, self.at, self.depth = [], 0, 0
        end = 0
        while line[end:].strip():
            match = _TOKEN.match(line, end)
            if match is None or match.lastgroup is None:
                raise GraphError(f"has unknown characters {line[end:].strip()[:10]!r}")
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            end = match.end()
        if self.skip("sym"):
            self.symbol()
        else:
            self.tensor()
        if self.at < len(self.tokens):
            raise GraphError(f"goes on with {self.tokens[self.at][1]!r}")

    def symbol(self) -> None:
        name = self.take("word")
        if name in self.symbols:
            raise GraphError(f"declares {name} again")
        low = self.take("number")
        if not low.endswith(".."):
            raise GraphError(f"bounds must read min..max, got {low!r}")
        self.symbols[name] = Sym(name, int(low[:-2]), int(self.take("number")))

    def tensor(self) -> None:
        ident = self.take("id")
        if ident in self.tensors:
            raise GraphError(f"defines {ident} again")
        self.take(value="=")
        head = self.take("word")
        op: Op = NONE
        params: Params | None = None
        sources: list[str] = []
        if head not in _LEAF_KINDS:
            op = find_op(head)
            self.take(value="(")
            sources = self.items(")", lambda: "-" if self.skip("-") else self.take("id"))
            params = self.params(op)
        dtype = find_dtype(self.take("word"))
        self.take(value="[")
        sizes = self.items("]", self.size)
        ne = _padded(sizes)
        name = str(json.loads(self.take("string")))
        t = Tensor(dtype, ne, name=name, op=op, params=params, rank=len(sizes))
        self.tensors[ident] = t  # before its sources are looked up: it may be its own source
        t.src = tuple(None if s == "-" else self.known(s) for s in sources)
        if head == "input":
            t.flags = frozenset({"input"})
        if head == "constant":
            t.buffer = Buffer("weights")
        while self.at < len(self.tokens):
            self.option(t)
        if head not in _LEAF_KINDS:
            self.nodes.append(t)
        elif head != "base":
            self.leaves.append(t)

    def option(self, t: Tensor) -> None:
        key = self.take("word")
        self.take(value="=")
        if key == "nb":
            self.take(value="[")
            nb = self.items("]", self.size)
            if len(nb) != 4:
                raise GraphError(f"gives {len(nb)} strides, not four")
            t.nb = (nb[0], nb[1], nb[2], nb[3])
        elif key == "view":
            t.view_src = self.known(self.take("id"))
            self.take(value="+")
            t.view_offs = self.size()
        elif key == "flags":
            t.flags |= {self.take("word")}
            while self.skip(","):
                t.flags |= {self.take("word")}
        elif key == "buffer":
            usage = self.take("word")
            self.take(value="+")
            if usage not in ("weights", "compute", "any"):
                raise GraphError(f"has unknown usage {usage!r}")
            t.buffer = Buffer(usage, offset=int(self.take("number")))  # type: ignore[arg-type]
        else:
            raise GraphError(f"has unknown field {key!r}")

    def known(self, ident: str) -> Tensor:
        if ident not in self.tensors:
            raise GraphError(f"uses {ident} before its line")
        return self.tensors[ident]

    # - parameters

    def params(self, op: Op) -> Params | None:
        if op.params is None:
            return None
        if not self.skip("{"):
            if op.params_optional:
                return None
            self.take(value="{")
        hints = get_type_hints(op.params)
        values: dict[str, Any] = {}
        while not self.skip("}"):
            if values:
                self.take(value=",")
            field = self.take("word")
            if field not in hints or field in values:
                raise GraphError(f"gives {op} the parameter {field!r}, unknown or twice")
            self.take(value="=")
            values[field] = self.value(hints[field])
        params: Params = op.params(**values)
        return params

    def value(self, kind: Any) -> Any:
        if getattr(kind, "__origin__", None) is tuple:
            self.take(value="(")
            items = tuple(self.items(")", lambda: self.value(int)))
            if len(items) != len(kind.__args__):
                raise GraphError(f"gives {len(items)} numbers, not {len(kind.__args__)}")
            return items
        negative = self.skip("-")
        text = self.take()
        if isinstance(kind, type) and issubclass(kind, IntEnum):
            return kind[text]
        if kind is bool:
            return {"True": True, "False": False}[text]
        if kind is int:
            return -int(text) if negative else int(text)
        number = float(text[:-1]) if text.endswith("d") else f32(float(text))
        return -number if negative else number

    # - sizes: sum of products of numbers, symbols and div, mod, min, max

    def size(self) -> Size:
        total = -self.product() if self.skip("-") else self.product()
        while self.peek("+") or self.peek("-"):
            total = total + self.product() if self.skip("+") else self._minus(total)
        return total

    def inner_size(self) -> Size:
        """A size inside of another one."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise GraphError(f"nests sizes more than {_DEEPEST} levels deep")
        size = self.size()
        self.depth -= 1
        return size

    def _minus(self, total: Size) -> Size:
        self.take(value="-")
        return total - self.product()

    def product(self) -> Size:
        result = self.atom()
        while self.skip("*"):
            result = result * self.atom()
        return result

    def atom(self) -> Size:
        if self.skip("("):
            inner = self.inner_size()
            self.take(value=")")
            return inner
        if self.tokens[self.at : self.at + 1] and self.tokens[self.at][0] == "number":
            return int(self.take())
        word = self.take("word")
        if not self.skip("("):
            if word not in self.symbols:
                raise GraphError(f"uses the symbol {word!r}, which no sym line declares")
            return self.symbols[word].size
        left = self.inner_size()
        self.take(value=",")
        right = self.inner_size()
        self.take(value=")")
        if word == "div":
            return left // right
        if word == "mod":
            return left % right
        if word in ("min", "max"):
            return size_min(left, right) if word == "min" else size_max(left, right)
        raise GraphError(f"uses the unknown function {word!r}")


def _padded(sizes: list[Size]) -> Ne:
    if not 1 <= len(sizes) <= 4:
        raise GraphError(f"has {len(sizes)} sizes, not 1 to 4")
    s = [*sizes, *[1] * (4 - len(sizes))]
    return (s[0], s[1], s[2], s[3])
