"""Speech of a server with a model that speaks beside its model, with the official client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError

from tests.serve.in_process import DEMO, Server

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm import speaking_models
from weft.llm import Speaker
from weft.llm.audio import wave

TEXT = "The quick brown fox. It ran."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speech") / "model"
    speaking_models.make(made)
    (made / "voices").mkdir()
    voice = np.random.default_rng(0).normal(size=600).astype(np.float32) * 0.2
    (made / "voices" / "ann.wav").write_bytes(wave.head(1000, 600) + wave.pcm(voice))
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(DEMO, "-c", 256, "--speaker", folder) as started:
        yield started


def ask(server: Server, **options: Any) -> Any:
    more = {"temperature": 0} | options.pop("extra", {})
    asked = {"model": "x", "input": TEXT, "voice": "ann", "response_format": "wav"} | options
    return server.client.audio.speech.create(**asked, extra_body=more)


def test_the_sound_of_a_text(server: Server, folder: Path) -> None:
    """The samples are those of `Speaker`, as a file whose length is not known and bare."""
    want = Speaker(folder).wav(TEXT, voice="ann", temperature=0)
    got = ask(server)
    assert got.response.headers["content-type"] == "audio/wav"
    assert got.response.headers["transfer-encoding"] == "chunked"
    assert got.content[:40] == wave.head(1000)[:40] and got.content[44:] == want[44:]
    assert ask(server, response_format="pcm").content == want[44:]
    other = ask(server, voice="default", extra={"voice": {"id": "default"}}).content
    assert other[44:] == Speaker(folder).wav(TEXT, temperature=0)[44:] != want[44:]


def test_pieces_and_events(server: Server, folder: Path) -> None:
    want = Speaker(folder).wav(TEXT, voice="ann", temperature=0)
    client = server.client.audio.speech.with_streaming_response
    with client.create(
        model="x", input=TEXT, voice="ann", response_format="pcm", extra_body={"temperature": 0}
    ) as answer:
        pieces = list(answer.iter_bytes())
    assert b"".join(pieces) == want[44:]
    with client.create(
        model="x", input=TEXT, voice="ann", response_format="pcm", stream_format="sse",
        extra_body={"temperature": 0},
    ) as answer:  # fmt: skip
        events = [
            json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")
        ]
    assert b"".join(base64.b64decode(e["audio"]) for e in events[:-1]) == want[44:]
    assert events[-1] == {"type": "speech.audio.done"}


def test_a_client_that_leaves(server: Server) -> None:
    """Its turn ends, and with it the speech."""
    asked = {"input": "The fox ran. " * 200, "voice": "ann", "response_format": "pcm"}
    for _ in range(2):
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=asked) as answer:
            assert len(next(answer.iter_bytes())) > 0
    assert ask(server).content
    done = httpx.post(f"{server.url}/v1/audio/speech", json=asked | {"input": "Hi."})
    assert done.status_code == 200


def test_what_is_refused(server: Server) -> None:
    for options, message in (
        ({"voice": "alloy"}, "voice is 'alloy'; known are ann, default"),
        ({"voice": "/etc/passwd"}, "known are ann, default"),
        ({"response_format": "mp3"}, "response_format is 'mp3', which this server does not write"),
        ({"speed": 1.5}, "speed is 1.5; the model speaks at its own speed"),
        ({"speed": 9}, "speed"),
        ({"instructions": "whisper"}, "instructions are not followed"),
        ({"input": ""}, "input"),
        ({"input": " \n"}, "the text is empty"),
        ({"input": "a" * 5000}, "input"),
        ({"extra": {"temperature": -1}}, "temperature"),
    ):
        with pytest.raises(BadRequestError, match=message):
            ask(server, **options)
    assert ask(server).content  # and the next request has its turn


def test_a_server_without_a_speaker() -> None:
    with Server(DEMO, "-c", 256) as started:
        done = httpx.post(f"{started.url}/v1/audio/speech", json={"input": "a", "voice": "b"})
    assert done.status_code == 400 and "--speaker MODEL" in done.json()["error"]["message"]
