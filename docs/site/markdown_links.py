"""The links and headings of a Markdown page, as a checkout shows them and as the site does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_LINK = re.compile(r"(\]\()([^()\s]+)(\))")
_CODE = re.compile(r"(`+)(?:(?!`).)+?\1")
_ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$")


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading: small letters, without punctuation, spaces as hyphens.

    It is what code hosts make of a heading, so that a link works in both places."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page with their ends, and whether each is outside blocks of code."""
    fence = ""
    listed = False  # what is indented in a list is text
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
            yield line, False
        elif fence:
            yield line, False
            if mark and mark[1].startswith(fence):
                fence = ""
        else:
            if line.strip() and not line.startswith("  "):
                listed = bool(_ITEM.match(line))
            yield line, listed or not line.startswith("    ")


def headings(text: str) -> list[str]:
    """The headings of a page, as they are written."""
    return [
        found[1]
        for line, outside in prose(text)
        if outside and (found := _HEADING.match(line.rstrip("\n")))
    ]


def links(text: str) -> list[str]:
    """The targets of all links and pictures of a page."""
    found: list[str] = []
    changed(text, lambda target: found.append(target) or target)
    return found


def changed(text: str, change: Callable[[str], str]) -> str:
    """The page with every target of a link as `change` makes it."""

    def put(found: re.Match[str]) -> str:
        return found[1] + change(found[2]) + found[3]

    return "".join(_outside_code(line, put) if outside else line for line, outside in prose(text))


def _outside_code(line: str, put: Callable[[re.Match[str]], str]) -> str:
    """A line whose links are changed, but not what looks like one between backticks."""
    spans = [found.span() for found in _CODE.finditer(line)]

    def outside(found: re.Match[str]) -> str:
        inside = any(begin < found.start(2) < end for begin, end in spans)
        return found[0] if inside else put(found)

    return _LINK.sub(outside, line)
