"""`/v1/embeddings` with the official client: several inputs, texts and ids, shapes of answers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openai import BadRequestError

from tests.llm.encoder_models import make_encoder
from tests.serve.in_process import DEMO, Server
from weft.llm import LLM
from weft.serve import ServeOptions, Service
from weft.serve.errors import ApiError

TEXTS = ["What is 17 + 25?", "What is 17 + 26?", "Reverse k t a p?"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "--embeddings", "-t", 1) as running:
        yield running


def embed(server: Server, given: Any, **options: Any) -> NDArray[np.float32]:
    answer = server.client.embeddings.create(
        model="x", input=given, **({"encoding_format": "float"} | options)
    ).data
    assert [e.index for e in answer] == list(range(len(answer)))
    return np.array([e.embedding for e in answer], np.float32)


def test_what_they_are(server: Server) -> None:
    rows = embed(server, TEXTS)
    assert rows.shape == (3, 128)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert rows[0] @ rows[1] > rows[0] @ rows[2]
    np.testing.assert_allclose(rows, LLM(DEMO, n_threads=1).embed(TEXTS), atol=1e-5)


def test_many_at_once_are_what_they_are_alone(server: Server) -> None:
    """More than a batch holds, of many lengths; among them one that fills a batch by itself."""
    texts = [f"What is {i} + {7 * i}? " * (1 + i % 5) for i in range(70)] + ["Count to 9? " * 20]
    alone = np.concatenate([embed(server, text) for text in texts])
    # rows of a batch add floats in another order, and activations are quantized after it
    np.testing.assert_allclose(embed(server, texts), alone, atol=0.01)


def test_texts_are_cut_where_a_request_says_so(server: Server) -> None:
    text = TEXTS[2]
    n = server.client.embeddings.create(model="x", input=text).usage.prompt_tokens
    for most, read in ((4, 4), (-1, n), (n + 5, n)):
        answer = server.client.embeddings.create(
            model="x", input=text, extra_body={"truncate_prompt_tokens": most}
        )
        assert answer.usage.prompt_tokens == read
    long = "Count to 9? " * 60
    with pytest.raises(BadRequestError, match=r"tokens; it must be 1 to 256$"):
        embed(server, long)
    cut = server.client.embeddings.create(
        model="x", input=long, extra_body={"truncate_prompt_tokens": -1}
    )
    assert cut.usage.prompt_tokens == 256
    with Server(DEMO, "--embeddings", "-t", 1, "-ub", 64) as small:
        with pytest.raises(BadRequestError, match="1 to 64; -ub and -c of weft serve bound it"):
            embed(small, "Count to 9? " * 16)


def test_ids_instead_of_texts(server: Server) -> None:
    ids = [server.call("POST", "/tokenize", {"content": text})[2]["tokens"] for text in TEXTS]
    want = embed(server, TEXTS)
    np.testing.assert_allclose(embed(server, ids), want, atol=1e-6)
    np.testing.assert_allclose(embed(server, ids[0]), want[:1], atol=0.01)
    with pytest.raises(BadRequestError, match=r"token ids are 0\.\.478"):
        embed(server, [[10**6]])
    with pytest.raises(BadRequestError, match="text 1 of input has 0 tokens; it must be 1 to 256"):
        embed(server, [[5], []])
    with pytest.raises(BadRequestError, match="text 0 of input has 400 tokens"):
        embed(server, [5] * 400)


def test_base64(server: Server) -> None:
    want = embed(server, TEXTS[0])[0]
    body = {"input": TEXTS[0], "encoding_format": "base64"}
    data = server.call("POST", "/v1/embeddings", body)[2]["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(data), "<f4"), want)
    default = server.client.embeddings.create(model="x", input=TEXTS[0])  # base64 on the wire
    np.testing.assert_array_equal(np.array(default.data[0].embedding, np.float32), want)


def test_dimensions(server: Server) -> None:
    want = embed(server, TEXTS)[:, :32]
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    np.testing.assert_allclose(embed(server, TEXTS, dimensions=32), want, atol=1e-6)
    with pytest.raises(BadRequestError, match="dimensions is 129, but the model gives 128"):
        embed(server, TEXTS, dimensions=129)
    with pytest.raises(BadRequestError, match="dimensions"):
        embed(server, TEXTS, dimensions=0)


def test_usage(server: Server) -> None:
    answer = server.client.embeddings.create(model="x", input=TEXTS)
    ids = [server.call("POST", "/tokenize", {"content": text})[2]["tokens"] for text in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))


def test_a_model_made_for_it(tmp_path: Path) -> None:
    """It writes no text, and every token sees all others of its text, but of no other."""
    path = make_encoder(tmp_path)[0]
    with Server(path, "-t", 1) as server:
        texts = ["the", "abc", "the abc", "b"]
        alone = np.concatenate([embed(server, text) for text in texts])
        np.testing.assert_allclose(embed(server, texts), alone, atol=1e-5)
        status, _, body = server.call("POST", "/v1/completions", {"prompt": "a"})
        assert status == 400 and "gives embeddings only" in body["error"]["message"]


def test_a_client_that_left_is_not_served_to_the_end() -> None:
    service = Service(DEMO, ServeOptions(), embeddings=True, n_ctx=64, n_threads=1)
    asked = 0

    async def left() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    try:
        with pytest.raises(ApiError, match="the client left"):
            asyncio.run(service.embed([[5, 6]] * 1000, None, left))
        assert asked == 3  # batches, of which two were computed
    finally:
        service.close()


def test_names_of_control_tokens(server: Server) -> None:
    text = "a" + server.call("GET", "/props")[2]["eos_token"]
    bodies = [{"content": text, "parse_special": special} for special in (True, False)]
    read, plain = [len(server.call("POST", "/tokenize", body)[2]["tokens"]) for body in bodies]
    used = server.client.embeddings.create(model="x", input=text).usage.prompt_tokens
    assert used == read != plain
