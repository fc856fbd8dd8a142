"""Renders a chat template with made-up messages, so that differences between the texts show how
the model writes its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from weft.errors import ChatError
from weft.llm.chat.template import ChatTemplate

NAMES = "weft_tool_a", "weft_tool_b"
VALUE = "weft value a"
ARGUMENTS = {"weft_key_a": VALUE, "weft_key_b": 7351}
ID = "weftcall0"
"""The id of every call in the texts."""
SAID = "weft said this"
THOUGHT = "weft thought that"

_ASKED = "weft asks"
_MODES: tuple[Mapping[str, Any], ...] = (
    {},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"},
)
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "weft",
            "parameters": {
                "type": "object",
                "properties": {
                    "weft_key_a": {"type": "string", "description": "weft"},
                    "weft_key_b": {"type": "integer", "description": "weft"},
                },
            },
        },
    }
    for name in NAMES
]
TAG = re.compile(r"<\|(?:open|close)\|>[^<>\n]*<\|sep\|>|<[^<>\n]*>|\[/?[A-Z_]+\]")


class Probe:
    """A template, and the texts of made-up answers without the texts around an answer."""

    def __init__(self, template: ChatTemplate) -> None:
        """Raises ChatError if the template is broken."""
        self.template = template
        self._tools = _TOOLS if template.knows_tools else None
        self._plain = self._turn(SAID)
        self.prompts = [text for text in map(self._prompt, _MODES) if text is not None]
        """The ends of prompts, from behind the user's text, in several modes of reasoning."""
        texts = [self._plain, self._turn("", calls=1), self._turn(SAID, calls=1), *self.prompts]
        self.head = _head([text for text in texts if text is not None])
        """The text between the user's message and the answer."""

    def plain(self) -> str | None:
        """The text of an answer without reasoning and calls, with the end of its turn."""
        return self._cut(self._plain)

    def called(self, n_calls: int, content: str, *, thinks: bool = False) -> str | None:
        """The text of an answer of `content` and `n_calls` calls. None: the template refuses it."""
        return self._cut(self._turn(content, calls=n_calls, thinks=thinks))

    def thought(self) -> str | None:
        """The text of an answer with reasoning, from behind the user's text; None: the template
        writes no reasoning."""
        for mode in range(len(_MODES)):
            for calls in (0, 1):
                text = self._turn(SAID, calls=calls, thinks=True, mode=mode)
                if text is not None and THOUGHT in text:
                    return text
        text = self._turn("", calls=1, thinks=True)
        return text if text is not None and THOUGHT in text else None

    def _cut(self, text: str | None) -> str | None:
        return text[len(self.head) :] if text and text.startswith(self.head) else None

    def _prompt(self, mode: Mapping[str, Any]) -> str | None:
        try:
            text = self.template.render([_user()], tools=self._tools, **mode)
        except ChatError:
            return None
        return text.rpartition(_ASKED)[2]

    def _turn(
        self, content: str, *, calls: int = 0, thinks: bool = False, mode: int = 0
    ) -> str | None:
        """Everything behind the user's text, in a conversation that an answer ends."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"weftcall{i}",  # some templates demand nine characters
                    "type": "function",
                    "function": {"name": NAMES[i], "arguments": json.dumps(ARGUMENTS)},
                }
                for i in range(calls)
            ]
        if thinks:
            message["reasoning_content"] = THOUGHT
        try:
            text = self.template.render(
                [_user(), message], tools=self._tools, add_generation_prompt=False, **_MODES[mode]
            )
        except ChatError:
            return None
        text = text.rpartition(_ASKED)[2]
        return re.sub(r"weftcall\d", ID, text)


def _user() -> dict[str, str]:
    return {"role": "user", "content": _ASKED}


def _head(texts: list[str]) -> str:
    """The common beginning of texts, without an incomplete tag at its end."""
    if not texts:
        return ""
    head = texts[0]
    for text in texts:
        n = _common(head, text)
        if head[:n].strip():  # else the mode is a part of the user's text
            head = head[:n]
    texts = [text for text in texts if text.startswith(head)]
    head = head[: min(_snapped(text, len(head), up=False) for text in texts)]
    return head.partition(SAID)[0]


def shared_start(a: str, b: str) -> str:
    """The common beginning of both texts, without an incomplete tag at its end."""
    n = _common(a, b)
    return a[: min(_snapped(a, n, up=False), _snapped(b, n, up=False))]


def shared_end(a: str, b: str) -> str:
    """The common end of both texts, without an incomplete tag at its beginning."""
    n = _common(a[::-1], b[::-1])
    cuts = [_snapped(text, len(text) - n, up=True) - (len(text) - n) for text in (a, b)]
    return a[len(a) - n + max(cuts) :]


def _snapped(text: str, at: int, *, up: bool) -> int:
    for match in TAG.finditer(text):
        if match.start() < at < match.end():
            return match.end() if up else match.start()
    return at


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                min(len(a), len(b)))  # fmt: skip
