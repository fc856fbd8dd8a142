"""Images and sounds in the messages of a conversation: parts of their contents, which a chat
template sees as marks in text."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from weft.errors import ChatError
from weft.records import dataclass

__all__ = ["Kind", "Marked", "Medium", "counted", "mark_media"]

Kind: TypeAlias = Literal["image", "audio"]
KINDS: Mapping[str, Kind] = {
    "image_url": "image", "input_image": "image", "image": "image",
    "input_audio": "audio", "audio_url": "audio", "audio": "audio",
}  # fmt: skip
"""Kind of medium by the type of a part."""
NOUNS: Mapping[Kind, str] = {"image": "image", "audio": "sound"}
_EXAMPLES = {
    "image": '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}',
    "audio": '{"type": "input_audio", "input_audio": {"data": "...", "format": "wav"}}',
}
_FORMATS = ("wav", "mp3", "flac", "ogg")


@dataclass(frozen=True, slots=True)
class Medium:
    """An image or a sound of a message."""

    kind: Literal["image", "audio"]
    value: Any
    """A URL, a path, bytes, an array or an image of Pillow."""

    @property
    def noun(self) -> str:
        """The kind of medium in words."""
        return NOUNS[self.kind]


@dataclass(frozen=True, slots=True)
class Marked:
    """Messages whose images and sounds are marks in their texts."""

    messages: list[Any]
    media: list[Medium]
    """The media in order of their marks."""
    mark: str
    """The text of every mark."""

    def pieces(self, text: str) -> list[str]:
        """The text of a prompt between the marks. Raises ChatError if the template has left out
        or repeated one."""
        pieces = text.split(self.mark)
        if len(pieces) != len(self.media) + 1:
            raise ChatError(
                f"the chat template has {len(pieces) - 1} places for {counted(self.media)}"
            )
        return pieces


def counted(media: Sequence[Medium]) -> str:
    """The numbers of images and sounds, in words."""
    counts = Counter(medium.kind for medium in media)
    return " and ".join(f"{n} {NOUNS[kind]}s" for kind, n in counts.items())


def mark_media(messages: Iterable[Any]) -> Marked:
    """Replaces parts that are images or sounds by marks; other parts stay as they are. They are
    `{"type": "image_url", "image_url": {"url": ...}}` and `{"type": "input_audio", "input_audio":
    {"data": ..., "format": "wav"}}` (OpenAI's), `{"type": "audio_url", "audio_url": {"url":
    ...}}`, `{"type": "image", "image": ...}` and `{"type": "audio", "audio": ...}`."""
    mark = f"<media-{secrets.token_hex(8)}>"  # no text of a user can be one
    media: list[Medium] = []

    def part_of(part: Any) -> Any:
        kind = KINDS.get(part["type"]) if _has_type(part) else None
        if kind is None:
            return part
        media.append(Medium(kind, _value(part, kind)))
        return {"type": "text", "text": mark}

    marked = [_with_parts(message, part_of) for message in messages]
    return Marked(marked, media, mark)


def _has_type(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("type"), str)


def _with_parts(message: Any, part_of: Callable[[Any], Any]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [part_of(part) for part in content]}


def _value(part: Mapping[str, Any], kind: Kind) -> Any:
    name = part["type"]
    value = part.get("image_url") if name == "input_image" else part.get(name)
    if isinstance(value, Mapping):
        value = _encoded(value) if name == "input_audio" else value.get("url")
    if value is None and name == kind:
        value = next((part[key] for key in ("url", "path") if key in part), None)
    if value is None:
        raise ChatError(f"a part of type {name} has no {NOUNS[kind]}; write {_EXAMPLES[kind]}")
    return value


def _encoded(sound: Mapping[str, Any]) -> Any:
    """A data URL of base64 in `data`, or bytes in it."""
    data, form = sound.get("data"), sound.get("format", "wav")
    if form not in _FORMATS:
        raise ChatError(
            f"the format of input_audio is {str(form)[:40]!r}; known are {', '.join(_FORMATS)}"
        )
    return f"data:audio/{form};base64,{data}" if isinstance(data, str) else data
