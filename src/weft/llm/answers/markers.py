"""The texts with which families of models surround names and arguments of calls."""

from __future__ import annotations

import re
from typing import Literal

from weft.records import dataclass

__all__ = ["KNOWN", "THOUGHTS", "CallMarkers", "Kind", "bare"]

Kind = Literal["object", "named", "tagged"]
"""The form of calls.

    object   `{"name": NAME, "arguments": {...}}`
    named    the name, then the arguments as JSON
    tagged   the name, then each argument between tags of its own"""


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """The texts around calls. A section of calls is `section (open CALL close separator)* end`.

    White space in and around these texts may differ in an answer."""

    kind: Kind
    open: str = ""
    close: str = ""
    section: str = ""
    separator: str = ""
    end: str = ""
    prefix: str = ""
    """A text that may precede a call if `trigger` is empty."""
    name: str = "name"
    """Kind object: the key of the name."""
    arguments: str = "arguments"
    """Kind object: the key of the arguments."""
    after_name: str = ""
    """Kind named: the text between name and arguments."""
    key_open: str = ""
    value_open: str = ""
    """Kind tagged: the text between a key and its value."""
    value_close: str = ""
    padding: str = ""
    """Kind tagged: white space before and after a value."""

    @property
    def trigger(self) -> str:
        """The text that begins a section of calls, up to its first white space. Empty: nothing
        announces a call, so calls can only be the whole answer."""
        return ((self.section + self.open).split() or [""])[0]


def bare(text: str) -> str:
    """Removes white space from `text`."""
    return re.sub(r"\s+", "", text)


KNOWN: tuple[tuple[str, CallMarkers], ...] = (
    ("<｜tool▁calls▁begin｜>", CallMarkers(
        "named", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>", after_name="```json",
    )),
    ("[ARGS]", CallMarkers("named", "[TOOL_CALLS]", after_name="[ARGS]")),
    ("[TOOL_CALLS]", CallMarkers("object", section="[TOOL_CALLS] [", separator=",", end="]")),
    ("<parameter=", CallMarkers(
        "tagged", "<tool_call><function=", "</function></tool_call>", after_name=">",
        key_open="<parameter=", value_open=">", value_close="</parameter>", padding="\n",
    )),
    ("<tool_call>", CallMarkers("object", "<tool_call>", "</tool_call>")),
    ("<function=", CallMarkers("named", "<function=", "</function>", after_name=">")),
    ("<|python_tag|>", CallMarkers(
        "object", arguments="parameters", separator=";", prefix="<|python_tag|>",
    )),
)  # fmt: skip
"""Families by a text in their templates, for templates that do not render calls."""

THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)
"""Pairs of texts around reasoning; a model uses a pair if its template has the second text."""
