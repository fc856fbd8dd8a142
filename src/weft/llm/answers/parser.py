"""`AnswerParser` splits an answer into content, reasoning and calls as it grows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.llm.answers.calls import CallReader, Heard, is_list_of_calls, read_call
from weft.llm.answers.json_text import NoCallError
from weft.llm.answers.markers import CallMarkers, bare, first_mark
from weft.records import dataclass

_FIRST = {"object": "{", "keyed": "{"}
"""The first character of a call of a kind, if it has one."""
_HELD_SPACE = 64
"""Maximum number of characters of white space held back, because it is dropped in front of a call
or reasoning."""
_TAIL = 512
"""Number of last characters among which the marks behind a call are looked for."""
_PIECE = 4096
"""Maximum number of characters processed at once."""


class AnswerParser:
    """Takes text and reports events.

    A call is reported when it is complete; text that turns out not to be a call is content. The
    calls do not depend on how the text is cut into pushes. An answer of n characters takes time and
    memory proportional to n."""

    def __init__(
        self,
        markers: CallMarkers | None,
        thought: tuple[str, str] | None,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        content: tuple[str, str, str] = ("", "", ""),
        thinking: bool = False,
        thought_over: bool = False,
        pieces: bool = False,
    ) -> None:
        """`markers` are the texts around calls (None: there are none) and `thought` those around
        reasoning. `tools` has schemas of arguments by name. `content` are the texts in front of
        content, behind it, and between it and calls. `thinking`: the prompt has begun the
        reasoning; `thought_over`: it has ended it. `pieces`: calls are reported as they
        come, which is for answers that are held to calls; others may turn out to be none."""
        self._markers, self._thought, self._tools = markers, thought, tools
        self._opening = content[0]
        self._content_ends = [end for end in content[1:] if end]
        trigger = markers.trigger if markers else ""
        self._inner = markers.inner if markers else None
        self._inner_trigger = self._inner.trigger if self._inner else ""
        self._current = markers  # the markers of the current call: all, or the inner ones
        self._trigger = "" if markers and markers.is_plain else trigger
        self._weak_trigger = trigger if markers and markers.is_plain else ""
        self._text = ""  # the text not yet decided about; short outside of calls
        self._held: list[str] = []  # the text of an incomplete call
        self._reader: CallReader | None = None
        self._pieces = pieces
        self._heard: Heard | None = None
        self._begun = False  # whether the current call has been reported
        self._sent = 0  # characters of its arguments that were reported
        self._calls = 0
        self._separated = False  # whether a separator was behind the last call
        self._closed = False  # whether its closing mark was
        self._listed = False  # whether it stands in a list between its marks
        self._call_opening = ""
        self._state = self._reasoning if thinking and thought else self._start
        if thought_over:
            self._state = self._behind_reasoning
        self._trim = self._state == self._reasoning  # whether to drop white space that comes next
        self._events: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """Adds text to the answer; returns the new events."""
        for at in range(0, len(text), _PIECE):
            self._text += text[at : at + _PIECE]
            while self._text and self._state():
                pass
        return self._taken()

    def finish(self) -> list[Event]:
        """Ends the answer; returns the events of text that was held back."""
        self._repair()
        held = "".join(self._held) + self._text
        if self._calls and held.strip() in self._content_ends:
            held = ""
        self._held, self._text = [], ""
        self._reader = None
        if self._state == self._behind_call:
            held = held.strip()
        if self._begun:
            held = ""  # the rest of a call that is cut
        if self._state == self._reasoning:
            self._say(Reasoning(held))
        else:
            self._say(Content(held))
        return self._taken()

    def _repair(self) -> None:
        """Reports a call at the end of the answer that lacks marks or brackets before its last
        mark, or its last mark alone. A call that is cut has none of them, and stays content."""
        whole, markers, text = self._markers, self._current, "".join(self._held)
        if self._state != self._in_call or whole is None or markers is None or self._begun:
            return
        close = f"{markers.value_close}{markers.close}"
        tags = "|".join(map(re.escape, re.findall(r"<[^<>]*>", close) + whole.close_marks))
        end = re.search(rf"(?:\s*(?:{tags}))+\s*\Z", text[-_TAIL:]) if tags else None
        marks = whole.close_marks
        if end is None or not any(mark in end[0] for mark in marks):
            return
        before = text[: len(text) - len(end[0])]
        if markers.kind == "tagged":
            ways = [f"{before}{markers.padding}{close}", f"{before}{markers.close}"]
        else:
            ways = [before + "}" * n for n in (1, 2)] if markers.kind == "object" else []
        for way in ways:
            reader = read_call(markers, self._call_opening, self._tools)
            next(reader)
            try:
                for char in way:
                    reader.send(char)
            except StopIteration as stop:
                if stop.value[0] in self._tools:
                    self._events.append(Call(self._calls, *stop.value))
                    self._calls += 1
                    self._held = []
                    return
            except NoCallError:
                pass

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, event: Content | Reasoning) -> None:
        text = event.text.lstrip() if self._trim else event.text
        if text:
            self._trim = False
            self._events.append(type(event)(text))

    # Each state consumes text from `_text`. It returns False if it needs more text to go on.

    def _start(self) -> bool:
        """State where a part begins: reasoning, content with a mark, or calls."""
        text = self._text.lstrip()
        if len(self._text) - len(text) > _HELD_SPACE:
            self._state = self._content
            return True
        return self._part(text, self._thought[0] if self._thought else "")

    def _part(self, text: str, thought: str) -> bool:
        """Decides what a part is by its first characters."""
        over = self._thought[1] if self._thought else ""  # of reasoning that has no text
        marks = [thought, self._opening, self._weak_trigger, over]
        if any(mark.startswith(text) and mark != text for mark in marks if mark):
            return False  # a longer mark may come
        found = max(
            (i for i, mark in enumerate(marks) if mark and text.startswith(mark)),
            key=lambda i: len(marks[i]), default=None,
        )  # fmt: skip
        if found is None:
            return self._unannounced()
        self._text = text[len(marks[found]) :]
        if found == 0:
            self._state, self._trim = self._reasoning, True
        elif found == 1:
            self._state, self._trim = self._content, True
        elif found == 3:
            self._state, self._trim = self._behind_reasoning, False
        elif self._markers:
            self._text = text
            self._call(self._markers.section + self._markers.open)
        return True

    def _unannounced(self) -> bool:
        """Decides between content and calls that nothing announces."""
        text, markers = self._text.lstrip(), self._markers
        if markers and not markers.trigger:
            if text and text != markers.prefix and markers.prefix.startswith(text):
                return False
            prefix = markers.prefix if text.startswith(markers.prefix) else ""
            behind = text[len(prefix) :].lstrip()
            if not behind:
                return False
            if behind[0] == "{":
                self._call(prefix)
                return True
        self._state = self._content
        return True

    def _reasoning(self) -> bool:
        assert self._thought is not None
        end = self._report_until(Reasoning, (self._thought[1],))
        if end:
            self._text = self._text[len(end) :]
            self._state, self._trim = self._behind_reasoning, False
        return bool(end)

    def _behind_reasoning(self) -> bool:
        self._text = self._text.lstrip()
        return bool(self._text) and self._part(self._text, "")

    def _content(self) -> bool:
        triggers = [one for one in (self._trigger, self._inner_trigger) if one]
        ends = (*triggers, *self._content_ends)
        if not ends:
            self._say(Content(self._text))
            self._text = ""
            return False
        end = self._report_until(Content, ends)
        if end == self._trigger and end and self._markers:
            self._call(self._markers.section + self._markers.open)
        elif end == self._inner_trigger and end:
            self._call_inner()
        elif end:
            self._text = self._text.lstrip()[len(end) :]
            self._state, self._trim = self._start, True
        return bool(end)

    def _call_inner(self) -> None:
        assert self._inner is not None
        self._call(self._inner.open, self._inner)

    def _call(self, opening: str, markers: CallMarkers | None = None) -> None:
        """Starts to read the text as a call, which `opening` must precede. `markers`
        stand in place of the answer's."""
        self._current = markers or self._markers
        assert self._current is not None
        self._call_opening = opening
        self._listed &= not opening
        space = len(self._text) - len(self._text.lstrip())
        self._held = [self._text[:space]] if space else []
        self._text = self._text[space:]
        self._heard = Heard(self._current) if self._pieces else None
        self._begun, self._sent = False, 0
        self._reader = read_call(self._current, opening, self._tools, self._heard)
        next(self._reader)
        self._state = self._in_call

    def _in_call(self) -> bool:
        assert self._reader is not None
        for at, char in enumerate(self._text):
            try:
                self._reader.send(char)
            except StopIteration as stop:
                if not self._known(stop.value[0]):
                    self._fail(at + 1)
                    return True
                name, arguments = stop.value
                if self._begun:
                    self._events.append(CallPiece(self._calls, arguments[self._sent :]))
                self._events.append(Call(self._calls, name, arguments))
                self._calls += 1
                self._begun = self._closed = False
                self._listed |= self._begins_list(at)
                self._held, self._text = [], self._text[at + 1 :]
                self._state = self._behind_call
                return True
            except NoCallError:
                self._fail(at)
                return True
        self._held.append(self._text)
        self._text = ""
        self._hear()
        return False

    def _begins_list(self, at: int) -> bool:
        """True if the call that ends at character `at` is the first of a list."""
        text = bare("".join(self._held) + self._text[: at + 1])
        first = text[len(bare(self._call_opening)) :][:1]
        return self._current is not None and is_list_of_calls(self._current, first)

    def _hear(self) -> None:
        """Reports the name and the arguments of a call, as far as they have come."""
        heard = self._heard
        if heard is None or heard.name is None or not self._known(heard.name):
            return
        if not self._begun:
            self._begun = True
            self._events.append(CallBegun(self._calls, heard.name))
        if heard.pieces:
            text = "".join(heard.pieces)
            heard.pieces = []
            self._sent += len(text)
            self._events.append(CallPiece(self._calls, text))

    def _known(self, name: str) -> bool:
        """True if a call counts as one: if it was announced, or if the tool exists."""
        announced = self._current is self._markers and self._markers and self._markers.trigger
        return bool(announced) or not self._tools or name in self._tools

    def _fail(self, at: int) -> None:
        """Reports the text held and the first `at` characters as content: they are no call."""
        if not self._begun:
            self._say(Content("".join(self._held) + self._text[:at]))
        self._held, self._text = [], self._text[at:]
        self._state = self._content

    def _behind_call(self) -> bool:
        """State behind a call: skips ends and separators, until another call or content comes."""
        markers = self._markers
        assert markers is not None
        text = self._text.lstrip()
        self._text = self._text[: len(self._text) - len(text)][-_HELD_SPACE:] + text
        if not text:
            return False
        again = first_mark(markers.open or _FIRST.get(markers.kind, ""))
        closes = [*markers.close.split(), *(markers.close_marks if self._inner else ())]
        ends = [*closes, *markers.separator.split(), *markers.end.split()]
        ends += [",", "]"] if self._listed else []
        inner = self._inner_trigger
        opens = [mark for mark in (again, first_mark(markers.section), inner) if mark]
        ends += [end for end in self._content_ends if end != again]
        match = next((end for end in sorted(ends, key=len, reverse=True) if text.startswith(end)),
                     None)  # fmt: skip
        others = (self._opening, self._thought[0] if self._thought else "")
        incomplete = any(
            mark.startswith(text) and mark != text for mark in (*ends, *opens, *others)
        )
        if match is None and incomplete:
            return False
        if match is not None:
            self._text = text[len(match) :]
            self._separated = match in markers.separator.split()
            self._closed |= match in closes
            self._listed &= match not in ("]", *closes)
        elif markers.kind == "object" and markers.close and not self._closed and text[0] == "{":
            self._call("")  # two calls between one pair of marks
        elif again and text.startswith(again) and not self._opens_content(text):
            self._call(markers.open)
        elif inner and text.startswith(inner):
            self._call_inner()
        elif not again and self._separated and re.match(r"\w", text):  # a name follows
            self._call(markers.open)
        elif any(mark and text.startswith(mark) for mark in others):
            self._text, self._state = text, self._start
        else:
            self._state = self._content
        return True

    def _opens_content(self, text: str) -> bool:
        return bool(self._opening) and text.startswith(self._opening)

    def _report_until(self, kind: type[Content | Reasoning], ends: Sequence[str]) -> str:
        """Reports the text in front of the first of `ends`, and returns this end if it is there,
        else "". If none is, holds back a possible beginning of one."""
        text = self._text
        at, end = min(
            ((text.find(end), end) for end in ends if end in text), default=(-1, ""),
            key=lambda found: (found[0], -len(found[1])),
        )  # fmt: skip
        if not end:
            at = len(text) - max(overlap(text, end) for end in ends)
        space = at - len(text[:at].rstrip())
        keep = at - min(space, _HELD_SPACE)
        self._say(kind(text[:keep]))
        self._text = text[at:] if end and kind is Reasoning else text[keep:]
        return end


def overlap(text: str, end: str) -> int:
    """The number of characters at the end of `text` that are a beginning of `end`."""
    longest = min(len(text), len(end) - 1)
    return next((n for n in range(longest, 0, -1) if end.startswith(text[-n:])), 0)


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A complete tool call; `index` counts the calls of an answer from 0."""

    index: int
    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The call `index` has begun. It ends with a `Call`, or is cut where the answer ends."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the arguments of the call that has begun. All pieces are the arguments of its
    `Call`; the pieces of a call that is cut are never a whole JSON object."""

    index: int
    text: str


Event = Content | Reasoning | Call | CallBegun | CallPiece
