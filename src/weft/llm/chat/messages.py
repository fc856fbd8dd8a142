"""Changes messages into ones that a template writes whole: templates without a system message or
the role `developer` would leave their words out, and some read lists of parts only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import ChatError
from weft.llm.chat.arguments import Arguments
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.llm.chat.jinja import JinjaTemplate

Message = Mapping[str, Any]
"""A message: `role` (system, user, assistant, tool), `content` (text, or a list of `{"type":
"text", "text": TEXT}`), and other keys that a template reads, such as `name` and `tool_calls`."""
Messages = Sequence[Message]


def plain_message(number: int, message: Message) -> dict[str, Any]:
    """Checks a message and joins lists of text parts; raises ChatError if it is malformed."""
    if not isinstance(message, Mapping):
        raise ChatError(
            f'message {number} is {message!r:.60}; write {{"role": "user", "content": "..."}}'
        )
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ChatError(f"message {number} has no role; it is system, user, assistant or tool")
    thoughts = ""
    if isinstance(content, list | tuple):
        parts = []
        for part in content:
            if isinstance(part, str):
                part = {"type": "text", "text": part}
            kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
            text = part.get(_TEXTS.get(kind, "")) if isinstance(part, Mapping) else None
            if not isinstance(text, str):
                raise ChatError(f"message {number} has a part of type {kind}; only text is read")
            if kind in ("thinking", "reasoning"):
                thoughts += text
            else:
                parts.append(text)
        content = "".join(parts)
    if content is None and role == "tool":
        content = ""
    if content is None and role != "assistant":
        raise ChatError(f"message {number} ({role}) has no content")
    if content is not None and not isinstance(content, str):
        raise ChatError(f"message {number} ({role}): content is {content!r:.60}; it must be text")
    plain = {**message, "content": "" if content is None else content}
    if thoughts and role == "assistant":
        plain.setdefault("reasoning_content", thoughts)
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


_TEXTS = {
    **dict.fromkeys(("text", "input_text", "output_text", "reasoning"), "text"),
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of parts of the APIs, and the names of their texts."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that the reasoning of an assistant's message has in templates."""


def with_reasoning(message: dict[str, Any], template: JinjaTemplate) -> dict[str, Any]:
    """A message whose reasoning has the name that the template reads it by."""
    said = next((message[key] for key in _REASONING if isinstance(message.get(key), str)), "")
    names = [key for key in _REASONING if template.reads(key)]
    if not said or message["role"] != "assistant" or not names or names[0] in message:
        return message
    if names[0] == "thinking" and message.get("tool_calls") and message["content"]:
        # gpt-oss takes one of them beside calls
        return {**message, "thinking": f"{said}\n{message['content']}", "content": ""}
    return {**message, names[0]: said}


def _plain_call(call: Any) -> Any:
    """A call whose arguments, if they are JSON, every template can read; see `Arguments`."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _plain_call(function)}
    written = arguments = call.get("arguments")
    if isinstance(written, str):
        try:
            arguments = json.loads(written)
        except (ValueError, RecursionError):
            return call
    if not isinstance(arguments, dict):
        return call
    text = written if isinstance(written, str) else None
    return {**call, "arguments": Arguments(arguments, text)}


_SAID = "weft-probe-system"
_ASKED = "weft-probe-user"
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True)
class Traits:
    """The parts of a conversation that a template writes."""

    system: bool = True
    """True if the template writes a system message."""
    parts: bool = False
    """True if the template writes texts only when they are in a list of parts."""


def probed(render: Callable[[list[dict[str, Any]]], str]) -> Traits:
    """The traits of a template, found by rendering short conversations."""

    def text(*messages: tuple[str, str], parts: bool) -> str:
        plain = [{"role": role, "content": content} for role, content in messages]
        try:
            return render([_in_parts(message) for message in plain] if parts else plain)
        except ChatError:
            return ""

    user, system = ("user", _ASKED), ("system", _SAID)
    plain = _ASKED in text(user, parts=False)
    parts = not plain and _ASKED in text(user, parts=True)
    if not (plain or parts):
        return Traits()
    whole = text(system, user, parts=parts)
    return Traits(system=_SAID in whole and _ASKED in whole, parts=parts)


def with_known_roles(messages: Sequence[dict[str, Any]], template: JinjaTemplate) -> Any:
    """Messages whose roles the template knows: `developer` is a system message elsewhere. Raises
    ChatError for a role that neither the template nor any API has."""
    made: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        role = message["role"]
        if role not in _ROLES and not template.reads(role):
            raise ChatError(
                f"message {number} has the role {role[:40]!r}; it is system, user, assistant or "
                "tool"
            )
        if role == "developer" and not template.reads(role):
            if made and made[-1]["role"] == "system":
                made[-1] = {**made[-1], "content": _joined(made[-1], message)}
                continue
            message = {**message, "role": "system"}
        elif role == "function" and not template.reads(role):
            message = {**message, "role": "tool"}
        made.append(message)
    return made


def merged_systems(messages: Sequence[dict[str, Any]], first: int = 0) -> list[dict[str, Any]]:
    """Messages in which system messages, from message `first` on, are the beginning of the user's
    message behind them."""
    made: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if message["role"] == "system" and number >= first:
            waiting.append(message)
        elif waiting and message["role"] == "user":
            made.append({**message, "content": _joined(*waiting, message)})
            waiting = []
        else:
            made.append(message)
    if not waiting:
        return made
    if made and made[-1]["role"] == "user":
        made[-1] = {**made[-1], "content": _joined(made[-1], *waiting)}
        return made
    return [*made, {"role": "user", "content": _joined(*waiting)}]


def _joined(*messages: Mapping[str, Any]) -> str:
    return "\n\n".join(message["content"] for message in messages if message["content"])


def in_parts(messages: Sequence[dict[str, Any]], given: Messages) -> list[dict[str, Any]]:
    """Messages whose texts are lists of parts: those that were `given`, where they still are."""
    texts = [message.get("content") for message in given]
    parts = {
        "".join(_text_of(part) for part in content): content
        for content in texts
        if isinstance(content, list | tuple)
    }
    return [_in_parts(message, parts.get(message["content"])) for message in messages]


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else ""
    return text if isinstance(text, str) else ""


def _in_parts(message: Mapping[str, Any], given: Any = None) -> dict[str, Any]:
    texts = [message["content"]] if given is None else [_text_of(part) for part in given]
    parts = [{"type": "text", "text": text} for text in texts if text]
    return {**message, "content": parts}
