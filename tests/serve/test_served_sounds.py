"""Sounds in messages, over the API and on the command line."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

from tests.cli.in_process import weft
from tests.serve.in_process import DEMO, Server

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import sound_models
from tests.llm.sounds import sound, wav


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    _, text, tower = sound_models.files("voxtral", tmp_path_factory.mktemp("voxtral"))
    return text, tower


@pytest.fixture(scope="module")
def server(files: tuple[Path, Path]) -> Iterator[Server]:
    with Server(files[0], "--mmproj", files[1], "-c", 256, "--parallel", 2) as started:
        yield started


def part(seed: int, **changes: Any) -> Any:
    data = base64.b64encode(wav(sound(seed))).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"} | changes}


def ask(server: Server, *parts: Any) -> Any:
    content = [*parts, {"type": "text", "text": "abc"}]
    return server.client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": content}], max_tokens=6, temperature=0,
        logprobs=True,
    )  # fmt: skip


def test_sounds_are_heard_and_kept(server: Server) -> None:
    first, other = ask(server, part(0)), ask(server, part(1))
    tokens = [
        [token.logprob for token in answer.choices[0].logprobs.content] for answer in (first, other)
    ]
    assert tokens[0] != tokens[1]
    again = ask(server, part(0))
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.usage.prompt_tokens == first.usage.prompt_tokens > 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (part(0, data="AAAA"), "none of WAV, MP3"),
        (part(0, data="@@@"), "is damaged"),
        (part(0, format="aiff"), "known are wav, mp3"),
        ({"type": "input_audio", "input_audio": {}}, "has no sound"),
        ({"type": "audio", "path": "/etc/passwd"}, "are not fetched"),
        ({"type": "audio_url", "audio_url": {"url": "http://a.org/a.wav"}}, "are not fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, "no tower for"),
    ],
)
def test_what_is_refused(server: Server, given: Any, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        ask(server, given)


def test_a_model_without_a_tower() -> None:
    with Server(DEMO) as deaf, pytest.raises(BadRequestError, match="no sounds; start it with"):
        ask(deaf, part(0))


def test_the_command_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    text, tower = files
    path = tmp_path / "a.wav"
    path.write_bytes(wav(sound()))
    run = ["run", text, "--mmproj", tower, "-p", "abc", "-n", "8", "--temp", "0"]
    heard, deaf = weft(*run, "--audio", path), weft(*run)
    assert heard.returncode == 0, heard.stderr
    assert heard.stdout.strip() and heard.stdout != deaf.stdout
    assert "tower: mmproj.gguf on cpu" in heard.stderr
    bad = weft(*run, "--audio", text)
    assert bad.returncode and "none of WAV, MP3, FLAC and Ogg" in bad.stderr
    chat = ["chat", text, "--mmproj", tower, "-n", "8", "--temp", "0"]
    talk = weft(*chat, "--audio", path, "-p", "abc", "-st")
    assert talk.returncode == 0, talk.stderr
    assert talk.stdout.strip()
