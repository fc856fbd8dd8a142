"""Prints docs/api.md: every public name of `weft` with its signature and docstring.

python docs/make_api.py > docs/api.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import weft

GROUPS = {
    "Models": (
        "LLM",
        "AsyncLLM",
        "Completion",
        "SamplingParams",
        "Speaker",
        "Transcriber",
        "open_gguf",
    ),
    "Graphs": ("Graph", "Tensor", "Sym", "input", "constant", "state", "DType", "find_dtype"),
    "Running": ("compile", "Program", "Session", "Scheduler", "ThreadOptions", "from_torch"),
}
"""Headings and names; errors and what is left follow."""


def page() -> str:
    """The whole page."""
    names = [n for n in weft.__all__ if not isinstance(getattr(weft, n), (ModuleType, str))]
    names += ["compile", "input"]  # `import *` leaves them out
    errors = [n for n in names if _is_error(getattr(weft, n))]
    grouped = {title: [n for n in row if n in names] for title, row in GROUPS.items()}
    known = {n for row in grouped.values() for n in row} | set(errors)
    grouped["More"] = [n for n in names if n not in known]
    lines = [
        "# The Python API",
        "",
        "Made by `make docs` from the docstrings; `help(weft.LLM)` says the same.",
        "",
    ]
    for title, row in grouped.items():
        if row:
            lines += [f"## {title}", ""]
            for name in row:
                lines += _entry(name, getattr(weft, name), 3)
    lines += ["## Errors", "", *_errors(errors)]
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: Any, level: int) -> Iterator[str]:
    hashes = "#" * level
    yield f"{hashes} `{name}`"
    yield ""
    if inspect.isclass(value):
        yield from _class(name, value, level)
    else:
        yield from _signature(name, value)
        yield from _doc(value)


def _class(name: str, kind: type, level: int) -> Iterator[str]:
    yield from _doc(kind)
    if "__init__" in vars(kind) and not hasattr(kind, "__dataclass_fields__"):
        yield from _signature(name, kind)
        yield from _doc(vars(kind)["__init__"])
    own = [base for base in reversed(kind.__mro__) if base.__module__.startswith("weft.")]
    members = {name: value for base in own for name, value in vars(base).items()}
    for member, value in members.items():
        if member.startswith("_"):
            continue
        value = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(value, property) or hasattr(value, "func"):  # cached properties too
            getter = value.fget if isinstance(value, property) else value.func
            yield f"{'#' * (level + 1)} `{name}.{member}`"
            yield ""
            yield from _doc(getter)
        elif callable(value):
            yield from _entry(f"{name}.{member}", value, level + 1)


def _signature(name: str, value: Callable[..., Any]) -> Iterator[str]:
    text = str(inspect.signature(value))
    text = re.sub(r"<[^<>]*? at 0x[0-9a-f]+>", "...", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", text)  # short names of types
    text = re.sub(r"""(: |-> )(["'])(.*?)\2(?=,|\)| =|$)""", r"\1\3", text)  # annotations are text
    text = text.replace("(self, ", "(").replace("(self)", "()")
    if len(name) + len(text) > 96:
        inner, result = (
            text[1:].rsplit(")", 1) if ") ->" not in text else text[1:].rsplit(") ->", 1)
        )
        result = f" ->{result}" if ") ->" in text else result
        parts = re.split(r", (?=[*/a-z_][\w*]*(?::|=|,|$)|\*|/)", inner)
        text = "(\n" + "".join(f"    {part},\n" for part in parts) + ")" + result
    yield "```python"
    yield f"{name}{text}"
    yield "```"
    yield ""


def _doc(value: Any) -> Iterator[str]:
    doc = getattr(value, "__doc__", None)
    if doc:
        yield inspect.cleandoc(doc)
        yield ""


def _errors(names: list[str]) -> Iterator[str]:
    for name in names:
        kind = getattr(weft, name)
        bases = ", ".join(f"`{b.__name__}`" for b in kind.__bases__)
        yield f"- `{name}` ({bases}): {inspect.cleandoc(kind.__doc__ or '')}"


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


if __name__ == "__main__":
    print(page(), end="")
