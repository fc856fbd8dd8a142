"""Transcripts of sounds, with the official client."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError

from tests.serve.in_process import DEMO, Server

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import sound_models
from tests.llm.sounds import sound, wav
from weft.serve.openai.transcriptions import TranscriptionBody, _wanted


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    _, text, tower = sound_models.files("voxtral", tmp_path_factory.mktemp("voxtral"))
    with Server(text, "--mmproj", tower, "-c", 256, "--parallel", 2, "--max-tokens", 8) as started:
        yield started


def hear(server: Server, seed: int = 0, **options: Any) -> Any:
    file = ("a.wav", wav(sound(seed)))
    return server.client.audio.transcriptions.create(model="x", file=file, **options)


def test_a_transcript(server: Server) -> None:
    """It is the answer to a chat with the sound, and comes whole, as text and as a stream."""
    got = hear(server)
    words = "Transcribe what is said. Answer with the transcript only."
    data = base64.b64encode(wav(sound())).decode()
    part: Any = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    chat = server.client.chat.completions.create(
        model="x", temperature=0,
        messages=[{"role": "user", "content": [part, {"type": "text", "text": words}]}],
    )  # fmt: skip
    assert chat.choices[0].message.content and chat.usage is not None
    assert got.text == chat.choices[0].message.content.strip()
    assert got.usage.input_tokens == chat.usage.prompt_tokens
    usage = got.usage
    assert usage.type == "tokens" and usage.output_tokens <= 8
    assert usage.input_token_details.audio_tokens == 5
    details = usage.input_token_details
    assert usage.input_tokens == details.audio_tokens + details.text_tokens
    assert hear(server, response_format="text") == got.text + "\n"
    told = list(hear(server, stream=True))
    assert "".join(e.delta for e in told[:-1]).rstrip() == got.text
    assert told[-1].type == "transcript.text.done" and told[-1].text == got.text
    assert told[-1].usage.total_tokens == usage.total_tokens
    more = hear(server, response_format="verbose_json", language="en", prompt="abc")
    assert more.duration == 0.312 and more.language == "en"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # in some versions of the client
        other = server.client.audio.translations.create(model="x", file=("a.wav", wav(sound())))
    assert other.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": "srt"}, "asks for times, which"),
        ({"timestamp_granularities": ["word"]}, "times of words"),
        ({"response_format": "xml"}, "response_format"),
        ({"language": "en\n"}, "language is"),
        ({"temperature": 3}, "temperature is"),
        ({"file": ("a.wav", b"")}, "file is empty"),
        ({"file": ("a.wav", b"abc")}, "none of WAV, MP3"),
        ({"prompt": "a" * 70000}, "the form cannot be read"),
    ],
)
def test_what_is_refused(server: Server, options: Any, message: str) -> None:
    options = {"file": ("a.wav", wav(sound()))} | options
    with pytest.raises(BadRequestError, match=message):
        server.client.audio.transcriptions.create(model="x", **options)


def test_bodies_that_are_no_forms(server: Server) -> None:
    path = "/v1/audio/transcriptions"
    assert "no form with a file" in str(server.call("POST", path, {"file": "x"})[2])
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    head = b'--b\r\nContent-Disposition: form-data; name="'
    for body, message in (
        (head + b'model"\r\n\r\nx\r\n--b--\r\n', "file is missing"),
        (head + b'file"\r\n\r\nx\r\n--b--\r\n', "file is missing"),
        (b"xyz", "the form cannot be read"),
        (head + b'a"; filename="a"\r\n\r\n' + b"x" * (5 << 20), "the body has more than"),
    ):
        status, _, got = server.call("POST", path, body, **kind)
        assert status in (400, 413) and message in got["error"]["message"], got
    status, _, got = server.call("POST", path, b"", **{"Content-Type": "multipart/form-data"})
    assert status == 400, got


def test_a_model_that_does_not_hear() -> None:
    with Server(DEMO, "-t", 1) as deaf, pytest.raises(BadRequestError, match="no sounds; start it"):
        hear(deaf)


class _Vocab:
    """Knows the token for transcripts, or does not."""

    def __init__(self, *, known: bool) -> None:
        self._known = known

    def encode(self, text: str, **_: Any) -> list[int]:
        return [1] if self._known else list(text.encode())


def test_what_the_model_is_told() -> None:
    knows: Any = _Vocab(known=True)
    plain: Any = _Vocab(known=False)
    body = TranscriptionBody(language="de", prompt="Names: weft")
    assert _wanted(body, "transcribe", knows) == ("", "lang:de[TRANSCRIBE]")
    assert _wanted(TranscriptionBody(), "transcribe", knows) == ("", "[TRANSCRIBE]")
    for tokenizer in (knows, plain):
        words, begun = _wanted(body, "translate", tokenizer)
        assert "into English" in words and words.endswith("Names: weft") and not begun
    words, begun = _wanted(body, "transcribe", plain)
    assert " in de." in words and not begun
