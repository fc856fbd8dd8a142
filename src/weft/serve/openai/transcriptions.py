"""The endpoints `/v1/audio/transcriptions` and `/v1/audio/translations`, with a model that hears.

A model with a token for it (Voxtral's [TRANSCRIBE]) is asked as it was trained; others are asked in
words. Such a model does not say when a word was spoken, so there are no subtitles; with
`--transcriber`, Whisper does (`whisper.py`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response
from pydantic import Field
from starlette.datastructures import FormData, UploadFile

from weft.llm import Tokenizer
from weft.llm.answers import Content
from weft.llm.audio.sounds import open_sound
from weft.serve.endpoints import add
from weft.serve.errors import ApiError, Json
from weft.serve.openai import whisper
from weft.serve.prompts import Asked
from weft.serve.request_body import read_form
from weft.serve.respond import note, respond, sse, sse_error, start
from weft.serve.schema import Body, ChatBody
from weft.serve.service import Service
from weft.serve.texts import OneChat, Texts

Task = Literal["transcribe", "translate"]
TRANSCRIBE = "[TRANSCRIBE]"
"""The token with which a model that has it begins a transcript, behind `lang:` and the language."""
_WORDS = {
    "transcribe": "Transcribe what is said{language}. Answer with the transcript only.",
    "translate": "Translate what is said into English. Answer with the translation only.",
}
_RATE = 16000


class TranscriptionBody(Body):
    """The fields of the form besides its file."""

    model: str | None = None
    prompt: Annotated[str, Field(max_length=8192)] | None = None
    language: str | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    stream: bool = False
    timestamp_granularities: Any = None
    # these have no effect here
    chunking_strategy: Any = None
    include: Any = None


class TranscriptWriter:
    """The transcript that answers one request; see `AnswerWriter`."""

    def __init__(self, texts: Texts, n_vocab: int, more: dict[str, Any]) -> None:
        """Ids of prompts from `n_vocab` on stand for sound. `more` are further fields of a whole
        answer."""
        self.texts = texts
        self._chat = OneChat(texts)
        self._n_vocab = n_vocab
        self._more = more
        self._begun = False

    async def whole(self) -> dict[str, Any]:
        """The transcript."""
        async for _ in self._spoken():
            pass
        return self._more | {"text": self._text, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields the events; the last is transcript.text.done or an error."""
        try:
            async for text in self._spoken():
                yield sse({"type": "transcript.text.delta", "delta": text})
            done = {"type": "transcript.text.done", "text": self._text}
            yield sse(done | {"usage": self._usage()})
        except ApiError as error:
            yield sse_error(error)

    async def _spoken(self) -> AsyncIterator[str]:
        """Yields the pieces of the transcript, without white space at its beginning."""
        async for event in self._chat.events():
            text = event.text if isinstance(event, Content) else ""
            text = text if self._begun else text.lstrip()
            if text:
                self._begun = True
                yield text

    @property
    def _text(self) -> str:
        return self._chat.message.text.strip()

    def _usage(self) -> dict[str, Any]:
        prompt, n_out = self.texts.prompt(0), self.texts.n_generated
        n_heard = sum(id_ >= self._n_vocab for id_ in prompt)
        return {
            "type": "tokens",
            "input_tokens": len(prompt),
            "input_token_details": {
                "audio_tokens": n_heard, "text_tokens": len(prompt) - n_heard,
            },
            "output_tokens": n_out,
            "total_tokens": len(prompt) + n_out,
        }  # fmt: skip


def add_transcriptions(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""

    @add(app, "/v1/audio/transcriptions")
    async def transcriptions(http: Request) -> Response:
        """The transcript of a sound file."""
        return await _answer(service, http, "transcribe")

    @add(app, "/v1/audio/translations")
    async def translations(http: Request) -> Response:
        """What is said in a sound file, in English."""
        return await _answer(service, http, "translate")


async def _answer(service: Service, http: Request, task: Task) -> Response:
    form = await read_form(http)
    try:
        body = _body(form, times=service.transcriber is not None)
        note(http, body, service)
        sound = await _sound(form)
    finally:
        await form.close()
    if service.transcriber is not None:
        turns = service.transcribing
        return await whisper.answer(service.transcriber, turns, http, sound, task, body)
    more: dict[str, Any] = {}
    if body.response_format == "verbose_json":
        samples = await run_in_threadpool(open_sound, sound, _RATE, files=False)
        more = {"task": task, "language": body.language or ""}
        more["duration"] = round(len(samples) / _RATE, 3)
    texts = await start(service, partial(_asked, service, body, sound, task))
    writer = TranscriptWriter(texts, service.tokenizer.n_vocab, more)
    made = _as_text if body.response_format == "text" else Json
    return await respond(writer, http, stream=body.stream, form=made)


def _body(form: FormData, *, times: bool) -> TranscriptionBody:
    """The checked fields of a form; `times` is true if the model says when something was said."""
    fields = {
        name.removesuffix("[]"): value for name, value in form.items() if isinstance(value, str)
    }
    grains = form.getlist("timestamp_granularities[]") or form.getlist("timestamp_granularities")
    if times and set(grains) <= {"segment"}:
        fields.pop("timestamp_granularities", None)
    body = TranscriptionBody.model_validate(fields)
    form_ = body.response_format
    if (form_ in ("srt", "vtt") and not times) or body.timestamp_granularities:
        name = "timestamp_granularities" if form_ not in ("srt", "vtt") else "response_format"
        instead = (
            "leave it out, or ask for times of segments (segment)" if times else "leave it out, or "
            "ask for json, text or verbose_json; weft serve --transcriber gives times of segments"
        )  # fmt: skip
        what = "the times of words" if body.timestamp_granularities else "times"
        raise ApiError(
            400, f"{name} asks for {what}, which no model here says; {instead}", name, "unsupported"
        )
    if body.language and not re.fullmatch(r"[A-Za-z]{2,20}(-[A-Za-z]{2,8})?", body.language):
        raise ApiError(
            400, f"language is {body.language[:40]!r}; it is a code such as en, or a name",
            "language",
        )  # fmt: skip
    return body


async def _sound(form: FormData) -> bytes:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ApiError(400, "file is missing; it is a sound file: WAV, MP3, FLAC or Ogg", "file")
    data: bytes = await file.read()
    if not data:
        raise ApiError(400, "file is empty", "file")
    return data


def _asked(service: Service, body: TranscriptionBody, sound: bytes, task: Task) -> Asked:
    words, begun = _wanted(body, task, service.tokenizer)
    content: list[dict[str, Any]] = [{"type": "input_audio", "input_audio": {"data": sound}}]
    if words:
        content.append({"type": "text", "text": words})
    fields = {"model": body.model, "temperature": body.temperature, "reasoning_budget": 0}
    messages = [{"role": "user", "content": content}]
    chat = ChatBody.model_validate(fields | {"messages": messages})
    try:
        return service.prompts.of_chat(chat, begun=begun)
    except ApiError as error:
        name = "file" if error.param == "messages" else error.param
        raise ApiError(error.status, str(error), name, error.code) from None


def _wanted(body: TranscriptionBody, task: Task, tokenizer: Tokenizer) -> tuple[str, str]:
    """The instruction to the model, and the beginning of its answer."""
    known = tokenizer.encode(TRANSCRIBE, add_special=False, parse_special=True)
    if task == "transcribe" and len(known) == 1:
        return "", (f"lang:{body.language}" if body.language else "") + TRANSCRIBE
    language = f" in {body.language}" if body.language else ""
    words = _WORDS[task].format(language=language)
    if body.prompt:
        words += f" It belongs to this: {body.prompt}"
    return words, ""


def _as_text(answer: dict[str, Any]) -> Response:
    return PlainTextResponse(f"{answer['text']}\n".encode(errors="replace"))
