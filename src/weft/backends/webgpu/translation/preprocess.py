"""Macros and conditions of the kernel files: the part of C's preprocessor that they use.

It keeps the number of lines and `#line`, so that errors name the place in the kernel file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weft.backends.webgpu.translation.types import TranslationError

_TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|\"[^\"]*\"|##|\s+|.")
_NAME = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DEEP = 200
"""Maximum number of macros inside of each other."""


class _Macro(NamedTuple):
    params: tuple[str, ...] | None
    """None: it has no parentheses."""
    body: tuple[str, ...]


class Preprocessor:
    """The macros that are defined, and the text that they make."""

    def __init__(self, defines: Iterable[str]) -> None:
        """`defines` are `NAME`, `NAME=VALUE` or `NAME(PARAMS)=VALUE`."""
        self._macros: dict[str, _Macro] = {}
        for define in defines:
            name, _, value = define.partition("=")
            self._define(f"{name} {value or '1'}")

    def process(self, source: str) -> str:
        """The source without macros, conditions and comments; every line keeps its place."""
        source = _COMMENT.sub(lambda m: " " + "\n" * m[0].count("\n"), source)
        lines = source.split("\n")
        out: list[str] = []
        active = [True]
        taken: list[bool] = []
        i = 0
        while i < len(lines):
            line, n = lines[i], 1
            while line.endswith("\\") and i + n < len(lines):
                line, n = line[:-1] + lines[i + n], n + 1
            i += n
            stripped = line.lstrip()
            if stripped.startswith("#"):
                out += [self._directive(stripped[1:].strip(), active, taken)] + [""] * (n - 1)
                continue
            if not active[-1]:
                out += [""] * n
                continue
            while line.count("(") > line.count(")") and i < len(lines):
                if lines[i].lstrip().startswith("#"):
                    break  # arguments of a macro may stand on several lines
                line, n, i = f"{line} {lines[i]}", n + 1, i + 1
            out += ["".join(self._expand(_TOKEN.findall(line), frozenset()))] + [""] * (n - 1)
        return "\n".join(out)

    def _directive(self, text: str, active: list[bool], taken: list[bool]) -> str:
        word, _, rest = text.partition(" ")
        rest = rest.strip()
        if word in ("if", "ifdef", "ifndef"):
            true = active[-1] and self._is_true(word, rest)
            taken.append(true)
            active.append(true)
        elif word in ("elif", "else"):
            true = active[-2] and not taken[-1] and (word == "else" or self._is_true("if", rest))
            taken[-1] = taken[-1] or true
            active[-1] = true
        elif word == "endif":
            active.pop()
            taken.pop()
        elif active[-1] and word == "define":
            self._define(rest)
        elif active[-1] and word == "undef":
            self._macros.pop(rest, None)
        elif word == "line":
            return f"#line {rest}"
        elif active[-1] and word not in ("pragma", ""):
            raise TranslationError(f"#{word} is not known")
        return ""

    def _is_true(self, word: str, text: str) -> bool:
        if word != "if":
            return (text in self._macros) == (word == "ifdef")
        text = re.sub(
            r"defined\s*\(\s*(\w+)\s*\)|defined\s+(\w+)",
            lambda m: str(int((m[1] or m[2]) in self._macros)),
            text,
        )
        text = _NAME.sub("0", "".join(self._expand(_TOKEN.findall(text), frozenset())))
        text = text.replace("&&", " and ").replace("||", " or ")
        text = re.sub(r"!(?!=)", " not ", text)
        if not re.fullmatch(r"[\d\s()<>=!+*/%-]*(?:(?:and|or|not)[\d\s()<>=!+*/%-]*)*", text):
            raise TranslationError(f"#if {text} is not known")
        return bool(eval(text, {"__builtins__": {}}))

    def _define(self, text: str) -> None:
        found = re.match(r"(\w+)(\(([^)]*)\))?\s*(.*)", text, re.DOTALL)
        if found is None:
            raise TranslationError(f"#define {text} is not known")
        params = None
        if found[2] is not None:
            params = tuple(p.strip() for p in found[3].split(",") if p.strip())
        self._macros[found[1]] = _Macro(params, tuple(_TOKEN.findall(found[4].rstrip())))

    def _expand(self, tokens: list[str], hidden: frozenset[str]) -> Iterator[str]:
        """The tokens with macros replaced, except `hidden` ones, which are being replaced."""
        if len(hidden) > _DEEP:
            raise TranslationError("macros are nested too deeply")
        i = 0
        while i < len(tokens):
            token = tokens[i]
            i += 1
            macro = None if token in hidden else self._macros.get(token)
            if macro is None:
                yield token
                continue
            body = list(macro.body)
            if macro.params is not None:
                args, end = _arguments(tokens, i)
                if args is None:
                    yield token
                    continue
                i = end
                body = self._filled(macro, args, hidden)
            yield from self._expand(_joined(body), hidden | {token})

    def _filled(self, macro: _Macro, args: list[list[str]], hidden: frozenset[str]) -> list[str]:
        """The body of a macro with its arguments: expanded, unless they are joined by `##`."""
        assert macro.params is not None
        given = dict(zip(macro.params, args, strict=False))
        body, out = [t for t in macro.body], list[str]()
        for k, token in enumerate(body):
            if token not in given:
                out.append(token)
                continue
            beside = "##" in (_beside(body, k, -1), _beside(body, k, 1))
            arg = given[token]
            out += arg if beside else list(self._expand(arg, hidden))
        return out


def _beside(tokens: list[str], at: int, step: int) -> str:
    """The next token that is not space."""
    at += step
    while 0 <= at < len(tokens) and tokens[at].isspace():
        at += step
    return tokens[at] if 0 <= at < len(tokens) else ""


def _arguments(tokens: list[str], at: int) -> tuple[list[list[str]] | None, int]:
    """The arguments in the parentheses at `at`, and the place behind them; None without such."""
    while at < len(tokens) and tokens[at].isspace():
        at += 1
    if at >= len(tokens) or tokens[at] != "(":
        return None, at
    args: list[list[str]] = [[]]
    depth = 0
    for i in range(at, len(tokens)):
        token = tokens[i]
        if token == "(":
            depth += 1
            if depth == 1:
                continue
        elif token == ")":
            depth -= 1
            if not depth:
                return [_trimmed(arg) for arg in args], i + 1
        if token == "," and depth == 1:
            args.append([])
        else:
            args[-1].append(token)
    raise TranslationError("the arguments of a macro have no end")


def _trimmed(tokens: list[str]) -> list[str]:
    start, end = 0, len(tokens)
    while start < end and tokens[start].isspace():
        start += 1
    while end > start and tokens[end - 1].isspace():
        end -= 1
    return tokens[start:end]


def _joined(tokens: list[str]) -> list[str]:
    """The tokens with the two sides of each `##` as one."""
    if "##" not in tokens:
        return tokens
    text = re.sub(r"\s*##\s*", "", "".join(tokens))
    return _TOKEN.findall(text)
