"""The chat templates of published models, where they are on this machine.

`make test` unpacks them from the source distribution of llama-cpp-python into `build/templates`;
they are not a part of this repository. WEFT_TEMPLATES names another folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from weft.errors import ChatError
from weft.llm.answers.probes import Probe, shared_end
from weft.llm.chat.template import ChatTemplate

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("WEFT_TEMPLATES") or ROOT / "build" / "templates")
FILES = sorted(FOLDER.glob("*.jinja"))

ASKED = "What shall we do?"
SAID = "Plain words."
MODES: list[dict[str, Any]] = [
    {},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"},
]
"""Variables of templates that switch reasoning on and off."""


def template_of(path: Path) -> ChatTemplate:
    return ChatTemplate(path.read_text(encoding="utf-8"), bos="<|bos|>", eos="<|weft_eos|>")


class Writer:
    """Writes answers as the model of a template would: what the template renders for an assistant,
    without the texts around an answer."""

    def __init__(self, template: ChatTemplate, tools: list[dict[str, Any]]) -> None:
        self.template, self.tools = template, tools if template.knows_tools else None
        self._head = Probe(template).head
        self._ends = []
        for mode in MODES:
            with contextlib.suppress(ChatError):
                turn = self._turn({"role": "assistant", "content": SAID}, **mode)
                self._ends.append(turn.rpartition(SAID)[2].rstrip())

    def _turn(self, message: dict[str, Any], **mode: Any) -> str:
        user = {"role": "user", "content": ASKED}
        text = self.template.render(
            [user, message], tools=self.tools, add_generation_prompt=False, **mode
        )
        return text.rpartition(ASKED)[2]

    def answer(
        self,
        calls: list[tuple[str, dict[str, Any]]],
        content: str = "",
        reasoning: str = "",
    ) -> tuple[str, str]:
        """The prompt's end, and the text behind it. Raises ChatError if the template refuses."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {"id": f"abcdefgh{i}", "type": "function", "function": {"name": n, "arguments": a}}
                for i, (n, a) in enumerate(calls)
            ]
        if reasoning:
            message["reasoning_content"] = reasoning
        turn = self._turn(message)
        if reasoning not in turn:
            turn = self._turn(message, **MODES[1])
        prompts = self._prompts()
        begin = max((p for p in prompts if turn.startswith(p)), key=len, default="")
        if begin:
            return begin, self._without_end(turn[len(begin) :])
        text = turn.removeprefix(self._head)
        if reasoning and text.startswith(reasoning):
            return prompts[0], self._without_end(text)  # the prompt begins the reasoning
        for prompt in prompts:  # what they end with is not written by the model
            n = next((n for n in range(len(prompt), 0, -1) if text.startswith(prompt[-n:])), 0)
            if prompt[-n:].strip().endswith(">"):
                text = text[n:]
        return self._head, self._without_end(text)

    def _without_end(self, text: str) -> str:
        text = text.rstrip()
        end = max((shared_end(end, text) for end in self._ends), key=len)
        return text[: len(text) - len(end)]

    def _prompts(self) -> list[str]:
        """The ends of prompts, from behind the user's text, without and with reasoning."""
        user = {"role": "user", "content": ASKED}
        texts = []
        for mode in MODES:
            with contextlib.suppress(ChatError):
                texts.append(self.template.render([user], tools=self.tools, **mode))
        return [text.rpartition(ASKED)[2] for text in texts]
