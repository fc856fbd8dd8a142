"""Chat templates in Jinja, in the environment that Hugging Face's templates are written for.

A template comes from a file that a stranger may have made. It runs in Jinja's immutable sandbox
with only the functions that templates use (`filters.py`), and pays for every step and every new
value (`meter.py`): before it is compiled, its loops, calls, operators and outputs are replaced by
ones that pay. Templates have what `apply_chat_template` of the transformers library offers:
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, `break` and `continue`, and
`{% generation %}` blocks, which mark text and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from weft.errors import ChatError
from weft.llm.chat.filters import (
    FILTERS,
    GLOBALS,
    METHODS,
    TESTS,
    Refusal,
    formatted,
    limited,
    multiplied,
)
from weft.llm.chat.meter import METER, STEP, Meter, charge, counted, measure, number, text

MAX_SOURCE = 1 << 16
"""Maximum number of characters of a template; the longest ones in use have some 25,000."""
MAX_DEPTH = 150
"""Maximum depth of nested expressions and blocks."""

_REFUSED = (
    nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block,
    nodes.EvalContextModifier, nodes.ScopedEvalContextModifier,
)  # fmt: skip


class JinjaTemplate:
    """One compiled template."""

    def __init__(self, source: str, where: str) -> None:
        """`where` names the template in errors. Raises ChatError if it does not compile."""
        self._where = where
        if len(source) > MAX_SOURCE:
            raise ChatError(
                f"{where}: the template has {len(source)} characters, the most is {MAX_SOURCE}; "
                "give another one"
            )
        environment = _Environment()
        try:
            tree = environment.parse(source)
            self._names = _names(tree)
            paying = _Paying(tree)
            environment.macro_costs, environment.loop_cost = paying.macros, paying.loop
            self._cost = paying.cost
            code = environment.compile(paying.tree)
            self._template = environment.template_class.from_code(
                environment, code, environment.make_globals(None)
            )
        except Exception as error:  # Jinja's compiler and Python's raise errors of many types
            line = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else 0
            at = f", line {line}" if line else ""
            raise ChatError(
                f"{where}{at}: the template does not compile: {_said(error)}; give another one, or "
                "use a newer file of this model"
            ) from None

    def reads(self, name: str) -> bool:
        """True if the template mentions a variable, an attribute or a key of that name."""
        return name in self._names

    def render(self, variables: Mapping[str, Any]) -> str:
        """Renders the text. Raises ChatError if the template refuses the variables or fails."""
        token = None
        try:
            token = METER.set(Meter(dict(variables)))  # raises SecurityError for huge numbers
            charge(self._cost)
            return "".join(self._template.generate(**variables))
        except Refusal as error:
            raise ChatError(f"{self._where} refuses these messages: {error}") from None
        except RecursionError:
            raise ChatError(f"{self._where} fails: it calls itself without end") from None
        except Exception as error:  # filters and methods raise errors of many types
            raise ChatError(
                f"{self._where} fails on these messages: {type(error).__name__}: {_said(error)}"
            ) from None
        finally:
            if token is not None:
                METER.reset(token)


def _said(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    message = str(error) or type(error).__name__
    return message if len(message) <= 600 else message[:600] + " ..."


def _names(template: nodes.Template) -> frozenset[str]:
    """The names of variables and attributes, and all strings, which may be keys."""
    kinds = ((nodes.Name, "name"), (nodes.Getattr, "attr"), (nodes.Const, "value"))
    names = (getattr(n, field) for kind, field in kinds for n in template.find_all(kind))
    return frozenset(name for name in names if isinstance(name, str))


class _Generation(Extension):
    """Renders the body of `{% generation %}`, which marks the text that a model wrote."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


# ---- a tree that pays ----

_LOOP, _CONCAT, _SLICE, _COMPARE = "weft loop", "weft concat", "weft slice", "weft compare"
"""Names of filters that no template can write."""


class _Paying(NodeTransformer):
    """Replaces loops, `~`, slices, comparisons and keys of a tree by filters that pay. The
    environment is called for all other operations anyway."""

    def __init__(self, tree: nodes.Template) -> None:
        _check_depth(tree)
        self.macros: dict[str, int] = {}
        self.loop = STEP
        self.cost = _cost(tree)
        self.tree: nodes.Template = self.visit(tree)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        cost = _cost(node)
        self.loop = max(self.loop, cost)
        self.generic_visit(node)
        node.iter = _filter(node.iter, _LOOP, nodes.Const(cost))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._macro(node, node.name)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._macro(node, "caller")

    def _macro(self, node: nodes.Node, name: str) -> nodes.Node:
        self.macros[name] = max(self.macros.get(name, 0), _cost(node))
        self.generic_visit(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        parts = node.arg.start, node.arg.stop, node.arg.step
        return _filter(node.node, _SLICE, *(part or nodes.Const(None) for part in parts))

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:  # hashing takes time for all that is in a key
            if not isinstance(pair.key, nodes.Const):
                pair.key = cast(nodes.Expr, _filter(pair.key, _COMPARE))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if len(node.ops) == 1:
            op = node.ops[0]
            return _filter(node.expr, _COMPARE, nodes.Const(op.op), op.expr)
        node.expr = _filter(node.expr, _COMPARE)
        for op in node.ops:
            op.expr = _filter(op.expr, _COMPARE)
        return node

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if isinstance(node, _REFUSED):
            name = type(node).__name__.lower()
            raise TemplateSyntaxError(f"a chat template has no {name}", node.lineno)
        return super().generic_visit(node, *args, **kwargs)


def _filter(value: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(
        cast(nodes.Expr, value), name, list(args), [], None, None, lineno=value.lineno
    )


def _cost(node: nodes.Node) -> int:
    """The units of executing `node` once: all nodes and all text in it."""
    cost, stack = 0, [node]
    while stack:
        part = stack.pop()
        cost += 1 + (len(part.data) if isinstance(part, nodes.TemplateData) else 0)
        stack += part.iter_child_nodes()
    return cost + STEP


def _check_depth(tree: nodes.Node) -> None:
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise TemplateSyntaxError("it is nested too deeply", getattr(node, "lineno", 0) or 0)
        stack += [(child, depth + 1) for child in node.iter_child_nodes()]


# ---- the environment, which makes operations pay ----


def _concat(values: list[Any]) -> str:
    parts = [text(value) for value in values]
    limited(sum(map(len, parts)))
    return "".join(parts)


def _slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    if not isinstance(value, str | list | tuple | range):
        return value[start:stop:step]
    limited(len(value[start:stop:step]) if isinstance(value, range) else len(value))
    return value[start:stop:step]


def _loop(values: Any, cost: int) -> Iterable[Any]:
    return counted(values, cost)


def _compare(left: Any, op: str = "", right: Any = None) -> Any:
    """Compares two values; without `op`, pays for a value that is compared later and returns it."""
    scalar = (bool, int, float, type(None), Undefined)
    charge()
    if op in ("eq", "ne") and (isinstance(left, scalar) or isinstance(right, scalar)):
        pass
    elif isinstance(left, str) and isinstance(right, str | dict):
        charge(len(left) + len(right))
    elif op == "":
        measure(left)
        return left
    else:
        measure(left)
        measure(right)
    return _COMPARISONS[op](left, right)


_COMPARISONS: dict[str, Any] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "gt": lambda a, b: a > b,
    "gteq": lambda a, b: a >= b, "lt": lambda a, b: a < b, "lteq": lambda a, b: a <= b,
    "in": lambda a, b: a in b, "notin": lambda a, b: a not in b,
}  # fmt: skip

_OWN = {_LOOP: _loop, _CONCAT: _concat, _SLICE: _slice, _COMPARE: _compare}


@pass_context
def _finalize(context: Context, value: Any) -> str:
    """Turns a value into output. It takes the context so that Jinja does not call it when it
    compiles a template."""
    return text(value)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        self.filters = FILTERS | _OWN
        self.tests = dict(TESTS)
        self.globals = dict(GLOBALS)
        self.macro_costs: dict[str, int] = {}
        self.loop_cost = STEP

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a filter by name, for `map`; refuses those that templates must not name."""
        if name in _OWN:
            raise SecurityError(f"no filter named {name!r}")
        return super().call_filter(name, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Computes `left operator right`; raises SecurityError if the result would be huge."""
        charge()
        if operator == "*":
            multiplied(left, right)
        elif operator == "%" and isinstance(left, str):
            return formatted(left, right)
        elif operator == "+" and isinstance(left, str | list | tuple | dict):
            if isinstance(left, dict) or isinstance(right, dict):
                measure([left, right])
            if isinstance(right, str | list | tuple | dict):
                limited(len(left) + len(right))
        elif operator == "**" and not (abs(left) < 1 << 32 and abs(right) < 64):
            raise SecurityError("a power of numbers this large")
        result = number(super().call_binop(context, operator, left, right))
        charge(len(result) if isinstance(result, str) else 0)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a macro, a function of `GLOBALS`, or a method of `METHODS`."""
        charge(STEP * (1 + len(args) + len(kwargs)))
        if isinstance(__obj, Macro):
            charge(8 * STEP)
            charge(__self.macro_costs.get(__obj.name, __self.macro_costs.get("caller", STEP)))
        elif isinstance(__obj, LoopContext):
            args = (counted(args[0], __self.loop_cost), *args[1:]) if args else args
        elif isinstance(__obj, Undefined) or getattr(__obj, "__name__", "") == "cycle":
            pass
        elif not isinstance(__obj, partial) and __obj not in GLOBALS.values():
            raise SecurityError(f"a {type(__obj).__name__} cannot be called")
        return super().call(__context, __obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Looks up `obj.attribute`."""
        charge()
        if isinstance(obj, Namespace | Undefined):
            return super().getattr(obj, attribute)
        if isinstance(obj, LoopContext):
            if attribute == "changed":
                return self.unsafe_undefined(obj, attribute)
            return super().getattr(obj, attribute)
        for kind, methods in METHODS.items():
            if isinstance(obj, kind) and attribute in methods:
                return partial(methods[attribute], obj)
        if isinstance(attribute, str) and hasattr(type(obj), attribute):
            return self.unsafe_undefined(obj, attribute)
        return self._item(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Looks up `obj[argument]`, or a method of that name."""
        charge()
        item = self._item(obj, argument)
        if isinstance(item, Undefined) and isinstance(argument, str):
            return self.getattr(obj, argument)
        return item

    def _item(self, obj: Any, argument: Any) -> Any:
        measure(argument)
        try:
            return obj[argument]
        except (TypeError, LookupError):
            return self.undefined(obj=obj, name=argument)
