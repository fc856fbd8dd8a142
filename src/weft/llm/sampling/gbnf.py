"""Grammars in llama.cpp's notation (GBNF), written again in Lark's for llguidance.

llguidance takes the longest text for a terminal and never goes back, so `[a-z]* "b"` as two
terminals would refuse "aab". Here each terminal is a single character, between which nothing has to
be chosen, and the parser follows every reading of a text, as llama.cpp does.

The process that compiles constraints loads this file by its path: it imports nothing of weft.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["is_gbnf", "lark_of", "token_names"]

_LAST = 0x10FFFF
_SURROGATES = 0xD800, 0xDFFF
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_DIGITS = re.compile(r"[0-9]+")
_TIMES = re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]+)?\s*)?\}")
_TOKEN = re.compile(r"!?<(?:\[([0-9]+)\]|([^>\r\n]*))>")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_ESCAPES |= {"'": "'", "?": "?", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v", "0": "\0"}
"""The escapes of llama.cpp, and behind them those that only xgrammar has."""
_NOTHING = '""'
_MOST_TIMES = 2000
"""Maximum number of times that an item must stand one behind the other, as in llama.cpp."""


def is_gbnf(text: str) -> bool:
    """True if a grammar has a rule of GBNF, False if it is in Lark's notation."""
    return re.search(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))", text) is None


def token_names(text: str) -> set[str]:
    """The names of tokens that a grammar in GBNF may have, such as "<think>"."""
    if not is_gbnf(text):
        return set()
    return {f"<{match[2]}>" for match in _TOKEN.finditer(text) if match[2]}


def lark_of(text: str, tokens: Mapping[str, int]) -> str:
    """The grammar in Lark's notation; `tokens` has the id of each name of a token.

    Raises ValueError for what is not a grammar, with the line."""
    return _Grammar(text, tokens).lark()


class _Group:
    """An alternation while it is read: of a rule, or between parentheses."""

    def __init__(self) -> None:
        self.alternatives: list[str] = []
        self.items: list[str] = []
        self.repeatable = False
        """True if the last item of `items` may be repeated."""

    def add(self, item: str) -> None:
        self.items.append(item)
        self.repeatable = True

    def end_alternative(self) -> None:
        self.alternatives.append(" ".join(self.items) or _NOTHING)
        self.items, self.repeatable = [], False

    def text(self) -> str:
        self.end_alternative()
        return " | ".join(dict.fromkeys(self.alternatives))


class _Grammar:
    """Reads a grammar, rule by rule."""

    def __init__(self, text: str, tokens: Mapping[str, int]) -> None:
        self._text = text
        self._at = 0
        self._tokens = tokens
        self._numbers: dict[str, int] = {}
        """The number of each name of a rule, in the order in which they occur."""
        self._rules: dict[int, str] = {}
        self._terminals: dict[str, str] = {}
        self._uses: dict[int, int] = {}
        """Where a rule is used first."""

    def lark(self) -> str:
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            self._rule()
        for number, at in self._uses.items():
            if number not in self._rules:
                self._at = at
                raise self._error(f"there is no rule {self._name(number)!r}")
        if self._numbers.get("root") not in self._rules:
            raise ValueError("the grammar has no rule 'root'")
        lines = [f"start: r{self._numbers['root']}"]
        lines += [f"r{number}: {rule}" for number, rule in self._rules.items()]
        lines += [f"{name}: {regex}" for regex, name in self._terminals.items()]
        return "\n".join(lines) + "\n"

    def _rule(self) -> None:
        number = self._number(self._read(_NAME, "the name of a rule"))
        self._skip(_SPACE)
        if not self._text.startswith("::=", self._at):
            raise self._error("expected ::=")
        self._at += 3
        self._skip(_SPACE_AND_LINES)
        self._rules[number] = self._alternation()  # a later rule replaces one of its name
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            raise self._error("expected the end of the line")
        self._skip(_SPACE_AND_LINES)

    def _alternation(self) -> str:
        """The right side of a rule. Groups are on a list of ours, since Python's stack is short."""
        groups = [_Group()]
        while self._at < len(self._text):
            group, sign = groups[-1], self._text[self._at]
            nested = len(groups) > 1
            if sign == "(":
                self._at += 1
                groups.append(_Group())
                self._skip(_SPACE_AND_LINES)
                continue
            if sign == "|" or (sign in "\r\n" and self._goes_on()):
                self._at += 1
                group.end_alternative()
                self._skip(_SPACE_AND_LINES)
                continue
            if sign == ")" and nested:
                self._at += 1
                groups.pop()
                groups[-1].add(f"({group.text()})")
            elif sign in "*+?{":
                self._repeat(group, sign)
            elif not self._item(group, sign):
                break
            self._skip(_SPACE_AND_LINES if len(groups) > 1 else _SPACE)
        if len(groups) > 1:
            raise self._error("expected )")
        return groups[0].text()

    def _goes_on(self) -> bool:
        """True if the next line begins with |, where llama.cpp wants it at the end of this one."""
        space = _SPACE_AND_LINES.match(self._text, self._at)
        assert space is not None
        if not self._text.startswith("|", space.end()):
            return False
        self._at = space.end()
        return True

    def _item(self, group: _Group, sign: str) -> bool:
        """Reads an item into `group`; False if none begins with `sign`."""
        if sign == '"':
            self._literal(group)
        elif sign == "[":
            self._class(group)
        elif sign == ".":
            self._at += 1
            group.add(self._terminal([(0, _LAST)], inverse=False))
        elif sign in "<!":
            group.add(self._token())
        elif _NAME.match(sign):
            at = self._at
            number = self._number(self._read(_NAME, "the name of a rule"))
            self._uses.setdefault(number, at)
            group.add(f"r{number}")
        else:
            return False
        return True

    def _literal(self, group: _Group) -> None:
        self._at += 1
        codes: list[int] = []
        while not self._text.startswith('"', self._at):
            codes.append(self._character('"'))
        self._at += 1
        items = [self._terminal([(code, code)], inverse=False) for code in codes]
        if len(items) > 1 and self._repetition_follows():
            items = [f"({' '.join(items)})"]
        group.items += items
        group.repeatable = bool(items)

    def _repetition_follows(self) -> bool:
        # white space may stand between
        space = _SPACE_AND_LINES.match(self._text, self._at)
        assert space is not None
        return self._text[space.end() : space.end() + 1] in ("*", "+", "?", "{")

    def _class(self, group: _Group) -> None:
        self._at += 1
        inverse = self._text.startswith("^", self._at)
        self._at += inverse
        ranges: list[tuple[int, int]] = []
        while not self._text.startswith("]", self._at):
            first = last = self._character("]")
            if self._text.startswith("-", self._at) and self._text[self._at + 1 :][:1] != "]":
                self._at += 1
                last = self._character("]")
            ranges.append((first, last))
        self._at += 1
        if ranges:
            group.add(self._terminal(ranges, inverse))
        else:  # llama.cpp reads no character for [] and [^]
            group.repeatable = False

    def _character(self, end: str) -> int:
        """Reads a character or an escape; returns its code point."""
        sign = self._text[self._at : self._at + 1]
        if not sign:
            raise self._error(f"expected {end}")
        self._at += 1
        if sign != "\\":
            return ord(sign)
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter in _HEX:
            digits = self._text[self._at : self._at + _HEX[letter]]
            if len(digits) < _HEX[letter] or not re.fullmatch("[0-9a-fA-F]+", digits):
                raise self._error(f"expected {_HEX[letter]} hexadecimal digits")
            self._at += len(digits)
            return int(digits, 16)
        if letter not in _ESCAPES or not letter:
            self._at -= 2
            raise self._error(f"there is no escape \\{letter}")
        return ord(_ESCAPES[letter])

    def _token(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error("expected a token, <[id]> or <name>")
        if match[1]:
            number: int | None = int(match[1])
        else:
            name = f"<{match[2]}>"
            number = self._tokens.get(name)
            if number is None:
                raise self._error(f"{name} is not a token of this vocabulary")
        self._at = match.end()
        return f"<[^{number}]>" if match[0].startswith("!") else f"<[{number}]>"

    def _repeat(self, group: _Group, sign: str) -> None:
        if not group.repeatable:
            raise self._error(f"there is nothing in front of {sign} that could be repeated")
        item = group.items[-1]
        if item[-1:] in "*+?}":
            item = f"({item})"
        if sign != "{":
            self._at += 1
            group.items[-1] = item + sign
            return
        match = _TIMES.match(self._text, self._at)
        if match is None:
            raise self._error("expected {m}, {m,} or {m,n}")
        least = int(match[1])
        most = least if match[2] is None else int(match[3]) if match[3] else None
        if least > _MOST_TIMES:
            raise self._error(f"{least} repetitions; at least {_MOST_TIMES} may be asked for")
        if most is not None and most < least:
            raise self._error(f"at least {least} repetitions and at most {most}")
        self._at = match.end()
        times = f"{{{least},{'' if most is None else most}}}"
        group.items[-1] = _NOTHING if most == 0 else item + times

    def _terminal(self, ranges: list[tuple[int, int]], inverse: bool) -> str:
        """The name of the terminal for one character of `ranges`, or one outside them."""
        regex = _regex(ranges, inverse)
        return self._terminals.setdefault(regex, f"C{len(self._terminals)}")

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _name(self, number: int) -> str:
        return list(self._numbers)[number]

    def _read(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._error(f"expected {what}")
        self._at = match.end()
        return match[0]

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _error(self, what: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at : self._at + 20].split("\n")[0]
        return ValueError(f"line {line}: {what}" + (f" at {rest!r}" if rest else " at its end"))


def _regex(ranges: list[tuple[int, int]], inverse: bool) -> str:
    """A regular expression for one character of `ranges`, or one outside them."""
    parts = []
    for first, last in sorted(ranges):
        for low, high in (
            (first, min(last, _SURROGATES[0] - 1)),
            (max(first, _SURROGATES[1] + 1), min(last, _LAST)),
        ):
            if low <= high:
                parts.append(f"\\x{{{low:X}}}" + (f"-\\x{{{high:X}}}" if high > low else ""))
    if not parts:
        parts, inverse = [f"\\x{{0}}-\\x{{{_LAST:X}}}"], not inverse
    return f"/[{'^' if inverse else ''}{''.join(parts)}]/"
