"""An answer, taken apart as it grows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weft.llm.answers.calls import CallReader, read_call
from weft.llm.answers.events import Call, Content, Event, Reasoning
from weft.llm.answers.json_text import NoCallError
from weft.llm.answers.markers import CallMarkers

__all__ = ["AnswerParser"]

_HELD_SPACE = 64
"""White space that waits for what follows it: in front of a call or of reasoning it is dropped."""
_PIECE = 4096
"""Characters looked at together."""


class AnswerParser:
    """Text in, events out. A call is reported when it is whole; text that turns out to be none is
    content. How the text is cut into pushes changes nothing but how content is cut. An answer of n
    characters takes time and memory proportional to n."""

    def __init__(
        self,
        markers: CallMarkers | None,
        thought: tuple[str, str] | None,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        thinking: bool = False,
    ) -> None:
        """`markers`: how calls are written; None: there are none. `thought`: the texts around
        reasoning, if any. `tools`: schemas of arguments by name. `thinking`: the prompt has
        begun the reasoning."""
        self._markers, self._thought, self._tools = markers, thought, tools
        self._text = ""  # not decided yet; short outside of calls
        self._held: list[str] = []  # the text of a call that is not whole
        self._reader: CallReader | None = None
        self._calls = 0
        self._state = self._reasoning if thinking and thought else self._start
        self._trim = self._state == self._reasoning  # drop white space that comes now
        self._events: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """What `text` adds."""
        for at in range(0, len(text), _PIECE):
            self._text += text[at : at + _PIECE]
            while self._text and self._state():
                pass
        return self._taken()

    def finish(self) -> list[Event]:
        """What was held back; nothing may be pushed after it."""
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

    # Each state takes what it can from `_text` and says whether there may be more to take.

    def _start(self) -> bool:
        """Reasoning comes first, and a call that nothing announces is the whole answer."""
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
        """An answer that is nothing but calls, which have no mark of their own, or content."""
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
        found = self._pass_on(Reasoning, (self._thought[1],))
        if found:
            self._text = self._text[len(found) :]
            self._state, self._trim = self._behind_reasoning, False
        return bool(found)

    def _behind_reasoning(self) -> bool:
        self._text = self._text.lstrip()
        return bool(self._text) and self._unannounced()

    def _content(self) -> bool:
        trigger = self._markers.trigger if self._markers else ""
        if not trigger:
            self._say(Content(self._text))
            self._text = ""
            return False
        found = self._pass_on(Content, (trigger,))
        if found and self._markers:
            self._call(self._markers.section + self._markers.open)
        return bool(found)

    def _call(self, opening: str) -> None:
        """A call may begin with the text that waits."""
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
        """A call that nothing announced is one of a tool that exists, or it is JSON."""
        announced = self._markers is not None and self._markers.trigger
        return bool(announced) or not self._tools or name in self._tools

    def _fail(self, at: int) -> None:
        """The first `at` characters, and those held, are no call."""
        self._say(Content("".join(self._held) + self._text[:at]))
        self._held, self._text = [], self._text[at:]
        self._state = self._content

    def _behind_call(self) -> bool:
        """Ends and separators are passed over, another call may come."""
        markers = self._markers
        assert markers is not None
        text = self._text.lstrip()
        self._text = self._text[: len(self._text) - len(text)][-_HELD_SPACE:] + text
        if not text:
            return False
        passed = [p for m in (markers.close, markers.separator, markers.end) for p in m.split()]
        opens = [(markers.open or "{").split()[0], *markers.section.split()[:1]]
        hit = next((p for p in sorted(passed, key=len, reverse=True) if text.startswith(p)), None)
        longer = any(p.startswith(text) and p != text for p in (*passed, *opens))
        if hit is None and longer:
            return False
        if hit is not None:
            self._text = text[len(hit) :]
        elif text.startswith(opens[0]):
            self._call(markers.open)
        else:
            self._state = self._content
        return True

    def _pass_on(self, kind: type[Content | Reasoning], ends: Iterable[str]) -> str:
        """Reports the text in front of the first of `ends` and returns that one; where none is
        there yet, keeps back what may be the beginning of one."""
        text = self._text
        hits = [(text.find(end), end) for end in ends if end in text]
        at, found = min(hits, default=(len(text), ""))
        if not found:
            at -= max(_overlap(text, end) for end in ends)
        space = at - len(text[:at].rstrip())
        keep = at - min(space, _HELD_SPACE)
        self._say(kind(text[:keep]))
        self._text = text[at:] if found and kind is Reasoning else text[keep:]
        return found


def _overlap(text: str, end: str) -> int:
    """Characters at the end of `text` that begin `end`."""
    longest = min(len(text), len(end) - 1)
    return next((n for n in range(longest, 0, -1) if end.startswith(text[-n:])), 0)
