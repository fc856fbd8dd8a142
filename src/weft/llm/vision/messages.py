"""Images in the messages of a conversation: parts of their contents, which a chat template sees as
marks in text."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.errors import ChatError
from weft.records import dataclass

__all__ = ["Marked", "mark_images"]

KINDS = ("image_url", "input_image", "image")


@dataclass(frozen=True, slots=True)
class Marked:
    """Messages whose images are marks in their texts."""

    messages: list[Any]
    images: list[Any]
    """The images in order of their marks: URLs, paths, bytes, arrays or images of Pillow."""
    mark: str
    """The text of every mark."""

    def pieces(self, text: str) -> list[str]:
        """The text of a prompt between the images. Raises ChatError if the template has left out
        or repeated an image."""
        pieces = text.split(self.mark)
        if len(pieces) != len(self.images) + 1:
            raise ChatError(
                f"the chat template has {len(pieces) - 1} places for {len(self.images)} images"
            )
        return pieces


def mark_images(messages: Iterable[Any]) -> Marked:
    """Replaces parts `{"type": "image_url", "image_url": {"url": ...}}` (OpenAI's) and
    `{"type": "image", "image": ...}` by marks. Other parts stay as they are."""
    mark = f"<image-{secrets.token_hex(8)}>"  # no text of a user can be one
    images: list[Any] = []

    def part_of(part: Any) -> Any:
        if not isinstance(part, Mapping) or part.get("type") not in KINDS:
            return part
        images.append(_image(part))
        return {"type": "text", "text": mark}

    marked = [_with_parts(message, part_of) for message in messages]
    return Marked(marked, images, mark)


def _with_parts(message: Any, part_of: Callable[[Any], Any]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [part_of(part) for part in content]}


def _image(part: Mapping[str, Any]) -> Any:
    kind = part["type"]
    image = part.get("image_url") if kind == "input_image" else part.get(kind)
    if isinstance(image, Mapping):
        image = image.get("url")
    if image is None and kind == "image":
        image = next((part[name] for name in ("url", "path") if name in part), None)
    if image is None:
        raise ChatError(
            f'a part of type {kind} has no image; write {{"type": "image_url", "image_url": '
            '{"url": "data:image/png;base64,..."}}'
        )
    return image
