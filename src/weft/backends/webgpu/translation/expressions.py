"""The expressions of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.webgpu.translation.builtins import built_in
from weft.backends.webgpu.translation.memory import element
from weft.backends.webgpu.translation.source import Source
from weft.backends.webgpu.translation.types import (
    BOOL,
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
from weft.backends.webgpu.translation.values import Values

Call = Callable[[str, tuple[Type, ...]], tuple[str, Type]]
"""Gives the name and the type of a function of the source for arguments of these types."""


class Expressions(Values):
    """Translates expressions. What an expression does besides its value becomes statements."""

    def __init__(self, module: Source, call: Call) -> None:
        super().__init__(module)
        self.scopes: list[dict[str, Value]] = [{}]
        self._call = call
        self._n_choices = 0

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
            return built_in(self, name, nodes, [self.value(item) for item in nodes])
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
        unique, result = self._call(name, tuple(types))
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

    # ---- assignments -----------------------------------------------------------------------------

    def assign(self, node: Any) -> None:
        """Translates an assignment."""
        value, op = self.value(node.rvalue), node.op[:-1]
        self._set(node.lvalue, self.binary(op, self.value(node.lvalue), value) if op else value)

    def _set(self, target: Any, value: Value) -> None:
        kind = type(target).__name__
        if kind == "UnaryOp" and target.op == "*":
            self.put(self.value(target.expr), value)
            return
        if kind == "ArrayRef":
            base, index = self.value(target.name), self.index(target.subscript)
            if isinstance(base.type, Pointer):
                self.put(self.moved(base, index), value)
                return
            if isinstance(base.type, Array):
                self._set_element(target, base, index, value)
                return
        have = self.value(target)
        if isinstance(have.type, Pointer) and isinstance(value.type, Pointer):
            if have.type.at and have.type.at != value.type.at:
                raise TranslationError(f"{target.coord}: {have.code} points into two buffers")
            if kind == "ID":
                self._found(target.name, Value(have.code, Pointer(have.type.to, value.type.at)))
        self.emit(f"{have.code} = {self.convert(value, have.type).code};")

    def _set_element(self, target: Any, base: Value, index: str, value: Value) -> None:
        assert isinstance(base.type, Array)
        of = base.type.of
        if isinstance(of, Pointer) and isinstance(value.type, Pointer) and not of.at:
            of = Pointer(of.to, value.type.at)  # all its elements point into one buffer
            self._found(target.name.name, Value(base.code, Array(of, base.type.n)))
        self.emit(f"{base.code}[{index}] = {self.convert(value, of).code};")

    def _found(self, name: str, value: Value) -> None:
        """Replaces what is known of a variable."""
        for scope in reversed(self.scopes):
            if name in scope:
                scope[name] = value
                return
