"""Transcripts of a server with Whisper beside its model, with the official client."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APITimeoutError, BadRequestError

from tests.serve.in_process import DEMO, Server

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm import speech_models
from tests.llm.sounds import wav
from tests.llm.test_transcriber import noise
from weft.errors import BusyError
from weft.llm import Transcriber
from weft.serve.turns import Turns

SOUND = wav((noise(2.2) * 32768).astype("<i2"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("whisper")
    speech_models.make(made)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(DEMO, "-c", 256, "--transcriber", folder) as started:
        yield started


def hear(server: Server, **options: Any) -> Any:
    return server.client.audio.transcriptions.create(
        model="x", file=("a.wav", SOUND), **{"language": "en"} | options
    )


def test_a_transcript_with_times(server: Server, folder: Path) -> None:
    """The segments are those of `Transcriber`, in every format."""
    want = list(Transcriber(folder).segments(SOUND, language="en"))
    text = "".join(segment.text for segment in want).strip()
    got = hear(server, response_format="verbose_json", timestamp_granularities=["segment"])
    assert got.text == text and got.language == "english" and got.duration == 2.2
    assert [(s.start, s.end, s.text) for s in got.segments] == [
        (s.start, s.end, s.text) for s in want
    ]
    assert hear(server).text == text and hear(server).usage.type == "duration"
    assert hear(server, response_format="text").strip() == text
    assert hear(server, response_format="srt").startswith("1\n00:00:0")
    assert hear(server, response_format="vtt").startswith("WEBVTT\n")
    told = list(hear(server, stream=True))
    assert "".join(e.delta for e in told[:-1]).strip() == told[-1].text == text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the client's
        english = server.client.audio.translations.create(model="x", file=("a.wav", SOUND))
    assert english.text


def test_what_is_refused(server: Server) -> None:
    for options, message in (
        ({"timestamp_granularities": ["word"]}, "asks for the times of words"),
        ({"language": "fr"}, "the model knows en, de"),
        ({"prompt": "x" * 9000}, "it must be a text"),
    ):
        with pytest.raises(BadRequestError, match=message):
            hear(server, **options)
    with pytest.raises(BadRequestError, match="the model knows en, de"):
        hear(server, language="fr", stream=True)
    with pytest.raises(BadRequestError, match="none of WAV, MP3, FLAC and Ogg"):
        server.client.audio.transcriptions.create(model="x", file=("a.wav", b"x" * 99))


def test_clients_that_leave(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is being written ends before the next request uses the transcriber."""
    inside, most, once = 0, 0, Transcriber._once

    def slow(self: Transcriber, *args: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.1)
        inside -= 1
        return once(self, *args)

    monkeypatch.setattr(Transcriber, "_once", slow)
    for stream in (False, True):
        for _ in range(2):
            with pytest.raises((APITimeoutError, httpx.TimeoutException)):
                client = server.client.with_options(timeout=0.1, max_retries=0)
                answer: Any = client.audio.transcriptions.create(
                    model="x", file=("a.wav", SOUND), language="en", stream=stream, temperature=1
                )
                list(answer)
    assert hear(server, temperature=1).usage and most == 1


def test_too_many_clients() -> None:
    async def two() -> None:
        turns = Turns(1)
        async with turns.held():
            with pytest.raises(BusyError, match="1 requests wait already"):
                async with turns.held():
                    pass
        async with turns.held():
            assert await turns.call(len, "abc") == 3

    asyncio.run(two())
