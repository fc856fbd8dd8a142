"""A source in C: its functions, types and constants, and the parts of a module made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.webgpu.translation.helpers import HELPERS
from weft.backends.webgpu.translation.preprocess import Preprocessor
from weft.backends.webgpu.translation.types import (
    BYTES,
    WIDTHS,
    Array,
    Number,
    Pointer,
    Reference,
    Struct,
    TranslationError,
    Type,
    Value,
    literal,
    number,
    real,
)

_DEFINES = (
    "__global=volatile", "__local=restrict", "__constant=const", "__kernel= ", "inline= ",
    "INFINITY=__infinity()", "NAN=__nan()", "LONG_MAX=9223372036854775807L",
    "LONG_MIN=(-9223372036854775807L-1)", "INT_MAX=2147483647", "INT_MIN=(-2147483647-1)",
    "CLK_LOCAL_MEM_FENCE=1", "CLK_GLOBAL_MEM_FENCE=2", "_Pragma(x)= ",
    "BUILT_IN_DOT4",
)  # fmt: skip
"""Words of OpenCL that a parser of C takes for others: address spaces become qualifiers."""
_SCALARS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float")
_PRELUDE = "".join(
    [f"typedef int {name};" for name in ("uchar", "ushort", "uint", "ulong", "half")]
    + [f"typedef int {name}{n};" for name in _SCALARS for n in WIDTHS]
)
_VECTOR = re.compile(rf"({'|'.join(_SCALARS)})({'|'.join(map(str, WIDTHS))})")

STORED = "stored"
"""The name of the buffer of constant arrays."""


class Source:
    """The functions, types and constants of a source, and the parts of the module so far."""

    def __init__(
        self,
        source: str,
        defines: Sequence[str],
        group: tuple[int, ...],
        *,
        wide: bool,
        stored: Mapping[str, int],
    ) -> None:
        from pycparser import c_ast, c_parser

        text = Preprocessor([*_DEFINES, *defines]).process(source)
        try:
            tree = c_parser.CParser().parse(_PRELUDE + "\n" + text)
        except c_parser.ParseError as error:
            raise TranslationError(str(error)) from None
        self.group = (*group, 1, 1)[:3]
        self.wide = wide
        self.stored = stored
        """The first word of each constant array that is in a buffer."""
        self.functions: dict[str, Any] = {}
        self.constants: dict[str, int] = {}
        self._tables: dict[str, Any] = {}
        self._types: dict[str, Any] = {}
        self.structs: dict[str, Struct] = {}
        self.helpers: dict[str, str] = {}
        self.bytewise: set[str] = set()
        """Buffers to which parts of words are written."""
        self.quads: set[str] = set()
        """Buffers of vectors of four words, which nothing writes."""
        self.uses_local = False
        self.uses_subgroups = False
        for node in tree.ext:
            if isinstance(node, c_ast.Typedef):
                self._types[node.name] = node.type
            elif isinstance(node, c_ast.FuncDef):
                self.functions[node.decl.name] = node
            elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Enum):
                self._enumerate(node.type)
            elif isinstance(node, c_ast.Decl) and node.init is not None:
                self._tables[node.name] = node

    # ---- declarations ----------------------------------------------------------------------------

    def _enumerate(self, node: Any) -> None:
        value = -1
        for item in node.values.enumerators:
            value = value + 1 if item.value is None else self.constant(item.value)
            self.constants[item.name] = value

    def constant(self, node: Any) -> int:
        """The value of an expression of integers that are known. Raises TranslationError for
        others."""
        kind = type(node).__name__
        if kind == "Constant":
            return int(node.value.rstrip("uUlL"), 0)
        if kind == "ID" and node.name in self.constants:
            return self.constants[node.name]
        if kind == "UnaryOp" and node.op in "-+":
            value = self.constant(node.expr)
            return -value if node.op == "-" else value
        if kind == "BinaryOp":
            a, b = self.constant(node.left), self.constant(node.right)
            if node.op in ("/", "%"):
                if not b:
                    raise TranslationError(f"{node.coord}: division by 0")
                return int(a / b) if node.op == "/" else a - b * int(a / b)
            simple = {
                "+": a + b,
                "-": a - b,
                "*": a * b,
                "<<": a << max(b, 0),
                ">>": a >> max(b, 0),
            }
            if node.op in simple:
                return simple[node.op]
        raise TranslationError(f"{node.coord}: the size or the label is not constant")

    def type_of(self, node: Any, at: str = "") -> Type:
        """The type of a declaration; its pointers into buffers point into `at`."""
        kind = type(node).__name__
        if kind in ("TypeDecl", "Typename"):
            return self.type_of(node.type, at)
        if kind == "IdentifierType":
            return self._named(" ".join(node.names), at)
        if kind == "ArrayDecl":
            return Array(self.type_of(node.type, at), self.constant(node.dim))
        if kind == "PtrDecl":
            to, quals = self.type_of(node.type, at), getattr(node.type, "quals", ())
            if "volatile" in quals:
                return Pointer(number(to), at)
            if "restrict" in quals:
                return Pointer(number(to), "local")
            if "const" in quals and isinstance(to, Struct):
                return to  # nothing changes it, so that its value does
            return Reference(to)
        raise TranslationError(f"{node.coord}: a type is not known")

    def _named(self, name: str, at: str) -> Type:
        if name == "void":
            return None
        if name in ("long", "ulong") and not self.wide:
            return Number(f"narrow_{name}")
        if name in BYTES:
            return Number(name)
        vector = _VECTOR.fullmatch(name)
        if vector is not None:
            return Number(vector[1], int(vector[2]))
        found = self._types.get(name)
        if found is None:
            raise TranslationError(f"type {name} is not known")
        inner = getattr(found, "type", None)
        if type(inner).__name__ != "Struct":
            return self.type_of(found, at)
        assert inner is not None
        fields = tuple((d.name, self.type_of(d.type, at)) for d in inner.decls)
        return self.known(Struct(name, fields))

    def known(self, struct: Struct) -> Struct:
        """Keeps the declaration of a struct."""
        self.structs.setdefault(struct.name, struct)
        return struct

    def table(self, name: str) -> Value | None:
        """A constant of the source, an array of them, or a pointer to one in a buffer; None for
        another name."""
        if name in self.constants:
            return Value(literal(self.constants[name], "i32"), Number("int"))
        if name in self.stored:
            return Value(f"{4 * self.stored[name]}i", Pointer(Number("uint"), STORED))
        node = self._tables.get(name)
        if node is None:
            return None
        type_ = self.type_of(node.type)
        if not isinstance(type_, Array):
            return None
        kind = number(type_.of).kind
        if name not in self.helpers:
            values = [literal(_plain(item), kind) for item in node.init.exprs]
            array = f"array<{kind}, {type_.n}>({', '.join(values)})"
            self.helpers[name] = f"const t_{name} = {array};"
        return Value(f"t_{name}", type_)

    # ---- parts -----------------------------------------------------------------------------------

    def need(self, name: str) -> str:
        """Adds a function of `helpers.py` with those that it calls; returns its name."""
        if name not in self.helpers:
            self.helpers[name] = HELPERS[name]
            for other in re.findall(r"\b(\w+)\b", HELPERS[name]):
                if other in HELPERS:
                    self.need(other)
        return name

    def make(self, name: str, code: str) -> str:
        """Adds a function; returns its name."""
        self.helpers.setdefault(name, code)
        return name


def _plain(node: Any) -> float:
    """The value of a number, perhaps with a sign."""
    if type(node).__name__ == "UnaryOp" and node.op == "-":
        return -_plain(node.expr)
    if node.type in ("float", "double"):
        return real(node.value)
    return int(node.value.rstrip("uUlL"), 0)
