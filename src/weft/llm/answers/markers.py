"""How a family of models writes calls, as the texts around name and arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["KNOWN", "THOUGHTS", "CallMarkers", "Kind", "bare"]

Kind = Literal["object", "named", "tagged"]
"""object: `{"name": ..., "arguments": {...}}`; named: the name, then its arguments as JSON; tagged:
the name, then each argument between tags of its own."""


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """A section of calls is `section (open CALL close separator)* end`; white space in and around
    these texts may differ in an answer."""

    kind: Kind
    open: str = ""
    close: str = ""
    section: str = ""
    separator: str = ""
    end: str = ""
    prefix: str = ""
    """What may stand in front of a call that nothing announces."""
    name: str = "name"
    """object: the key of the name."""
    arguments: str = "arguments"
    """object: the key of the arguments."""
    after_name: str = ""
    """named: between name and arguments."""
    key_open: str = ""
    value_open: str = ""
    """tagged: between a key and its value."""
    value_close: str = ""
    padding: str = ""
    """tagged: white space that stands between `value_open` and a value, and behind the value."""

    @property
    def trigger(self) -> str:
        """What begins a section of calls, up to the first white space; empty: a call may only be
        the whole answer."""
        return ((self.section + self.open).split() or [""])[0]


def bare(text: str) -> str:
    """`text` without white space."""
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
"""Families by a text of their templates, for templates that write no call by themselves."""

THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)
"""Texts around reasoning, where a template mentions the second."""
