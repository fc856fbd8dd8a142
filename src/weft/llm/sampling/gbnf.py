"""Grammars in llama.cpp's notation (GBNF), written again in Lark's for llguidance.

llguidance takes the longest text for a terminal and never goes back, so `[a-z]* "b"` as two
terminals would refuse "aab". Here a terminal is a single character, between which nothing has to
be chosen, and the parser follows every reading of a text, as llama.cpp does. A repeated character
is one terminal where no other reading could take its next character (`_Runs`), which is faster.

The process that compiles constraints loads this file by its path: it imports nothing of weft.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
_NO_CHARACTER = f"^\\x{{0}}-\\x{{{_LAST:X}}}"
_MOST_CHARS = 128
"""Maximum number of characters of a grammar in which runs are looked for."""
_UNROLLED = 8
"""Maximum number of times up to which a character that stands n times is written n times."""
_MOST_TIMES = 2000
"""Maximum number of times that an item must stand one behind the other, as in llama.cpp."""


def is_gbnf(text: str) -> bool:
    """True if a grammar has a rule of GBNF, False if it is in Lark's notation."""
    return re.search(r"(?m)^[^\S\n]*(%llguidance\b|start\s*:(?!:=))", text) is None


def token_names(text: str) -> set[str]:
    """The names of tokens that a grammar in GBNF may have, such as "<think>"."""
    if not is_gbnf(text):
        return set()
    names = set()
    for part in text.split(">")[:-1]:  # _TOKEN would search on from every "<" to the end
        name = re.split(r"[\r\n]", part)[-1].partition("<")[2]
        if name and not re.fullmatch(r"\[[0-9]+\]", name):
            names.add(f"<{name}>")
    return names


def lark_of(text: str, tokens: Mapping[str, int], ends: Sequence[int] = ()) -> str:
    """The grammar in Lark's notation; `tokens` has the id of each name of a token, and `ends` are
    the ids of tokens that end a text.

    Raises ValueError for what is not a grammar, with the line."""
    return _Grammar(text, tokens, ends).lark()


@dataclass(eq=False)
class _Char:
    """One character of sorted, disjoint ranges."""

    ranges: tuple[tuple[int, int], ...]

    def overlaps(self, other: _Char) -> bool:
        """True if the first byte of a character may be one of either: the compiler's lexer follows
        bytes, and has ended a run before it sees the second one."""
        return any(a <= d and c <= b for a, b in self._leads for c, d in other._leads)

    @cached_property
    def _leads(self) -> list[tuple[int, int]]:
        """The first bytes of each range in UTF-8, which are in the order of the characters."""
        return [(_lead(low), _lead(high)) for low, high in self.ranges]


def _lead(code: int) -> int:
    return chr(code).encode(errors="surrogatepass")[0]


@dataclass(eq=False)
class _Repeated:
    """`item`, `least` to `most` times; without an end if `most` is None."""

    item: _Node
    least: int
    most: int | None
    within: bool = False
    """True if a repetition around it does the same."""


@dataclass(eq=False)
class _Rule:
    """A use of a rule, by its number."""

    number: int


@dataclass(eq=False)
class _All:
    """Items one behind the other."""

    items: list[_Node]


@dataclass(eq=False)
class _Any:
    """One of several."""

    items: list[_Node]


_Node = str | _Char | _Repeated | _Rule | _All | _Any
"""A part of a grammar; a token as Lark writes it is a string."""


class _Group:
    """An alternation while it is read: of a rule, or between parentheses."""

    def __init__(self) -> None:
        self._alternatives: list[list[_Node]] = []
        self.items: list[_Node] = []
        self.repeatable = False
        """True if the last item of `items` may be repeated."""

    def add(self, item: _Node) -> None:
        self.items.append(item)
        self.repeatable = True

    def end_alternative(self) -> None:
        self._alternatives.append(self.items)
        self.items, self.repeatable = [], False

    def node(self) -> _Node:
        self.end_alternative()
        nodes = [_All(items) if len(items) != 1 else items[0] for items in self._alternatives]
        return nodes[0] if len(nodes) == 1 else _Any(nodes)


class _Grammar:
    """Reads a grammar, rule by rule."""

    def __init__(self, text: str, tokens: Mapping[str, int], ends: Sequence[int]) -> None:
        self._text = text
        self._at = 0
        self._tokens = tokens
        self._ends = ends
        self._numbers: dict[str, int] = {}
        """The number of each name of a rule, in the order in which they occur."""
        self._rules: dict[int, _Node] = {}
        self._terminals: dict[str, str] = {}
        self._runs: set[_Repeated] = set()
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
        root = self._numbers["root"]
        self._runs = _Runs(self._rules, root).single
        lines = [f"start: r{root}"]
        lines += [f"r{number}: {self._lark(rule)}" for number, rule in self._rules.items()]
        lines += [f"{name}: {regex}" for regex, name in self._terminals.items()]
        return "\n".join(lines) + "\n"

    def _lark(self, node: _Node) -> str:
        """A part of the grammar in Lark's notation."""
        if isinstance(node, str):
            return node
        if isinstance(node, _Char):
            return self._terminal(node, "")
        if isinstance(node, _Rule):
            return f"r{node.number}"
        if isinstance(node, _All):
            return " ".join(map(self._lark, node.items)) or _NOTHING
        if isinstance(node, _Any):
            return f"({' | '.join(dict.fromkeys(map(self._lark, node.items)))})"
        most = "" if node.most is None else node.most
        if node.most == 0:
            return _NOTHING
        if node in self._runs:
            assert isinstance(node.item, _Char)
            run = self._terminal(node.item, f"{{{max(node.least, 1)},{most}}}")
            return run if node.least else f"{run}?"
        if node.within:
            return self._lark(node.item)
        return f"({self._lark(node.item)}){{{node.least},{most}}}"

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

    def _alternation(self) -> _Node:
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
                groups[-1].add(group.node())
            elif sign in "*+?{":
                self._repeat(group, sign)
            elif not self._item(group, sign):
                break
            self._skip(_SPACE_AND_LINES if len(groups) > 1 else _SPACE)
        if len(groups) > 1:
            raise self._error("expected )")
        return groups[0].node()

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
            group.add(_char([(0, _LAST)], inverse=False))
        elif sign in "<!":
            group.add(self._token())
        elif _NAME.match(sign):
            at = self._at
            number = self._number(self._read(_NAME, "the name of a rule"))
            self._uses.setdefault(number, at)
            group.add(_Rule(number))
        else:
            return False
        return True

    def _literal(self, group: _Group) -> None:
        self._at += 1
        codes: list[int] = []
        while not self._text.startswith('"', self._at):
            codes.append(self._character('"'))
        self._at += 1
        chars: list[_Node] = [_char([(code, code)], inverse=False) for code in codes]
        if chars:
            group.add(chars[0] if len(chars) == 1 else _All(chars))
        else:
            group.repeatable = False

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
            group.add(_char(ranges, inverse))
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
        if match[0].startswith("!"):  # an end is not one of the other tokens
            return f"<[^{','.join(map(str, {number, *self._ends}))}]>"
        return f"<[{number}]>"

    def _repeat(self, group: _Group, sign: str) -> None:
        if not group.repeatable:
            raise self._error(f"there is nothing in front of {sign} that could be repeated")
        item = group.items[-1]
        if sign != "{":
            self._at += 1
            if sign == "*" and isinstance(item, _Any):  # so that runs are found in it
                item = _Any([_run(part) for part in item.items])
            group.items[-1] = _Repeated(item, int(sign == "+"), 1 if sign == "?" else None)
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
        if most is not None and most > _MOST_TIMES:
            most = None  # as in llama.cpp
        if isinstance(item, _Char) and least == most and least <= _UNROLLED:
            group.items[-1] = _All([item] * least)
        else:
            group.items[-1] = _Repeated(item, least, most)

    def _terminal(self, char: _Char, times: str) -> str:
        """The name of the terminal for a character, `times` in the notation of expressions."""
        parts = "".join(
            f"\\x{{{a:X}}}" + (f"-\\x{{{b:X}}}" if b > a else "") for a, b in char.ranges
        )
        regex = f"/[{parts or _NO_CHARACTER}]{times}/"
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


def _run(node: _Node) -> _Node:
    """An alternative of what is repeated without an end: its character may be repeated, too."""
    return _Repeated(node, 0, None, within=True) if isinstance(node, _Char) else node


def _char(ranges: list[tuple[int, int]], inverse: bool) -> _Char:
    """One character of `ranges`, or one outside them; surrogates are not characters."""
    if not inverse:
        ranges = [(a, b) for a, b in ranges if a <= b]
        ranges = [(a, min(b, _SURROGATES[0] - 1)) for a, b in ranges] + [
            (max(a, _SURROGATES[1] + 1), min(b, _LAST)) for a, b in ranges
        ]
    joined: list[tuple[int, int]] = []
    for first, last in sorted(range_ for range_ in ranges if range_[0] <= range_[1]):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    if not inverse:
        return _Char(tuple(joined))
    ends = [-1, *(code for range_ in joined for code in range_), _LAST + 1]
    return _char([(a + 1, b - 1) for a, b in zip(ends[::2], ends[1::2], strict=True)], False)


class _Runs:
    """Finds repeated characters that may be one terminal, which takes as many as there are.

    The grammar becomes states with characters between them, in which a rule does not know who uses
    it: these have more readings than the grammar, never fewer. Two characters that may both come
    next after some text are rivals if they overlap; a run without a rival is `single`."""

    def __init__(self, rules: Mapping[int, _Node], root: int) -> None:
        self.single: set[_Repeated] = set()
        self._chars: list[_Char] = []
        self._runs: dict[int, _Repeated] = {}
        """The repetition of each character that is a run, by its place in `_chars`."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._empty: list[list[int]] = []
        """For each state those that are reached without a character."""
        rule_ends = {number: (self._state(), self._state()) for number in rules}
        self._rule_ends = rule_ends
        self._known = True
        for number, rule in rules.items():
            start, end = rule_ends[number]
            self._add(rule, start, end)
        if self._known and self._runs and len(self._chars) <= _MOST_CHARS:
            self._find(rule_ends[root][0])

    def _state(self) -> int:
        self._empty.append([])
        return len(self._empty) - 1

    def _add(self, node: _Node, start: int, end: int) -> None:
        """Adds a part of the grammar between two states."""
        if isinstance(node, str):
            self._known = False  # a token may have any text
        elif isinstance(node, _Char):
            self._chars.append(node)
            self._starts.append(start)
            self._ends.append(end)
        elif isinstance(node, _Rule):
            first, last = self._rule_ends[node.number]
            self._empty[start].append(first)
            self._empty[last].append(end)
        elif isinstance(node, _All):
            for item in node.items:
                between = self._state()
                self._add(item, start, between)
                start = between
            self._empty[start].append(end)
        elif isinstance(node, _Any):
            for item in node.items:
                self._add(item, start, end)
        elif node.most != 0:
            if isinstance(node.item, _Char):
                self._runs[len(self._chars)] = node
                self._add(node.item, start, end)
            else:
                first, last = self._state(), self._state()
                self._empty[start].append(first)
                self._empty[last] += [first, end]
                self._add(node.item, first, last)
            if node.least == 0:
                self._empty[start].append(end)

    def _find(self, root: int) -> None:
        n = len(self._chars)
        at_state: dict[int, int] = {}
        for i, state in enumerate(self._starts):
            at_state[state] = at_state.get(state, 0) | 1 << i
        next_ = [self._next(end, at_state) for end in self._ends]
        known: dict[tuple[tuple[int, int], ...], int] = {}
        rivals = []
        for char in self._chars:
            if char.ranges not in known:
                known[char.ranges] = sum(1 << i for i in range(n) if char.overlaps(self._chars[i]))
            rivals.append(known[char.ranges])
        together = [0] * n  # for each character those that may come next when it may
        todo = [(self._next(root, at_state),) * 2]
        done: set[tuple[int, int]] = set()
        while todo:
            some, others = todo.pop()
            for i in _bits(some):
                new = others & ~together[i]
                together[i] |= new
                for j in _bits(new & rivals[i]):
                    pair = (min(i, j), max(i, j))
                    if pair not in done:
                        done.add(pair)
                        after = [next_[k] | (1 << k if k in self._runs else 0) for k in pair]
                        todo += [(after[0], after[1]), (after[1], after[0])]
        for i, run in self._runs.items():
            again = next_[i] >> i & 1 and (run.least, run.most) != (0, None)
            if not again and together[i] & rivals[i] & ~(1 << i) == 0:
                self.single.add(run)

    def _next(self, state: int, at_state: Mapping[int, int]) -> int:
        """The characters that may come next in a state, as bits."""
        found, seen, todo = 0, {state}, [state]
        while todo:
            here = todo.pop()
            found |= at_state.get(here, 0)
            for other in self._empty[here]:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return found


def _bits(mask: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
