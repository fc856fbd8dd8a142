"""The filters, tests, methods and functions that a chat template may use, each of bounded cost.

They are those that the templates of models use; any other is refused by name. Here are also the
forms of calls and of their ids that every template can read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.runtime import Undefined
from jinja2.sandbox import safe_range
from jinja2.tests import TESTS as DEFAULT_TESTS
from jinja2.utils import Namespace, pass_environment

from weft.llm.chat.arguments import Arguments
from weft.llm.chat.meter import STEP, charge, counted, measure, number, text

MAX_TEXT = 1 << 24
"""Maximum number of characters or elements of a value."""


class Refusal(Exception):
    """The exception that a template raises with `raise_exception`."""


# ---- helpers of operators, filters and methods ----


def limited(n: int) -> None:
    """Pays for a new value of `n` characters or elements; raises SecurityError if it is huge."""
    if n > MAX_TEXT:
        raise SecurityError(f"a value of more than {MAX_TEXT} characters or elements")
    charge(STEP + n)


def multiplied(left: Any, right: Any) -> None:
    """Pays for `left * right`."""
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            limited(len(value) * max(times, 0) * (1 if isinstance(value, str) else STEP))


_PERCENT = re.compile(r"%(?:\(([^()%]*)\))?([-#0 +]*)(\d*)(?:\.(\d*))?([diouxXeEfFgGcrsa%])")


def formatted(form: str, values: Any) -> str:
    """Computes `form % values`; widths must be written in `form`, with at most three digits."""
    specs = list(_PERCENT.finditer(form))
    is_odd = "%" in _PERCENT.sub("", form)
    if is_odd or any(len(s[3]) > 3 or len(s[4] or "") > 3 for s in specs):
        raise SecurityError("a format with a width that is too large or not a number")
    limited(len(form) + len(specs) * (1000 + _printed(values)))
    return str(form % values)


_FIELD = re.compile(r"[^{}]?[<>=^]?[-+ ]?#?0?\d{0,3}[,_]?(?:\.\d{1,3})?[a-zA-Z%]?")
_NAME = re.compile(r"\w*")


def _format(form: str, *args: Any, **kwargs: Any) -> str:
    """Computes `form.format(...)`, with plain names and short widths only."""
    charge(len(form))
    fields = [field for field in Formatter().parse(form) if field[1] is not None]
    for _, name, spec, _ in fields:
        if not _NAME.fullmatch(name or "") or not _FIELD.fullmatch(spec or ""):
            raise SecurityError("a format field that is more than a name and a width below 1000")
    limited(len(form) + len(fields) * (1000 + _printed([args, kwargs])))
    return form.format(*args, **kwargs)


def _printed(values: Any) -> int:
    """An upper bound of the characters that `values` take when printed."""
    parts = [*values.values()] if isinstance(values, dict) else values
    for part in parts if isinstance(parts, list | tuple) else [parts]:
        if not isinstance(part, str | int | float | list | tuple | dict | None | Undefined):
            raise SecurityError(f"a {type(part).__name__} in a format")
    return 10 * measure(values)


def _replaced(s: str, old: str, new: str, count: int | None = None) -> str:
    s, old, new = text(s), text(old), text(new)
    charge(len(s))
    times = s.count(old) if count is None or count < 0 else min(s.count(old), count)
    limited(len(s) + times * len(new))
    return s.replace(old, new) if count is None else s.replace(old, new, count)


def _joined(values: Iterable[Any], between: Any = "") -> str:
    parts = [text(part) for part in counted(values)]
    limited(sum(map(len, parts)) + len(text(between)) * len(parts))
    return str(between).join(parts)


# ---- methods ----


def _plain(name: str) -> Callable[..., Any]:
    """Wraps a method whose result has about the size of the object, so that it pays."""

    def call(self: Any, *args: Any) -> Any:
        charge(STEP + 2 * len(self))
        for arg in args:
            measure(arg)
        result = getattr(self, name)(*args)
        if isinstance(result, list):
            charge(STEP * len(result))
        return result

    return call


_OF_TEXT = (
    "strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith upper "
    "lower title capitalize swapcase casefold find rfind index rindex count removeprefix "
    "removesuffix isdigit isdecimal isnumeric isalpha isalnum isspace isupper islower istitle"
).split()


def _appended(self: list[Any], value: Any) -> None:
    """Appends text or a number: a list that holds itself would have no end."""
    if not isinstance(value, str | int | float | None):
        raise SecurityError(f"append of a {type(value).__name__}; only text and numbers")
    charge(STEP)
    self.append(value)


def _popped(self: list[Any], index: int = -1) -> Any:
    charge(STEP + len(self))
    return self.pop(index)


METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    str: {
        **{name: _plain(name) for name in _OF_TEXT},
        "replace": _replaced,
        "format": _format,
        "join": lambda self, values: _joined(values, self),
    },
    dict: {name: _plain(name) for name in ("items", "keys", "values", "get", "copy")},
    list: {
        "index": lambda self, value: (measure(self), measure(value), self.index(value))[-1],
        "count": lambda self, value: (measure(self), measure(value), self.count(value))[-1],
        "copy": _plain("copy"),
        "append": _appended,
        "pop": _popped,
    },
}
METHODS[tuple] = {name: METHODS[list][name] for name in ("index", "count")}
METHODS[dict]["get"] = lambda self, key, default=None: (measure(key), self.get(key, default))[-1]


# ---- filters and tests ----


def _paid(function: Any, *, deep: bool = True, times: int = 2) -> Callable[..., Any]:
    """Wraps a filter or test so that it pays for its arguments: for everything in them, `times`
    over, if `deep`, else for their elements once."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        charge(4 * STEP)
        args = tuple(_argument(arg, deep, times) for arg in args)
        kwargs = {key: _argument(arg, deep, times) for key, arg in kwargs.items()}
        return number(function(*args, **kwargs))

    return call


def _argument(value: Any, deep: bool, times: int) -> Any:
    if isinstance(value, range | Iterator):
        value = list(counted(value)) if deep else counted(value)
    if deep and isinstance(value, str | int | list | tuple | dict):
        charge((times - 1) * measure(value))
    elif isinstance(value, list | tuple | dict | str):
        charge(len(value) if isinstance(value, str) else STEP * len(value))
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if (isinstance(indent, int) and indent > 32) or (isinstance(indent, str) and len(indent) > 32):
        raise SecurityError("an indent of more than 32")
    if separators is not None and sum(map(len, separators)) > 32:
        raise SecurityError("separators of more than 32 characters")
    if isinstance(value, Iterator):  # of map, select and reject
        value = list(counted(value))
    charge((11 if ensure_ascii else 5) * measure(value))
    if isinstance(value, Arguments) and (indent, separators, sort_keys) == (None, None, False):
        return str(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    s = text(s)
    gap = width if isinstance(width, str) else " " * min(max(width, 0), 1000)
    if gap != width and len(gap) != width:
        raise SecurityError("an indent of more than 1000")
    limited(len(s) + (s.count("\n") + 2) * len(gap))
    return str(DEFAULT_FILTERS["indent"](s, width, first, blank))


@pass_environment
def _join(environment: Any, values: Any, d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = [environment.getitem(value, attribute) for value in counted(values)]
    return _joined(values, d)


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if not -20 <= precision <= 20:
        raise SecurityError("a precision beyond 20 digits")
    return DEFAULT_FILTERS["round"](value, precision, method)


@pass_environment
def _sum(environment: Any, values: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for value in counted(values):
        value = value if attribute is None else environment.getitem(value, attribute)
        if not isinstance(value, int | float) or not isinstance(total, int | float):
            raise SecurityError("the filter sum takes numbers only")
        total = number(total + value)
    return total


@pass_environment
def _unique(environment: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
    values = list(counted(values))
    for value in values:
        if not isinstance(value, str | int | float | None | dict):
            raise SecurityError(f"unique of a {type(value).__name__}")
    measure(values)
    return DEFAULT_FILTERS["unique"](environment, values, *args, **kwargs)


_DEEP = "capitalize float int lower max min title trim upper abs".split()
_SHALLOW = (
    "count d default first items last length map reject rejectattr reverse safe select selectattr"
).split()

FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _paid(DEFAULT_FILTERS[name]) for name in _DEEP},
    **{name: _paid(DEFAULT_FILTERS[name], times=24) for name in ("sort", "dictsort")},
    **{name: _paid(DEFAULT_FILTERS[name], deep=False) for name in _SHALLOW},
    "list": lambda values: list(counted(values)),
    "string": text,
    "safe": lambda value: value,
    "tojson": _to_json,
    "replace": _paid(_replaced),
    "indent": _indent,
    "join": _join,
    "round": _paid(_round),
    "sum": _sum,
    "unique": _unique,
    "format": lambda form, *args, **kwargs: formatted(text(form), kwargs or args),
}

_CHEAP = (
    "boolean callable defined divisibleby even false filter float integer iterable mapping none "
    "number odd sameas sequence string test true undefined"
).split()

TESTS: dict[str, Callable[..., Any]] = {
    name: _paid(test, deep=name not in _CHEAP) for name, test in DEFAULT_TESTS.items()
}


# ---- functions ----

_TIME = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*")


def _time(form: str) -> str:
    if len(form) > 256 or not _TIME.fullmatch(form):
        raise SecurityError("a format of time that is long or has a width")
    return datetime.now().strftime(form)


def _refuse(message: Any = "") -> None:
    raise Refusal(text(message)[:1000])


def _dict(*pairs: Any, **named: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        measure(pair)
        values |= dict(pair)
    if not all(isinstance(key, str) for key in values):
        raise SecurityError("dict() with keys that are not text")
    return values | named


GLOBALS: dict[str, Callable[..., Any]] = {
    "range": safe_range,
    "dict": _dict,
    "namespace": lambda *pairs, **named: Namespace(_dict(*pairs, **named)),
    "raise_exception": _refuse,
    "strftime_now": _time,
}
