"""Chat templates in Jinja: the environment that Hugging Face's templates are written for.

A template is text from a file that somebody else made, so it runs in Jinja's immutable sandbox: no
attributes of Python objects beyond the harmless ones, ranges of at most 100,000 numbers, and here
no products, powers or results of absurd size. What templates may use is what `apply_chat_template`
of the transformers library gives them: `raise_exception`, `strftime_now`, `tojson` without HTML
escapes, `break` and `continue`, and `{% generation %}` blocks (they mark text and change nothing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from weft.errors import ChatError

__all__ = ["JinjaTemplate"]

MAX_TEXT = 1 << 24
"""Characters that a template may make, all in all; a million tokens are some four million."""


_FAILURES = (TemplateError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


class JinjaTemplate:
    """One compiled template."""

    def __init__(self, source: str, where: str) -> None:
        """`where` names the template in errors. Raises ChatError where it does not compile."""
        self._where = where
        environment = _Environment()
        try:
            self._names = _names(environment.parse(source))
            self._template = environment.from_string(source)
        except (TemplateSyntaxError, RecursionError, SecurityError) as error:
            line = getattr(error, "lineno", None)
            at = f", line {line}" if line else ""
            raise ChatError(
                f"{where}{at}: the template does not compile: {error}; give another one, or use a "
                "newer file of this model"
            ) from None

    def reads(self, name: str) -> bool:
        """Whether it mentions a variable, an attribute or a key of that name."""
        return name in self._names

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises ChatError where the template refuses the variables or fails."""
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(**variables):
                size += len(part)
                if size > MAX_TEXT:
                    raise SecurityError(f"it makes more than {MAX_TEXT} characters")
                parts.append(part)
        except _Refusal as error:
            raise ChatError(f"{self._where} refuses these messages: {error}") from None
        except RecursionError:
            raise ChatError(f"{self._where} fails: it calls itself without end") from None
        except (
            TemplateError,
            ArithmeticError,
            LookupError,
            MemoryError,
            TypeError,
            ValueError,
        ) as error:
            raise ChatError(
                f"{self._where} fails on these messages: {type(error).__name__}: {error}"
            ) from None
        return "".join(parts)


def _names(template: nodes.Template) -> frozenset[str]:
    """Names of variables and attributes, and strings, which may be keys."""
    kinds = ((nodes.Name, "name"), (nodes.Getattr, "attr"), (nodes.Const, "value"))
    found = (getattr(n, field) for kind, field in kinds for n in template.find_all(kind))
    return frozenset(name for name in found if isinstance(name, str))


class _Refusal(Exception):
    """What `raise_exception` raises."""


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: marks what the model wrote; here just its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, unless it would be huge."""
        for text, times in ((left, right), (right, left)):
            if operator == "*" and isinstance(text, str | list | tuple) and isinstance(times, int):
                if len(text) * times > MAX_TEXT:
                    raise SecurityError(f"a product of more than {MAX_TEXT} characters")
        if operator == "**" and not (abs(left) < 1 << 32 and abs(right) < 64):
            raise SecurityError("a power of numbers this large")
        return super().call_binop(context, operator, left, right)


def _refuse(message: str) -> None:
    raise _Refusal(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
