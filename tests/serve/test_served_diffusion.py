"""Models that write by diffusion, behind the APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError

from tests.llm.diffusion_models import make_diffusion
from tests.serve.in_process import Server

MESSAGES: Any = [{"role": "user", "content": "the abc"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make_diffusion(
        tmp_path_factory.mktemp("served"),
        **{"tokenizer.chat_template": "{{ messages[0].content }}"},
    )
    with Server(path, "-np", 3, "-t", 1, "--diffusion-block-length", 8) as running:
        yield running


def chat(server: Server, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 20, "extra_body": {"ignore_eos": True}} | options
    return server.client.chat.completions.create(model="x", messages=MESSAGES, **options)


def test_a_stream_is_the_answer(server: Server) -> None:
    whole = chat(server)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 20
    pieces = [c.choices[0].delta.content or "" for c in chat(server, stream=True) if c.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 2
    seeded = [chat(server, temperature=1.0, seed=5).choices[0].message.content for _ in "ab"]
    assert seeded[0] == seeded[1]


def test_options_are_fields(server: Server) -> None:
    body = {"ignore_eos": True, "diffusion_eps": 0.01, "diffusion_block_length": 0}
    other = chat(server, extra_body=body | {"diffusion_algorithm": "margin"})
    assert other.choices[0].message.content != chat(server).choices[0].message.content
    texts = chat(server, n=2, temperature=1.0, seed=1).choices
    assert texts[0].message.content != texts[1].message.content


def test_requests_of_several_clients(server: Server) -> None:
    want = chat(server).choices[0].message.content
    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(lambda _: chat(server).choices[0].message.content, range(6)))
    assert set(texts) == {want}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "by diffusion"),
        ({"presence_penalty": 0.5}, "by diffusion"),
        ({"extra_body": {"diffusion_algorithm": "cleverest"}}, "diffusion_algorithm"),
        ({"extra_body": {"diffusion_eps": 0.5}}, "both given"),
    ],
)
def test_what_it_cannot_is_refused(server: Server, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        chat(server, **options)


def test_other_apis(server: Server) -> None:
    body = {"prompt": "the abc", "n_predict": 6, "temperature": 0, "ignore_eos": True}
    done = server.call("POST", "/completion", body)[2]
    assert (done["tokens_predicted"], done["stop_type"]) == (6, "limit")
    status, _, error = server.call("POST", "/completion", body | {"n_probs": 2})
    assert status == 400 and "token by token" in json.dumps(error)
    models = server.call("GET", "/v1/models")[2]["data"]
    assert models[0]["meta"]["n_ctx"] == 64
    assert server.call("GET", "/api/tags")[0] == 200
