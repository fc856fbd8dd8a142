"""Images in messages, over the API."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError

from tests.serve.in_process import DEMO, Server

pytest.importorskip("torch")
pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from tests.llm import vision_models  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    _, text, tower = vision_models.gemma3(tmp_path_factory.mktemp("gemma3"))
    with Server(text, "--mmproj", tower, "-c", 256, "--parallel", 2) as started:
        yield started


def url(seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 30, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def ask(server: Server, *urls: str) -> Any:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    parts.append({"type": "text", "text": "abc"})
    return server.client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": parts}], max_tokens=6, temperature=0,
        logprobs=True,
    )  # fmt: skip


def test_images_are_seen_and_kept(server: Server) -> None:
    first, other = ask(server, url(0)), ask(server, url(1))
    tokens = [
        [token.logprob for token in answer.choices[0].logprobs.content] for answer in (first, other)
    ]
    assert tokens[0] != tokens[1]
    again = ask(server, url(0))
    assert again.choices[0].message.content == first.choices[0].message.content
    n = first.usage.prompt_tokens
    assert ask(server, url(0), url(1)).usage.prompt_tokens > n + 16
    assert n > 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("https://example.org/a.png", "are not fetched"),
        ("/etc/passwd", "are not fetched"),
        ("data:image/png;base64,AAAA", "cannot be decoded"),
    ],
)
def test_what_is_refused(server: Server, given: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        ask(server, given)


def test_more_images_than_the_context_holds(server: Server) -> None:
    with pytest.raises(BadRequestError, match="30 images have 480 rows"):
        ask(server, *[url(0)] * 30)


def test_ids_of_images_are_no_tokens_of_completions(server: Server) -> None:
    ask(server, url(0))
    with pytest.raises(BadRequestError, match="the last is"):
        server.client.completions.create(model="m", prompt=[1, 1 << 20], max_tokens=1)


def test_a_model_without_a_tower() -> None:
    with Server(DEMO) as blind, pytest.raises(BadRequestError, match="--mmproj"):
        ask(blind, url(0))
