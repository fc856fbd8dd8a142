"""The texts with which families of models surround names and arguments of calls."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from weft.records import dataclass

Kind = Literal["object", "keyed", "named", "tagged", "python", "loose", "elements"]
"""The form of calls.

    object    `{"name": NAME, "arguments": {...}}`
    keyed     `{NAME: {...}}`
    named     the name, then the arguments as JSON
    tagged    the name, then each argument between tags of its own
    python    `NAME(key=value, ...)`
    loose     the name, then an object whose keys have no quotes and whose strings have their own
    elements  the name, then an element for each argument, `<key>value</key>`, nested for objects"""

HOLE = "\0"
"""Stands in a marker for a word that differs from call to call: an id or a number."""


_TAG = re.compile(r"<\|(?:open|close)\|>[^<>\s]*<\|sep\|>|<[^<>\s]*>|\[/?[A-Z_]+\]")


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
    identity: str = ""
    """Kind object: the key of an id that every call has; empty: there is none."""
    identity_first: bool = False
    """Kind object: whether the id comes before the name."""
    after_name: str = ""
    """Kinds named, tagged and elements: the text between the name and the arguments."""
    key_open: str = ""
    value_open: str = ""
    """Kind tagged: the text between a key and its value."""
    text_mark: str = ""
    """Kind tagged: what stands for the hole in `value_open` before a string; any other word is
    before JSON."""
    value_close: str = ""
    padding: str = ""
    """Kind tagged: white space before and after a value."""
    quote: str = ""
    """Kind loose: the text around strings. Kind elements: the text before every tag."""

    @property
    def trigger(self) -> str:
        """The text that begins a section of calls: its first tag, or what comes before white space
        or a hole. Empty: nothing announces a call, so calls can only be the whole answer."""
        return first_mark(self.section or self.open)

    @property
    def inner(self) -> CallMarkers | None:
        """The markers of a call that a model wrote without the first mark, such as `<function=`
        without `<tool_call>`, and perhaps without the last. None: no other mark announces it."""
        rest = (self.section + self.open).strip().removeprefix(self.trigger).lstrip()
        if (
            not self.trigger
            or not rest.startswith("<")
            or self.trigger.startswith(first_mark(rest))
        ):
            return None
        close = self.close_marks[0] if self.close_marks and not self.section else self.close
        return replace(self, section="", open=rest, close=close, separator="", end="")

    @property
    def close_marks(self) -> list[str]:
        """The tags in `close`."""
        return re.findall(r"<[^<>]*>", self.close)

    @property
    def has_ids_of_names(self) -> bool:
        """True if an id is the name and a number, as Kimi K2 writes it: `functions.NAME:0`."""
        return self.open.endswith("functions.") and self.after_name.startswith(f":{HOLE}")

    @property
    def is_plain(self) -> bool:
        """True if the trigger is words that an answer may contain, so that a call can only begin
        where a message does."""
        return not re.search(r"[<\[>{|]", self.trigger) and HOLE in self.section + self.open


def first_mark(text: str) -> str:
    """The first tag of `text`, or what comes before white space or a hole if it begins with
    none."""
    tag = _TAG.match(text.strip())
    return tag[0] if tag else re.split(r"\s|\0", text.strip())[0]


def bare(text: str) -> str:
    """Removes white space from `text`."""
    return re.sub(r"\s+", "", text)


HERMES = CallMarkers("object", "<tool_call>\n", "\n</tool_call>")
"""The form of Hermes and Qwen as weft writes it for models whose templates have no tools."""

KNOWN: tuple[tuple[str, CallMarkers], ...] = (
    ("<｜tool▁calls▁begin｜>", CallMarkers(
        "named", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>", after_name="```json",
    )),
    ("<|tool_calls_section_begin|>", CallMarkers(
        "named", "<|tool_call_begin|>functions.", "<|tool_call_end|>",
        "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>",
        after_name=f":{HOLE}<|tool_call_argument_begin|>",
    )),
    ("[ARGS]", CallMarkers("named", "[TOOL_CALLS]", after_name="[ARGS]")),
    ("[TOOL_CALLS]", CallMarkers("object", section="[TOOL_CALLS] [", separator=",", end="]")),
    ("<parameter=", CallMarkers(
        "tagged", "<tool_call><function=", "</function></tool_call>", after_name=">",
        key_open="<parameter=", value_open=">", value_close="</parameter>", padding="\n",
    )),
    ("<tool_call>", CallMarkers("object", "<tool_call>", "</tool_call>")),
    ("<|tool_call|>", CallMarkers("object", section="<|tool_call|>[", separator=",", end="]")),
    ("<|tool_list_start|>", CallMarkers(
        "python", section="<|tool_call_start|>[", separator=",", end="]<|tool_call_end|>",
    )),
    ("List of tools: [", CallMarkers(
        "python", section="<|tool_call_start|>[", separator=",", end="]<|tool_call_end|>",
    )),
    ("functools[", CallMarkers("object", section="functools[", separator=",", end="]")),
    ("<function=", CallMarkers("named", "<function=", "</function>", after_name=">")),
    ("<|python_tag|>", CallMarkers(
        "object", arguments="parameters", separator=";", prefix="<|python_tag|>",
    )),
)  # fmt: skip
"""Families by a text in their templates, for templates that do not render calls."""

THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"),
            ("<|START_THINKING|>", "<|END_THINKING|>"), ("<seed:think>", "</seed:think>"),
            ("<mm:think>", "</mm:think>"),
            ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"))  # fmt: skip
"""Pairs of texts around reasoning; a model uses a pair if its template has the second text."""
