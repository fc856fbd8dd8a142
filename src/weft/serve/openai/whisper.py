"""Transcripts by a model of Whisper, which stands beside the server's model (`--transcriber`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple, TypeAlias

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from weft.errors import ArgumentError, ContextError, WeftError
from weft.llm import Segment, Task, Transcriber
from weft.llm.audio import subtitles
from weft.llm.audio.languages import NAMES, code_of
from weft.llm.audio.sounds import open_sound
from weft.llm.audio.transcriber import TEMPERATURES
from weft.serve.errors import ApiError, Json, of_exception
from weft.serve.respond import STREAM_HEADERS, client_left, sse, sse_error
from weft.serve.turns import Turns

RATE = 16000


async def answer(
    transcriber: Transcriber,
    turns: Turns,
    http: Request,
    sound: bytes,
    task: Task,
    asked: Any,
) -> Response:
    """The transcript of a sound file in the format that the form `asked` says; who holds the turn
    uses the transcriber."""
    found = _segments(transcriber, turns, sound, task, asked)
    begun = asyncio.create_task(_all(found, most=1 if asked.stream else None))
    left = asyncio.create_task(client_left(http))
    try:
        await asyncio.wait((begun, left), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            return Response(status_code=499)  # the client has left
        about, segments = begun.result()
    finally:
        begun.cancel()
        left.cancel()
    return _Stream(found) if asked.stream else _shown(segments, about, task, asked)


class _About(NamedTuple):
    """What is known of a sound before its transcript."""

    language: str
    seconds: float


_Found: TypeAlias = AsyncGenerator[_About | Segment, None]


async def _segments(
    transcriber: Transcriber, turns: Turns, sound: bytes, task: Task, asked: Any
) -> _Found:
    """Yields what is known of the sound and then its segments, each when it is written; whoever
    leaves between two of them ends it. The sound is decoded at its turn, since samples take more
    memory than files."""
    async with turns.held():
        try:
            samples = await turns.call(open_sound, sound, RATE, files=False)
        except ContextError as error:
            raise ApiError(400, str(error), "file") from None
        code, first = code_of(asked.language), asked.temperature
        try:
            language = code or (await turns.call(transcriber.language_of, samples))[0]
            segments = transcriber.segments(
                samples, language=language, task=task, prompt=asked.prompt or "",
                temperatures=[first, *(t for t in TEMPERATURES if t > first)],
            )  # fmt: skip
            yield _About(language, len(samples) / RATE)
            while (segment := await turns.call(next, segments, None)) is not None:
                yield segment
        except ArgumentError as error:
            raise ApiError(400, str(error), "language") from None


async def _all(found: _Found, most: int | None) -> tuple[_About, list[Segment]]:
    """What is known of the sound, and its segments; with `most` no more parts than these."""
    about, segments, n = _About("en", 0.0), list[Segment](), 0
    async for part in found:
        if isinstance(part, _About):
            about = part
        else:
            segments.append(part)
        n += 1
        if n == most:
            break
    return about, segments


class _Stream(StreamingResponse):
    """A streamed transcript. At its end, whatever ends it and even if it never began, the next
    request has its turn."""

    def __init__(self, found: _Found) -> None:
        super().__init__(_events(found), media_type="text/event-stream", headers=STREAM_HEADERS)
        self._found = found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._found.aclose()


async def _events(found: _Found) -> AsyncIterator[bytes]:
    text = ""
    try:
        async for part in found:
            if isinstance(part, Segment):
                new = part.text if text else part.text.lstrip()
                text += new
                yield sse({"type": "transcript.text.delta", "delta": new})
    except (ApiError, WeftError) as error:
        yield sse_error(of_exception(error))
        return
    yield sse({"type": "transcript.text.done", "text": text.strip()})


def _shown(segments: list[Segment], about: _About, task: Task, asked: Any) -> Response:
    language, seconds = about
    form = asked.response_format
    if form in ("srt", "vtt"):
        lines = subtitles.lines(segments, form)
        return PlainTextResponse("".join(f"{line}\n" for line in lines).encode(errors="replace"))
    data = subtitles.as_data(segments, language)
    if form == "text":
        return PlainTextResponse(f"{data['text']}\n".encode(errors="replace"))
    usage = {"usage": {"type": "duration", "seconds": round(seconds)}}
    if form == "json":
        return Json({"text": data["text"]} | usage)
    more = {"task": task, "language": NAMES.get(language, ""), "duration": round(seconds, 3)}
    return Json(data | more | usage)
