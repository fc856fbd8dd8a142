"""A function of the source: its parameters and statements."""

from __future__ import annotations

from typing import Any

from weft.backends.webgpu.translation.expressions import Expressions
from weft.backends.webgpu.translation.memory import from_arguments
from weft.backends.webgpu.translation.types import (
    INT,
    QUAD,
    Array,
    Either,
    Number,
    Pointer,
    Reference,
    Struct,
    TranslationError,
    Type,
    Value,
    wgsl,
)

_FIRST_WORD = 3
"""The word of the arguments behind the place where the grid begins."""
_ENDS = ("Break", "Return", "Continue")


class Function(Expressions):
    """Translates one function, or a kernel."""

    _result: Type = None

    def kernel(self, node: Any) -> tuple[str, int]:
        """The body of a kernel as the body of `main`, and the number of its buffers."""
        word, n = _FIRST_WORD, 0
        for param in node.decl.type.args.params:
            type_ = self.module.type_of(param.type, f"b{n}")
            name = f"{param.name}_"
            if isinstance(type_, Pointer) and type_.at != "local":
                self.scopes[0][param.name] = Value("0i", type_)
                if type_.to == QUAD:
                    self.module.quads.add(type_.at)
                n += 1
                continue
            if isinstance(type_, Pointer):
                self.emit(f"let {name} = bitcast<i32>(arguments[{word}]);")
                word += 1
            else:
                self.emit(f"var {name} = {from_arguments(type_, word)};")
                assert isinstance(type_, Number | Struct | Array)
                word += -(-type_.size // 4)
            self.scopes[0][param.name] = Value(name, type_)
        self.statement(node.body)
        return "\n".join(self.lines), n

    def function(self, node: Any, types: tuple[Type, ...], name: str) -> tuple[str, Type]:
        """The code of a function for arguments of these types, and the type of its result."""
        self._result = self.module.type_of(node.decl.type.type)
        params = []
        for param, type_ in zip(node.decl.type.args.params, types, strict=True):
            own = f"{param.name}_"
            if isinstance(type_, Reference):
                params.append(f"{own}: {type_.wgsl}")
            else:
                params.append(f"{own}in: {wgsl(type_)}")
                self.emit(f"var {own} = {own}in;")
            self.scopes[0][param.name] = Value(own, type_)
        self.statement(node.body)
        arrow = ""
        if self._result is not None:
            arrow = f" -> {wgsl(self._result)}"
            if type(node.body.block_items[-1]).__name__ != "Return":
                self.emit(f"var nothing: {wgsl(self._result)};")
                self.emit("return nothing;")
        body = "\n".join(self.lines)
        return f"fn {name}({', '.join(params)}){arrow} {{\n{body}\n}}", self._result

    # ---- statements ------------------------------------------------------------------------------

    def statement(self, node: Any) -> None:
        """Translates a statement."""
        method = getattr(self, f"_do_{type(node).__name__}", None)
        if method is None:
            raise TranslationError(f"{node.coord}: {type(node).__name__} is not known")
        method(node)

    def _block(self, node: Any) -> None:
        """A statement in a scope of its own."""
        self.scopes.append({})
        self.emit("{")
        self.depth += 1
        if node is not None:
            self.statement(node)
        self.depth -= 1
        self.emit("}")
        self.scopes.pop()

    def _do_Compound(self, node: Any) -> None:
        for item in node.block_items or ():
            if type(item).__name__ == "Compound":
                self._block(item)
            else:
                self.statement(item)

    def _do_EmptyStatement(self, node: Any) -> None: ...

    def _do_DeclList(self, node: Any) -> None:
        for decl in node.decls:
            self.statement(decl)

    def _do_ExprList(self, node: Any) -> None:
        for item in node.exprs:
            self.statement(item)

    def _do_FuncCall(self, node: Any) -> None:
        value = self.value(node)
        if value.code:
            self.emit(f"{value.code};" if value.type is None else f"_ = {value.code};")

    def _do_If(self, node: Any) -> None:
        self.emit(f"if ({self.condition(node.cond)})")
        self._block(node.iftrue)
        if node.iffalse is not None:
            self.emit("else")
            self._block(node.iffalse)

    def _do_For(self, node: Any) -> None:
        self.scopes.append({})
        self.emit("{")
        self.depth += 1
        if node.init is not None:
            self.statement(node.init)
        self._loop(node.cond, node.stmt, node.next)
        self.depth -= 1
        self.emit("}")
        self.scopes.pop()

    def _do_While(self, node: Any) -> None:
        self._loop(node.cond, node.stmt, None)

    def _loop(self, condition: Any, body: Any, step: Any) -> None:
        self.emit("loop {")
        self.depth += 1
        if condition is not None:
            self.emit(f"if (!({self.condition(condition)})) {{ break; }}")
        self._block(body)
        if step is not None:
            self.emit("continuing")
            self._block(step)
        self.depth -= 1
        self.emit("}")

    def _do_Switch(self, node: Any) -> None:
        self.emit(f"switch ({self.index(node.cond)}) {{")
        self.depth += 1
        cases = list(self._cases(node.stmt.block_items))
        for i, (labels, statements) in enumerate(cases):
            last = type(statements[-1]).__name__
            if last not in _ENDS and i + 1 < len(cases):
                raise TranslationError(f"{node.coord}: a case goes on with the next one")
            if last == "Break":
                statements = statements[:-1]
            self.emit("default: {" if labels == ["default"] else f"case {', '.join(labels)}: {{")
            self.depth += 1
            self.scopes.append({})
            for statement in statements:
                self.statement(statement)
            self.scopes.pop()
            self.depth -= 1
            self.emit("}")
        if not any("default" in labels for labels, _ in cases):
            self.emit("default: {}")
        self.depth -= 1
        self.emit("}")

    def _cases(self, items: Any) -> list[tuple[list[str], Any]]:
        """The labels and the statements of each case."""
        cases: list[tuple[list[str], Any]] = []
        labels: list[str] = []
        for item in items:
            statements = [item]
            while len(statements) == 1 and type(statements[0]).__name__ in ("Case", "Default"):
                case = statements[0]
                is_default = type(case).__name__ == "Default"
                labels.append("default" if is_default else f"{self.module.constant(case.expr)}i")
                statements = case.stmts or []
            if statements:
                cases.append((labels, statements))
                labels = []
        return cases

    def _do_Return(self, node: Any) -> None:
        if node.expr is None:
            self.emit("return;")
            return
        value = self.value(node.expr)
        if not isinstance(self._result, Number):
            self._result = value.type  # with the buffers of its pointers
        self.emit(f"return {self.convert(value, self._result).code};")

    def _do_Break(self, node: Any) -> None:
        self.emit("break;")

    def _do_Continue(self, node: Any) -> None:
        self.emit("continue;")

    # ---- variables -------------------------------------------------------------------------------

    def _do_Decl(self, node: Any) -> None:
        if type(node.type).__name__ in ("Struct", "Enum"):
            return
        type_, name = self.module.type_of(node.type), f"{node.name}_"
        n = sum(node.name in scope for scope in self.scopes)
        if n:  # what it is made of may be the outer one
            name += str(n)
        if node.init is None:
            self.scopes[-1][node.name] = Value(name, type_)
            self.emit(f"var {name}: {wgsl(type_)};")
            return
        value = self._initial(node, type_)
        if isinstance(value.type, Either):
            self.scopes[-1][node.name] = value
            return
        self.scopes[-1][node.name] = Value(name, value.type)
        self.emit(f"var {name}: {wgsl(value.type)} = {value.code};")

    def _initial(self, node: Any, type_: Type) -> Value:
        """The first value of a variable."""
        if type(node.init).__name__ != "InitList":
            value = self.value(node.init)
            if isinstance(type_, Struct) and isinstance(value.type, Reference):
                value = Value(f"(*({value.code}))", value.type.to)
            return self.convert(value, type_)
        values = [self.value(item) for item in node.init.exprs]
        if isinstance(type_, Struct):
            fields, codes = [], []
            for value, (name, field) in zip(values, type_.fields, strict=True):
                value = self.convert(value, field)
                fields.append((name, value.type))
                codes.append(value.code)
            own = self.module.known(Struct(type_.name, tuple(fields)))
            return Value(f"{type_.name}({', '.join(codes)})", Struct(own.name, tuple(fields)))
        if isinstance(type_, Array):
            items = [self.convert(value, type_.of).code for value in values]
            items += [f"{wgsl(type_.of)}()"] * (type_.n - len(items))
            return Value(f"{type_.wgsl}({', '.join(items)})", type_)
        raise TranslationError(f"{node.coord}: a list is the first value of {type_}")

    def _do_UnaryOp(self, node: Any) -> None:
        if node.op not in ("p++", "++", "p--", "--"):
            raise TranslationError(f"{node.coord}: {node.op} does nothing")
        op = "+" if "+" in node.op else "-"
        self._set(node.expr, self.binary(op, self.value(node.expr), Value("1i", INT)))

    def _do_Assignment(self, node: Any) -> None:
        self.assign(node)
