"""Classes of characters for tokenizers, by Unicode 15.1 like the reference.

The regexes of pre-tokenizers use categories (`\\p{L}`), which Python's `re` lacks. So text is
*collapsed* first: ASCII characters stay, any other character is replaced by a stand-in for its
class. In a regex a class is written as its ASCII members and its stand-in. White space and digits
are the ASCII ones only (`re.ASCII`), because all others became a vertical tab or a stand-in.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable

# Characters that Unicode 15.0 and 15.1 added, which Python knows from 3.12 and 3.13 on.
_ADDED = """CF3M ECEM 2FFC-2FFFS 31EFS 10EFD-10EFFM 1123F-11240L 11241M 11B00-11B09P 11F00-11F01M
11F02L 11F03M 11F04-11F10L 11F12-11F33L 11F34-11F3AM 11F3E-11F42M 11F43-11F4FP 11F50-11F59N 1342FL
13439-1343FC 13440M 13441-13446L 13447-13455M 1B132L 1B155L 1D2C0-1D2D3N 1DF25-1DF2AL 1E030-1E06DL
1E08FM 1E4D0-1E4EBL 1E4EC-1E4EFM 1E4F0-1E4F9N 1F6DCS 1F774-1F776S 1F77B-1F77FS 1F7D9S 1FA75-1FA77S
1FA87-1FA88S 1FAAD-1FAAFS 1FABB-1FABDS 1FABFS 1FACE-1FACFS 1FADA-1FADBS 1FAE8S 1FAF7-1FAF8S 2B739L
2EBF0-2EE5DL 31350-323AFL"""

WHITESPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""The property White_Space of the Unicode Character Database."""

# Blocks of Han characters, for the one pre-tokenizer that distinguishes them from other letters.
_HAN = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
        (0x2A700, 0x2B73F), (0x2B740, 0x2EBEF), (0x2F800, 0x2FA1F))  # fmt: skip

# The stand-in of each class, and its members as they stand inside the brackets of a regex.
_STAND_IN = {"N": "\xd1", "L": "\xd2", "P": "\xd3", "M": "\xd4", "S": "\xd5"}
_HAN_STAND_IN = "\xd6"
_OTHER = "\xd0"
_CLASSES = {
    r"\p{N}": r"0-9\xd1", r"\p{L}": r"A-Za-z\xd2\xd6", r"\p{L-Han}": r"A-Za-z\xd2",
    r"\p{Upper}": r"A-Z\xd2\xd6", r"\p{Lower}": r"a-z\xd2\xd6", r"\p{Han}": r"\xd6",
    r"\p{M}": r"\xd4", r"\p{P}": r"!-#%-*,-/:;?@\[-\]_{}\xd3", r"\p{S}": r"$+<->^`|~\xd5",
}  # fmt: skip


def _added() -> tuple[list[int], list[tuple[int, str]]]:
    """The ranges of `_ADDED`: first code points, and last ones with the class."""
    starts, ends = [], []
    for entry in _ADDED.split():
        first, _, last = entry[:-1].partition("-")
        starts.append(int(first, 16))
        ends.append((int(last or first, 16), entry[-1]))
    return starts, ends


_STARTS, _ENDS = _added()


def category(char: str) -> str:
    """The general category of a character: two letters, or one for the newest characters."""
    code = unicodedata.category(char)
    if code == "Cn":
        i = bisect_right(_STARTS, ord(char)) - 1
        if i >= 0 and ord(char) <= _ENDS[i][0]:
            return _ENDS[i][1]
    return code


class CharTable(dict[int, str]):
    """A table for str.translate that computes each entry when it is first needed."""

    _MOST = 1 << 16  # entries; text with more distinct characters is rare, and only slower

    def __init__(self, make: Callable[[str], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, code: int) -> str:
        value = self._make(chr(code))
        if len(self) < self._MOST:
            self[code] = value
        return value


def _stand_in(char: str) -> str:
    if char.isascii():
        return char
    if char in WHITESPACE:
        return "\v"
    kind = category(char)[0]
    if kind == "L" and any(first <= ord(char) <= last for first, last in _HAN):
        return _HAN_STAND_IN
    return _STAND_IN.get(kind, _OTHER)


_COLLAPSED = CharTable(_stand_in)
_PLAIN = CharTable(lambda char: "\v" if char in WHITESPACE and not char.isascii() else char)


def collapse(text: str) -> str:
    """Replaces characters beyond ASCII by the stand-ins of their classes; keeps the length."""
    return text if text.isascii() else text.translate(_COLLAPSED)


def plain(text: str) -> str:
    """Replaces white space beyond ASCII by vertical tabs; keeps the length."""
    return text if text.isascii() else text.translate(_PLAIN)


def compile_collapsed(pattern: str) -> re.Pattern[str]:
    """Compiles a regex for collapsed text. Classes such as `\\p{L}` must stand inside brackets."""
    for name, members in _CLASSES.items():
        pattern = pattern.replace(name, members)
    return re.compile(pattern, re.ASCII)


def compile_plain(pattern: str) -> re.Pattern[str]:
    """Compiles a regex for `plain` text, which names characters beyond ASCII but no classes."""
    return re.compile(pattern, re.ASCII)
