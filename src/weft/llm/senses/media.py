"""Bytes of an image or a sound from a path, a data URL or an object, within a limit; and limits of
what is decoded at a time, since files of a few kilobytes may have gigabytes of pixels and
samples. `mark_media` puts marks into messages in place of images and sounds."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from weft.bounds import (
    DECODED_AT_ONCE,
    DECODED_OF_REQUEST,
    DECODING_SECONDS,
    DECODINGS_WAITING,
    MEDIA_BYTES,
)
from weft.errors import BusyError, ChatError, ContextError
from weft.heap import trim_heap
from weft.records import dataclass

MOST_BYTES = MEDIA_BYTES
"""Maximum number of bytes of a file of an image or a sound."""
_ADDRESS = re.compile(r"(?:https?|ftp|s3):/", re.IGNORECASE)
_DATA = re.compile(r"data:[\w.+-]*/?[\w.+-]*(?:; *[\w.+=-]+)*?; *base64,", re.ASCII | re.IGNORECASE)
_STANDARD = str.maketrans("-_", "+/")
"""Maps the letters of URL-safe base64 to the letters of the standard."""


def media_bytes(given: Any, what: str, example: str, *, files: bool) -> Any:
    """The bytes that `given` has or names; an object that is neither text, path nor bytes comes
    back as it is. `what` is "an image", and `example` "image/png".

    With `files`, a text that is no data URL is a path. Raises ContextError for a file that cannot
    be read, damaged base64, and more than `MOST_BYTES`."""
    if isinstance(given, str) and given[:5].lower() == "data:":
        return _data(given, what, example)
    if isinstance(given, str | os.PathLike):
        if files and _ADDRESS.match(os.fspath(given)):
            raise ContextError(
                f"{what} is {os.fspath(given)[:200]!r}; addresses of other machines are not "
                "fetched: download it and give the file"
            )
        if not files:
            raise ContextError(
                f"{what} is a data: URL with base64 (data:{example};base64,...), not "
                f"{str(given)[:40]!r}; addresses of other machines are not fetched"
            )
        return _read(Path(given), what)
    if isinstance(given, bytes | bytearray | memoryview):
        data = bytes(given)
        if len(data) > MOST_BYTES:
            raise ContextError(
                f"{what} has {len(data)} bytes, more than {MOST_BYTES}; make it smaller"
            )
        return data
    return given


def _data(url: str, what: str, example: str) -> bytes:
    start = _DATA.match(url[:256])
    if start is None:
        raise ContextError(
            f"{what}'s data: URL does not begin like data:{example};base64,; write it so"
        )
    if len(url) > MOST_BYTES * 4 // 3 + 256:
        raise ContextError(f"{what} has more than {MOST_BYTES} bytes; make it smaller")
    try:
        return _decoded(url[start.end() :])
    except (binascii.Error, ValueError):
        raise ContextError(
            f"the base64 of {what}'s data: URL is damaged; encode it again"
        ) from None


def _decoded(text: str) -> bytes:
    """The bytes of base64 as programs write it: with line ends, without padding, with the letters
    for addresses or with escapes of addresses."""
    text = "".join((unquote(text) if "%" in text else text).split()).translate(_STANDARD)
    text = text.rstrip("=")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _read(path: Path, what: str) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ContextError(f"{path}: {what} of more than {MOST_BYTES} bytes; make it smaller")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        noun = what.partition(" ")[2]
        raise ContextError(f"{noun} {str(path)[:200]!r} cannot be read: {why}") from None


_LARGE = 1 << 21
"""Number of values after whose decoding memory is given back to the system."""
_spent: ContextVar[list[int] | None] = ContextVar("spent", default=None)


class _Room:
    """The number of values that all threads are decoding."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n = 0
        self._n_waiting = 0

    @contextmanager
    def taken(self, n: int) -> Iterator[None]:
        """Waits for room for `n` values. Raises BusyError if too many wait, or for too long."""
        with self._changed:
            if not self._fits(n):
                self._wait(n)
            self._n += n
        try:
            yield
        finally:
            with self._changed:
                self._n -= n
                self._changed.notify_all()

    def _fits(self, n: int) -> bool:
        return not self._n or self._n + n <= DECODED_AT_ONCE

    def _wait(self, n: int) -> None:
        full = self._n_waiting >= DECODINGS_WAITING
        self._n_waiting += 1
        try:
            if full or not self._changed.wait_for(lambda: self._fits(n), DECODING_SECONDS):
                raise BusyError("too many images and sounds are being decoded; try again later")
        finally:
            self._n_waiting -= 1


_room = _Room()


@contextmanager
def decoding(n: int) -> Iterator[None]:
    """Decodes `n` pixels or samples in the block, when there is room for them.

    Raises ContextError if the request (see `one_request`) has too many of them, and BusyError if
    there is no room for a while."""
    spent = _spent.get()
    if spent is not None:
        spent[0] += n
        if spent[0] > DECODED_OF_REQUEST:
            raise ContextError(
                f"images and sounds have more than {DECODED_OF_REQUEST} pixels and samples "
                "together; give fewer, or smaller ones"
            )
    with _room.taken(n):
        yield
    if n >= _LARGE:
        _give_back()


@contextmanager
def one_request() -> Iterator[None]:
    """Counts all that this thread decodes in the block as one request."""
    before = _spent.set([0])
    try:
        yield
    finally:
        _spent.reset(before)


_given_back = [0.0]


def _give_back() -> None:
    """Returns what decoders have freed to the system."""
    now = time.monotonic()
    if now - _given_back[0] < 0.1:
        return
    _given_back[0] = now
    trim_heap()


# Images and sounds in the messages of a conversation: parts of their contents, which a chat
# template sees as marks in text.

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
