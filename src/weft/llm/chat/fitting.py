"""Changes messages into ones that a template writes whole: templates without a system message or
the role `developer` would leave their words out, and some read lists of parts only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import ChatError
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.llm.chat.jinja import JinjaTemplate

__all__ = ["Traits", "in_parts", "merged_systems", "probed", "with_known_roles"]

_SAID = "weft-probe-system"
_ASKED = "weft-probe-user"
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Messages = Sequence[Mapping[str, Any]]


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
