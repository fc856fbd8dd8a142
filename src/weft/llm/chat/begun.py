"""Renders a conversation whose answer has begun already."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from weft.llm.chat.template import ChatTemplate, Message

__all__ = ["render_begun"]


def render_begun(
    template: ChatTemplate, messages: Sequence[Message], begun: str, **options: Any
) -> str:
    """The text of `messages` and of an answer that begins with `begun`, where the model goes on.

    The template writes the answer as one of earlier turns, so what it puts before an answer (an
    empty reasoning, for example) is there. If it does not write an answer at the end, `begun`
    follows the text that asks for one. `options` are those of `ChatTemplate.render`, which says
    what is raised."""
    mark = f"<begun-{secrets.token_hex(8)}>"  # no text of a user can be one
    answer = {"role": "assistant", "content": mark}
    whole = template.render([*messages, answer], add_generation_prompt=False, **options)
    before, found, _ = whole.rpartition(mark)
    if not found:
        before = template.render(messages, **options)
    return before + begun
