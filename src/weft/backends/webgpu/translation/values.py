"""What is done with values: conversions, operators, choices, and pointers into memory."""

from __future__ import annotations

import re

from weft.backends.webgpu.translation.memory import element, load, store
from weft.backends.webgpu.translation.source import Source
from weft.backends.webgpu.translation.types import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    Array,
    Either,
    Number,
    Pointer,
    Reference,
    Struct,
    TranslationError,
    Type,
    Value,
    common,
    literal,
    number,
    parts,
)

_OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "rest", "&": "and",
              "|": "or", "^": "xor", "<<": "left", ">>": "right"}  # fmt: skip
_COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")


class Values:
    """Computes with values of a function that is translated. What that does besides becomes
    statements."""

    def __init__(self, module: Source) -> None:
        self.module = module
        self.lines: list[str] = []
        self.depth = 1

    def emit(self, text: str) -> None:
        """Adds a line."""
        self.lines.append("  " * self.depth + text)

    # ---- conversions -----------------------------------------------------------------------------

    def convert(self, value: Value, to: Type) -> Value:
        """The value in another type, as C converts it."""
        have = value.type
        if have == to or to is None or isinstance(have, Either):
            return value
        if isinstance(to, Pointer) and isinstance(have, Pointer):
            return Value(value.code, Pointer(to.to, have.at))
        if isinstance(to, Struct | Reference | Array):
            return value
        have, to = number(have), number(to)
        if have.n == to.n:
            return Value(self._converted(value.code, have, to), to)
        if have.n == 1:
            one = self._converted(value.code, have, to.of(1))
            return Value(self._spread(one, to), to)
        raise TranslationError(f"a vector of {have.n} is used as one of {to.n}")

    def _spread(self, code: str, to: Number) -> str:
        """A number as all elements of a vector."""
        if to.n <= 4:
            return f"{to.wgsl}({code})"
        name = f"all_{to.n}{to.letter}"
        fours = ", ".join(["v"] * parts(to))
        body = f"let v = vec4<{to.kind}>(x); return {to.wgsl}({fours});"
        return (
            self.module.make(name, f"fn {name}(x: {to.kind}) -> {to.wgsl} {{ {body} }}")
            + f"({code})"
        )

    def _converted(self, code: str, have: Number, to: Number) -> str:
        if have.base == to.base:
            return code
        if to.kind == "bool":
            return f"({code} != {literal(0, have.kind)})"
        if have.kind == "bool":
            code, have = f"select(0i, 1i, {code})", INT
        if have.kind != to.kind:
            if to.n <= 4:
                code = f"{to.wgsl}({code})"
            else:
                name = f"to_{to.n}{have.letter}{to.letter}"
                fours = ", ".join(f"vec4<{to.kind}>(x[{i}])" for i in range(parts(to)))
                given = f"x: V{to.n}{have.letter}"
                text = f"fn {name}({given}) -> {to.wgsl} {{ return {to.wgsl}({fours}); }}"
                code = f"{self.module.make(name, text)}({code})"
        if to.is_float or BYTES[to.base] >= 4:
            return code
        if BYTES[have.base] < BYTES[to.base] and not have.is_float and not have.is_signed:
            return code
        return self._wrapped(code, to)

    def _wrapped(self, code: str, to: Number) -> str:
        """A number, or a vector, wrapped to the size of its type."""
        bits = 8 * BYTES[to.base]
        if not to.is_signed:
            mask = self._spread(f"{(1 << bits) - 1}u", to) if to.n > 1 else f"{(1 << bits) - 1}u"
            return self._wide("&", code, mask, to, to) if to.n > 4 else f"({code} & {mask})"
        if to.n > 4:
            raise TranslationError(f"a vector is converted to {to.base}")
        constant = re.fullmatch(r"\(?(-?\d+)[iu]\)?", code)
        if constant is not None:  # a shift of a constant may not overflow
            value = int(constant[1]) & ((1 << bits) - 1)
            return literal(value - (value >> (bits - 1) << bits), "i32")
        rest = f"{32 - bits}u" if to.n == 1 else f"vec{to.n}<u32>({32 - bits}u)"
        return f"(({code} << {rest}) >> {rest})"

    # ---- choices and operators ----------------------------------------------------------------

    def chosen(self, condition: str, one: Value, other: Value) -> Value:
        """One of two values of the same type."""
        # references to structs that do not change are as good as the structs
        one, other = (self.loaded(v) if isinstance(v.type, Reference) else v for v in (one, other))
        type_ = one.type
        if isinstance(type_, Pointer) or (isinstance(type_, Number) and type_.n <= 4):
            return Value(f"select({other.code}, {one.code}, {condition})", type_)
        name = f"one_of_{type_.wgsl}" if isinstance(type_, Number | Struct) else ""
        if not name:
            raise TranslationError(f"one of two {type_} is chosen")
        assert isinstance(type_, Number | Struct)
        t = type_.wgsl
        body = "if (which) { return a; } return b;"
        self.module.make(name, f"fn {name}(a: {t}, b: {t}, which: bool) -> {t} {{ {body} }}")
        return Value(f"{name}({one.code}, {other.code}, {condition})", type_)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """An operator of two values."""
        if isinstance(a.type, Pointer | Either):
            by = self.convert(b, INT).code
            return self.moved(a, f"-({by})" if op == "-" else by)
        if isinstance(b.type, Pointer | Either):
            return self.moved(b, self.convert(a, INT).code)
        have = number(a.type), number(b.type)
        if op in ("<<", ">>"):
            type_ = have[0] if have[0].n > 1 else common(have[0], INT)
            places = Number("uint", type_.n)
            right = self.convert(b, places)
            return self._operated(op, self.convert(a, type_), right, type_, places)
        type_ = common(*have)
        if type_ == BOOL:
            type_ = INT
        if op in _COMPARISONS:
            if type_.n > 1:
                raise TranslationError("vectors are compared")
            if have == (BOOL, BOOL):
                type_ = BOOL
            codes = self.convert(a, type_).code, self.convert(b, type_).code
            if op == "!=" and type_.is_float:  # true for a NaN
                return Value(f"!({codes[0]} == {codes[1]})", BOOL)
            return Value(f"({codes[0]} {op} {codes[1]})", BOOL)
        return self._operated(op, self.convert(a, type_), self.convert(b, type_), type_, type_)

    def _operated(self, op: str, a: Value, b: Value, type_: Number, by: Number) -> Value:
        if type_.n > 4:
            code = self._wide(op, a.code, b.code, type_, by)
        else:
            code = f"({a.code} {op} {b.code})"
        if type_.n > 1 and BYTES[type_.base] < 4 and op in ("<<", "+", "-", "*"):
            code = self._wrapped(code, type_)  # elements are not promoted to int
        return Value(code, type_)

    def _wide(self, op: str, a: str, b: str, type_: Number, by: Number) -> str:
        """An operator of vectors of 8 or 16."""
        t, other = type_.wgsl, by.wgsl
        name = f"{_OPERATORS[op]}_{type_.n}{type_.letter}"
        fours = ", ".join(f"a[{i}] {op} b[{i}]" for i in range(parts(type_)))
        code = f"fn {name}(a: {t}, b: {other}) -> {t} {{ return {t}({fours}); }}"
        return f"{self.module.make(name, code)}({a}, {b})"

    # ---- pointers --------------------------------------------------------------------------------

    def moved(self, pointer: Value, by: str) -> Value:
        """A pointer some elements further on."""
        type_ = pointer.type
        if isinstance(type_, Either):
            one, other = self.moved(type_.one, by), self.moved(type_.other, by)
            return Value("", Either(type_.condition, one, other))
        assert isinstance(type_, Pointer)
        size = type_.to.size
        by = by if size == 1 else f"({by}) * {size}i"
        return Value(f"({pointer.code} + {by})" if pointer.code != "0i" else f"({by})", type_)

    def pointed(self, pointer: Value, to: Number) -> Value:
        """A pointer to other numbers in the same place."""
        type_ = pointer.type
        if isinstance(type_, Either):
            one, other = self.pointed(type_.one, to), self.pointed(type_.other, to)
            return Value("", Either(type_.condition, one, other))
        if isinstance(type_, Pointer):
            return Value(pointer.code, Pointer(to, type_.at))
        return pointer

    def loaded(self, pointer: Value) -> Value:
        """The value that a pointer points to."""
        type_ = pointer.type
        if isinstance(type_, Reference):
            return Value(f"(*{pointer.code})", type_.to)
        if isinstance(type_, Either):
            return self.chosen(type_.condition, self.loaded(type_.one), self.loaded(type_.other))
        if isinstance(type_, Pointer):
            return load(self.module, type_, pointer.code)
        raise TranslationError(f"{type_} is read as a pointer")

    def put(self, pointer: Value, value: Value) -> None:
        """Writes a value to where a pointer points."""
        if isinstance(pointer.type, Reference):
            self.emit(f"*({pointer.code}) = {self.convert(value, pointer.type.to).code};")
            return
        if not isinstance(pointer.type, Pointer):
            raise TranslationError(f"{pointer.type} is written to")
        to = pointer.type.to
        value = self.convert(value, FLOAT if to.base == "half" else to)
        for line in store(self.module, pointer.type, pointer.code, value):
            self.emit(line)

    def put_elements(self, array: Value, at: str, value: Value) -> None:
        """Writes a vector to elements of an array of the function."""
        type_ = number(value.type)
        self.emit("{")
        self.emit(f"  let v = {value.code}; let at = {at};")
        for i in range(type_.n):
            self.emit(f"  {array.code}[at + {i}] = v{element(type_, i)};")
        self.emit("}")
