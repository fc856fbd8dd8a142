"""The expressions of a function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from weft.backends.webgpu.translation.memory import element, load
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
    real,
    size_of,
)

_OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "rest", "&": "and",
              "|": "or", "^": "xor", "<<": "left", ">>": "right"}  # fmt: skip
_COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")


class Expressions:
    """Translates expressions. What an expression does besides its value becomes statements."""

    def __init__(self, module: Source) -> None:
        self.module = module
        self.lines: list[str] = []
        self.depth = 1
        self.scopes: list[dict[str, Value]] = [{}]
        self._n_choices = 0

    def emit(self, text: str) -> None:
        """Adds a line."""
        self.lines.append("  " * self.depth + text)

    def assign(self, node: Any) -> None:
        """Translates an assignment."""
        raise NotImplementedError

    def built_in(self, name: str, nodes: Sequence[Any]) -> Value:
        """A call of a function of OpenCL."""
        raise NotImplementedError

    def put(self, pointer: Value, value: Value) -> None:
        """Writes a value to where a pointer points."""
        raise NotImplementedError

    def put_elements(self, array: Value, at: str, value: Value) -> None:
        """Writes a vector to elements of an array of the function."""
        raise NotImplementedError

    def value(self, node: Any) -> Value:
        """Translates an expression."""
        method = getattr(self, f"_of_{type(node).__name__}", None)
        if method is None:
            raise TranslationError(f"{node.coord}: {type(node).__name__} is not known")
        found: Value = method(node)
        return found

    def condition(self, node: Any) -> str:
        """The code of an expression as a bool."""
        return self.convert(self.value(node), BOOL).code

    def index(self, node: Any) -> str:
        """The code of an expression as an int."""
        return self.convert(self.value(node), INT).code

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

    # ---- names, constants, choices ---------------------------------------------------------------

    def find(self, name: str) -> Value:
        """A variable, an enumerator or a constant."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        found = self.module.table(name)
        if found is None:
            raise TranslationError(f"{name} is not known")
        return found

    def _of_ID(self, node: Any) -> Value:
        return self.find(node.name)

    def _of_Constant(self, node: Any) -> Value:
        text = node.value
        if node.type in ("float", "double"):
            return Value(literal(real(text), "f32"), FLOAT)
        value, ending = int(text.rstrip("uUlL"), 0), text.lower()
        long = ("l" in ending and "0x" not in ending) or value >= 1 << 32
        if long:
            base = "long" if self.module.wide else "narrow_long"
            value = value if self.module.wide else min(value, (1 << 31) - 1)
        else:
            base = "uint" if "u" in ending or value >= 1 << 31 else "int"
        type_ = Number(base)
        return Value(literal(value, type_.kind), type_)

    def _of_TernaryOp(self, node: Any) -> Value:
        one, other = self.value(node.iftrue), self.value(node.iffalse)
        condition = self.condition(node.cond)
        pointers = isinstance(one.type, Pointer | Either) or isinstance(
            other.type, Pointer | Either
        )
        if pointers and one.type != other.type:
            self._n_choices += 1
            name = f"choice_{self._n_choices}"
            self.emit(f"let {name} = {condition};")
            return Value("", Either(name, one, other))
        if isinstance(one.type, Number) and isinstance(other.type, Number):
            to = common(one.type, other.type)
            if one.type == other.type == BOOL:
                to = BOOL
            one, other = self.convert(one, to), self.convert(other, to)
        return self.chosen(condition, one, other)

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

    def _of_Assignment(self, node: Any) -> Value:
        self.assign(node)
        return self.value(node.lvalue)

    # ---- operators -------------------------------------------------------------------------------

    def _of_UnaryOp(self, node: Any) -> Value:
        op = node.op
        if op == "&":
            return self._address(node.expr)
        if op == "*":
            return self.loaded(self.value(node.expr))
        if op == "sizeof":
            return Value(literal(size_of(self.module.type_of(node.expr)), "i32"), INT)
        value = self.value(node.expr)
        if op == "!":
            return Value(f"!({self.convert(value, BOOL).code})", BOOL)
        type_ = number(value.type)
        if type_.n == 1:
            type_ = common(type_, INT)
            value = self.convert(value, type_)
        if op == "+":
            return value
        if type_.n > 4:
            if op != "-":
                raise TranslationError(f"{node.coord}: {op} of a vector is not known")
            return self.binary("-", self.convert(Value("0i", INT), type_), value)
        if op == "-" and not type_.is_float and not type_.is_signed:
            return self.binary("-", self.convert(Value("0i", INT), type_), value)
        return Value(f"({op}{value.code})", type_)

    def _address(self, node: Any) -> Value:
        if type(node).__name__ == "ArrayRef":
            base = self.value(node.name)
            if isinstance(base.type, Pointer | Either):
                return self.moved(base, self.index(node.subscript))
        value = self.value(node)
        return Value(f"&{value.code}", Reference(value.type))

    def _of_BinaryOp(self, node: Any) -> Value:
        if node.op in ("&&", "||"):
            left = self.condition(node.left)
            return Value(f"({left} {node.op} {self.condition(node.right)})", BOOL)
        return self.binary(node.op, self.value(node.left), self.value(node.right))

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

    # ---- elements --------------------------------------------------------------------------------

    def _of_ArrayRef(self, node: Any) -> Value:
        base, index = self.value(node.name), self.index(node.subscript)
        if isinstance(base.type, Pointer | Either):
            return self.loaded(self.moved(base, index))
        if isinstance(base.type, Array):
            return Value(f"{base.code}[{index}]", base.type.of)
        if isinstance(base.type, Reference) and isinstance(base.type.to, Array):
            return Value(f"(*{base.code})[{index}]", base.type.to.of)
        raise TranslationError(f"{node.coord}: elements of {base.type}")

    def _of_StructRef(self, node: Any) -> Value:
        base, name = self.value(node.name), node.field.name
        type_, code = base.type, base.code
        if isinstance(type_, Reference) and isinstance(type_.to, Struct):
            type_, code = type_.to, f"(*{code})"
        if isinstance(type_, Struct):
            return Value(f"{code}.{name}_", type_.field(name))
        return self._part(Value(code, type_), name)

    def _part(self, vector: Value, name: str) -> Value:
        """An element of a vector by its name, or a half."""
        type_ = number(vector.type)
        if name not in ("lo", "hi"):
            i = int(name[1:], 16) if name[0] == "s" and len(name) == 2 else "xyzw".index(name)
            return Value(f"{vector.code}{element(type_, i)}", type_.of(1))
        half = type_.of(type_.n // 2)
        if type_.n <= 4:
            at = {2: {"lo": "x", "hi": "y"}, 4: {"lo": "xy", "hi": "zw"}}[type_.n][name]
            return Value(f"{vector.code}.{at}", half)
        k = parts(type_) // 2
        fours = ", ".join(f"v[{i + k * (name == 'hi')}]" for i in range(k))
        helper = f"{name}_{type_.n}{type_.letter}"
        value = fours if k == 1 else f"{half.wgsl}({fours})"
        code = f"fn {helper}(v: {type_.wgsl}) -> {half.wgsl} {{ return {value}; }}"
        return Value(f"{self.module.make(helper, code)}({vector.code})", half)

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

    # ---- casts -----------------------------------------------------------------------------------

    def _of_Cast(self, node: Any) -> Value:
        to = self.module.type_of(node.to_type)
        if isinstance(to, Pointer):
            return self.pointed(self.value(node.expr), to.to)
        if isinstance(to, Reference):  # bits of a variable, see `builtins.py`
            return self.value(node.expr)
        to = number(to)
        items = node.expr.exprs if type(node.expr).__name__ == "ExprList" else [node.expr]
        values = [self.value(item) for item in items]
        if len(values) == 1:
            return self.convert(values[0], to)
        have = [number(v.type) for v in values]
        codes = [self.convert(v, to.of(t.n)).code for v, t in zip(values, have, strict=True)]
        if sum(t.n for t in have) != to.n:
            raise TranslationError(f"{node.coord}: {to.n} elements are made of others")
        if to.n <= 4:
            return Value(f"{to.wgsl}({', '.join(codes)})", to)
        if all(t.n == 1 for t in have):
            fours = [f"vec4<{to.kind}>({', '.join(codes[i : i + 4])})" for i in range(0, to.n, 4)]
            return Value(f"{to.wgsl}({', '.join(fours)})", to)
        if all(t.n == 4 for t in have):
            return Value(f"{to.wgsl}({', '.join(codes)})", to)
        half = to.of(to.n // 2)
        if all(t.n == half.n for t in have) and to.n == 16:
            name = f"join_{to.n}{to.letter}"
            code = (
                f"fn {name}(a: {half.wgsl}, b: {half.wgsl}) -> {to.wgsl} "
                f"{{ return {to.wgsl}(a[0], a[1], b[0], b[1]); }}"
            )
            return Value(f"{self.module.make(name, code)}({', '.join(codes)})", to)
        raise TranslationError(f"{node.coord}: a vector is made of parts of other sizes")

    # ---- calls -----------------------------------------------------------------------------------

    def _of_FuncCall(self, node: Any) -> Value:
        name, nodes = node.name.name, node.args.exprs if node.args is not None else []
        if name in self.module.functions:
            return self.called(name, [self.value(item) for item in nodes])
        try:
            return self.built_in(name, nodes)
        except TranslationError as error:
            place = "" if str(node.coord) in str(error) else f"{node.coord}: "
            raise TranslationError(f"{place}{error}") from None

    def called(self, name: str, values: list[Value]) -> Value:
        """A call of a function of the source. Where an argument is a pointer into one of two
        buffers, there is a call for each."""
        for i, value in enumerate(values):
            either = value.type
            if isinstance(either, Either):
                one, other = (
                    [*values[:i], v, *values[i + 1 :]] for v in (either.one, either.other)
                )
                return self._called_by(either.condition, name, one, other)
        args, types = [], list[Type]()
        params = self.module.functions[name].decl.type.args.params
        for param, value in zip(params, values, strict=True):
            type_ = self.module.type_of(param.type)
            if isinstance(type_, Number):
                value = self.convert(value, type_)
            elif isinstance(type_, Pointer):
                value = self.convert(value, type_)
                if not isinstance(value.type, Pointer):
                    raise TranslationError(f"{name}: {param.name} is no pointer into a buffer")
            elif isinstance(type_, Struct) and isinstance(value.type, Reference):
                value = Value(f"(*({value.code}))", value.type.to)
            args.append(value.code)
            types.append(value.type)
        unique, result = self.module.call(name, tuple(types))
        return Value(f"{unique}({', '.join(args)})", result)

    def _called_by(self, which: str, name: str, one: list[Value], other: list[Value]) -> Value:
        if self.module.type_of(self.module.functions[name].decl.type.type) is not None:
            return self.chosen(which, self.called(name, one), self.called(name, other))
        for text, values in ((f"if ({which}) {{", one), ("} else {", other)):
            self.emit(text)
            self.depth += 1
            call = self.called(name, values)
            if call.code:
                self.emit(f"{call.code};")
            self.depth -= 1
        self.emit("}")
        return Value("", None)
