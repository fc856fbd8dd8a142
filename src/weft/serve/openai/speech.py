"""The endpoint `/v1/audio/speech`: a text as sound, by the model of `--speaker`, sent while it is
made."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from numpy.typing import NDArray
from pydantic import Field
from starlette.types import Receive, Scope, Send

from weft.bounds import SPEECH_REQUEST_CHARACTERS
from weft.errors import ArgumentError, WeftError
from weft.llm.audio import wave
from weft.llm.audio.any_speaker import AnySpeaker
from weft.serve.endpoints import add
from weft.serve.errors import ApiError, of_exception
from weft.serve.respond import STREAM_HEADERS, client_left, note, sse, sse_error
from weft.serve.schema import Body
from weft.serve.service import Service
from weft.serve.turns import Turns

NO_VOICE = "default"
"""The voice of a request that asks for none of the model's."""
_TYPES = {"wav": "audio/wav", "pcm": "audio/pcm"}


class SpeechBody(Body):
    """The fields of a request."""

    input: Annotated[str, Field(min_length=1, max_length=SPEECH_REQUEST_CHARACTERS)]
    voice: str | dict[str, Any] = NO_VOICE
    model: str | None = None
    response_format: Literal["wav", "pcm", "mp3", "opus", "aac", "flac"] = "wav"
    stream_format: Literal["audio", "sse"] = "audio"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    instructions: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


def add_speech(app: FastAPI, service: Service) -> None:
    """Adds the endpoint to an application."""

    @add(app, "/v1/audio/speech")
    async def speech(body: SpeechBody, http: Request) -> Response:
        """A text as sound."""
        note(http, body, service)
        if service.speaker is None:
            raise ApiError(
                400, "this server has no model that speaks; start it with --speaker MODEL", "model",
                "unsupported",
            )  # fmt: skip
        voice = _voice(body, service.speaker)
        found = _frames(service.speaker, service.speaking, body, voice)
        begun = asyncio.create_task(anext(found))
        left = asyncio.create_task(client_left(http))
        try:
            await asyncio.wait((begun, left), return_when=asyncio.FIRST_COMPLETED)
            if not begun.done():
                return Response(status_code=499)  # the client has left
            first = begun.result()
        finally:
            begun.cancel()
            left.cancel()
        return _Stream(found, first, body, service.speaker.rate)


def _voice(body: SpeechBody, speaker: AnySpeaker) -> str | None:
    """The name of the voice. Raises ApiError for what is not done."""
    for field, wrong, what in (
        ("response_format", body.response_format not in _TYPES,
         f"is {body.response_format!r}, which this server does not write; ask for wav or pcm"),
        ("speed", body.speed != 1, f"is {body.speed}; the model speaks at its own speed (1) only"),
        ("instructions", bool(body.instructions),
         "are not followed by the model; leave them out, or choose another voice"),
    ):  # fmt: skip
        if wrong:
            raise ApiError(400, f"{field} {what}", field, "unsupported")
    voice: object = body.voice
    name = voice.get("id") if isinstance(voice, dict) else voice
    known = (*speaker.voices, NO_VOICE)
    if name not in known:
        raise ApiError(
            400, f"voice is {str(name)[:60]!r}; known are {', '.join(known)[:2000]}", "voice"
        )
    return None if name == NO_VOICE and name not in speaker.voices else str(name)


_Frames = AsyncGenerator[NDArray[np.float32], None]


async def _frames(
    speaker: AnySpeaker, turns: Turns, body: SpeechBody, voice: str | None
) -> _Frames:
    """Yields samples as they are made; whoever leaves between two frames ends it."""
    async with turns.held():
        try:
            frames = await turns.call(
                speaker.speak, body.input, voice=voice, temperature=body.temperature,
                seed=body.seed, files=False,
            )  # fmt: skip
        except ArgumentError as error:
            raise ApiError(400, str(error), "input") from None
        while (frame := await turns.call(next, frames, None)) is not None:
            yield frame


class _Stream(StreamingResponse):
    """A sound that is sent while it is made. At its end, whatever ends it and even if it never
    began, the next request has its turn."""

    def __init__(
        self, found: _Frames, first: NDArray[np.float32], body: SpeechBody, rate: int
    ) -> None:
        events = body.stream_format == "sse"
        kind = "text/event-stream" if events else _TYPES[body.response_format]
        head = wave.head(rate) if body.response_format == "wav" else b""
        made = _bytes(found, first, head)
        super().__init__(_events(made) if events else made, media_type=kind, headers=STREAM_HEADERS)
        self._found = found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._found.aclose()


async def _bytes(found: _Frames, first: NDArray[np.float32], head: bytes) -> AsyncIterator[bytes]:
    yield head + wave.pcm(first)
    async for frame in found:
        yield wave.pcm(frame)


async def _events(made: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for data in made:
            yield sse({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
    except (ApiError, WeftError) as error:
        yield sse_error(of_exception(error))
        return
    yield sse({"type": "speech.audio.done"})
