"""Transcripts by a model of Whisper, which stands beside the server's model (`--transcriber`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from weft.errors import ArgumentError, ContextError
from weft.llm import Segment, Task, Transcriber
from weft.llm.audio import subtitles
from weft.llm.audio.languages import NAMES, code_of
from weft.llm.audio.sounds import Samples, open_sound
from weft.llm.audio.transcriber import TEMPERATURES
from weft.serve.errors import ApiError, Json
from weft.serve.respond import STREAM_HEADERS, client_left, sse

RATE = 16000


async def answer(
    transcriber: Transcriber,
    turn: asyncio.Lock,
    http: Request,
    sound: bytes,
    task: Task,
    asked: Any,
) -> Response:
    """The transcript of a sound file in the format that the form `asked` says; who holds `turn`
    uses the transcriber."""
    try:
        samples = await run_in_threadpool(open_sound, sound, RATE, files=False)
    except ContextError as error:
        raise ApiError(400, str(error), "file") from None
    found = _segments(transcriber, turn, samples, task, asked)
    if asked.stream:
        return StreamingResponse(
            _events(found), media_type="text/event-stream", headers=STREAM_HEADERS
        )
    whole = asyncio.create_task(_all(found))
    left = asyncio.create_task(client_left(http))
    try:
        await asyncio.wait((whole, left), return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            return Response(status_code=499)  # the client has left
        language, segments = whole.result()
    finally:
        whole.cancel()
        left.cancel()
    return _shown(segments, language, task, len(samples) / RATE, asked)


async def _segments(
    transcriber: Transcriber, turn: asyncio.Lock, samples: Samples, task: Task, asked: Any
) -> AsyncIterator[str | Segment]:
    """Yields the language and then the segments, each when it is written; whoever leaves between
    two of them ends it."""
    async with turn:
        code, first = code_of(asked.language), asked.temperature
        try:
            heard = transcriber.language_of
            language = code or (await run_in_threadpool(heard, samples))[0]
            segments = transcriber.segments(
                samples, language=language, task=task, prompt=asked.prompt or "",
                temperatures=[first, *(t for t in TEMPERATURES if t > first)],
            )  # fmt: skip
            yield language
            while (segment := await run_in_threadpool(next, segments, None)) is not None:
                yield segment
        except ArgumentError as error:
            raise ApiError(400, str(error), "language") from None


async def _all(found: AsyncIterator[str | Segment]) -> tuple[str, list[Segment]]:
    language, segments = "en", []
    async for part in found:
        if isinstance(part, str):
            language = part
        else:
            segments.append(part)
    return language, segments


async def _events(found: AsyncIterator[str | Segment]) -> AsyncIterator[bytes]:
    text = ""
    async for part in found:
        if isinstance(part, Segment):
            new = part.text if text else part.text.lstrip()
            text += new
            yield sse({"type": "transcript.text.delta", "delta": new})
    yield sse({"type": "transcript.text.done", "text": text.strip()})


def _shown(
    segments: list[Segment], language: str, task: Task, seconds: float, asked: Any
) -> Response:
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
    more = {"task": task, "language": NAMES[language], "duration": round(seconds, 3)}
    return Json(data | more | usage)
