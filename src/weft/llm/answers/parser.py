"""`AnswerParser` splits an answer into content, reasoning and calls as it grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.llm.answers.calls import CallReader, read_call
from weft.llm.answers.events import Call, Content, Event, Reasoning
from weft.llm.answers.json_text import NoCallError
from weft.llm.answers.markers import CallMarkers

__all__ = ["AnswerParser"]

_HELD_SPACE = 64
"""Most characters of white space held back, since it is dropped in front of a call or reasoning."""
_PIECE = 4096
"""Most characters processed at once."""


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
        thinking: bool = False,
    ) -> None:
        """`markers` are the texts around calls (None: there are none) and `thought` those around
        reasoning. `tools` has schemas of arguments by name. `thinking`: the prompt has begun the
        reasoning."""
        self._markers, self._thought, self._tools = markers, thought, tools
        self._text = ""  # the text not yet decided about; short outside of calls
        self._held: list[str] = []  # the text of an incomplete call
        self._reader: CallReader | None = None
        self._calls = 0
        self._state = self._reasoning if thinking and thought else self._start
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
        held = "".join(self._held) + self._text
        self._held, self._text = [], ""
        self._reader = None
        if self._state == self._behind_call:
            held = held.strip()
        if self._state == self._reasoning:
            self._say(Reasoning(held))
        else:
            self._say(Content(held))
        return self._taken()

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
        """State at the beginning, where reasoning may come, or calls that nothing announces."""
        text = self._text.lstrip()
        if len(self._text) - len(text) > _HELD_SPACE:
            self._state = self._content
            return True
        if self._thought and text.startswith(self._thought[0]):
            self._text = text[len(self._thought[0]) :]
            self._state, self._trim = self._reasoning, True
            return True
        thought = self._thought[0] if self._thought else ""
        return (not thought.startswith(text) or not thought) and self._unannounced()

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
        is_over = self._report_until(Reasoning, self._thought[1])
        if is_over:
            self._text = self._text[len(self._thought[1]) :]
            self._state, self._trim = self._behind_reasoning, False
        return is_over

    def _behind_reasoning(self) -> bool:
        self._text = self._text.lstrip()
        return bool(self._text) and self._unannounced()

    def _content(self) -> bool:
        trigger = self._markers.trigger if self._markers else ""
        if not trigger:
            self._say(Content(self._text))
            self._text = ""
            return False
        is_call = self._report_until(Content, trigger)
        if is_call and self._markers:
            self._call(self._markers.section + self._markers.open)
        return is_call

    def _call(self, opening: str) -> None:
        """Starts to read the text as a call, which `opening` must precede."""
        assert self._markers is not None
        space = len(self._text) - len(self._text.lstrip())
        self._held = [self._text[:space]] if space else []
        self._text = self._text[space:]
        self._reader = read_call(self._markers, opening, self._tools)
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
                self._events.append(Call(self._calls, *stop.value))
                self._calls += 1
                self._held, self._text = [], self._text[at + 1 :]
                self._state = self._behind_call
                return True
            except NoCallError:
                self._fail(at)
                return True
        self._held.append(self._text)
        self._text = ""
        return False

    def _known(self, name: str) -> bool:
        """True if a call counts as one: if it was announced, or if the tool exists."""
        announced = self._markers is not None and self._markers.trigger
        return bool(announced) or not self._tools or name in self._tools

    def _fail(self, at: int) -> None:
        """Reports the text held and the first `at` characters as content: they are no call."""
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
        ends = [end for m in (markers.close, markers.separator, markers.end) for end in m.split()]
        opens = [(markers.open or "{").split()[0], *markers.section.split()[:1]]
        match = next((end for end in sorted(ends, key=len, reverse=True) if text.startswith(end)),
                     None)  # fmt: skip
        incomplete = any(mark.startswith(text) and mark != text for mark in (*ends, *opens))
        if match is None and incomplete:
            return False
        if match is not None:
            self._text = text[len(match) :]
        elif text.startswith(opens[0]):
            self._call(markers.open)
        else:
            self._state = self._content
        return True

    def _report_until(self, kind: type[Content | Reasoning], end: str) -> bool:
        """Reports the text in front of `end`, and returns True if `end` is there. If not, holds
        back a possible beginning of it."""
        text = self._text
        has_end = end in text
        at = text.find(end) if has_end else len(text) - _overlap(text, end)
        space = at - len(text[:at].rstrip())
        keep = at - min(space, _HELD_SPACE)
        self._say(kind(text[:keep]))
        self._text = text[at:] if has_end and kind is Reasoning else text[keep:]
        return has_end


def _overlap(text: str, end: str) -> int:
    """The number of characters at the end of `text` that are a beginning of `end`."""
    longest = min(len(text), len(end) - 1)
    return next((n for n in range(longest, 0, -1) if end.startswith(text[-n:])), 0)
