"""What clients of other servers send and expect: their fields, paths, browsers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from openai import BadRequestError
from pydantic import ValidationError

from tests.serve.in_process import DEMO, Server
from weft.llm import LLM, SamplingParams
from weft.serve.endpoints import ENDPOINTS
from weft.serve.errors import ApiError
from weft.serve.schema import ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody
from weft.serve.validation import problem_of

ORIGIN = "http://page.example:3000"
ASK = {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "-np", 4, "-t", 1, "--cors-origin", ORIGIN, key="k") as running:
        yield running


def text(server: Server, prompt: str = "Count from 8 to 11?", **body: Any) -> str:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 30} | body
    status, headers, answer = server.call("POST", "/v1/completions", body)
    assert status == 200, answer
    assert "x-weft-ignored" not in headers
    return str(answer["choices"][0]["text"])


def test_every_sampling_option_is_a_field(server: Server) -> None:
    values = {f.name: getattr(SamplingParams(), f.name) for f in fields(SamplingParams)}
    values["logit_bias"] = {}
    status, headers, body = server.call(
        "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1} | values
    )
    assert status == 200 and "x-weft-ignored" not in headers, body


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_penalty": 1.8, "repeat_last_n": 64},
        {"repetition_penalty": 1.8},
        {"dry_multiplier": 4.0, "dry_penalty_last_n": 100, "dry_sequence_breakers": [" "]},
        {"mirostat": 2, "mirostat_tau": 2.0, "temperature": 1.5, "seed": 3},
        {"typical_p": 0.2, "temperature": 1.5, "seed": 3},
        {"temperature": 1.5, "seed": 3, "top_k": 5.0, "samplers": ["top_k", "temperature"]},
        {"temperature": 1.0, "dynatemp_range": 0.9, "xtc_probability": 1, "seed": 2},
        {"temperature": 2.0, "top_p": 0.1, "min_keep": 20, "seed": 2},
    ],
)
def test_sampling_is_that_of_the_library(server: Server, options: dict[str, Any]) -> None:
    """The same options give the same text, penalties on the prompt included."""
    prompt = "Count from 8 to 11? 8 9 10 11 8 9"
    names = {"repetition_penalty": "repeat_penalty", "dry_penalty_last_n": "dry_last_n"}
    own = {names.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    if "top_k" in own:
        own["top_k"] = 5
    base = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    want = "".join(LLM(DEMO, n_threads=1).generate(prompt, max_tokens=30, **base | own))
    assert text(server, prompt, **options) == want


def test_no_limit(server: Server) -> None:
    long = {"ignore_eos": True, "prompt": "a"}
    for limit in ({"max_tokens": -1}, {"max_tokens": None}, {"n_predict": -1}):
        body = {
            k: v for k, v in (long | limit).items() if k != "max_tokens" or "max_tokens" in limit
        }
        answer = server.call("POST", "/v1/completions", body)[2]
        assert answer["usage"]["total_tokens"] > 200
    for limit, n in (({}, 16), ({"n_predict": 5}, 5), ({"max_tokens": 3, "n_predict": 5}, 3)):
        answer = server.call("POST", "/v1/completions", long | limit)[2]
        assert answer["usage"]["completion_tokens"] == n
    chat = ASK | {"max_tokens": -1}
    assert server.call("POST", "/v1/chat/completions", chat)[0] == 200
    status, _, body = server.call("POST", "/v1/chat/completions", ASK | {"max_tokens": 0})
    assert status == 400 and "max_tokens is 0; it must be 1 or more, or -1" in str(body)


def test_unknown_fields_are_named_and_ignored(server: Server) -> None:
    extra = {"top_kk": 3, "stream_options": {"foo": 1}, "bad\nname": 1, "cache_prompt": True}
    status, headers, _ = server.call("POST", "/v1/chat/completions", ASK | extra)
    assert status == 200
    assert headers["x-weft-ignored"] == "top_kk, cache_prompt, stream_options.foo, and 1 more"
    many = ASK | {f"f{i}": i for i in range(5000)}
    headers = server.call("POST", "/v1/chat/completions", many)[1]
    assert len(headers["x-weft-ignored"]) < 200
    assert "x-weft-ignored" not in server.call("POST", "/v1/chat/completions", ASK)[1]


def test_strict_refuses_them() -> None:
    with Server(DEMO, "-t", 1, "--strict") as server:
        for extra, name in (({"top_kk": 3}, "top_kk"), ({"stream_options": {"x": 1}}, "x")):
            with pytest.raises(BadRequestError, match=f"{name} is not known here; leave it out"):
                server.client.chat.completions.create(model="x", extra_body=extra, **ASK)  # type: ignore[call-overload]
        assert server.call("POST", "/v1/chat/completions", ASK | {"typical_p": 0.5})[0] == 200
        status, _, body = server.call("POST", "/tokenize", {"content": "a", "what": 1})
        assert status == 400 and body["error"]["param"] == "what"


def preflight(server: Server, origin: str) -> tuple[int, dict[str, str]]:
    connection = server.connect()
    asks = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    connection.request("OPTIONS", "/v1/chat/completions", headers=asks)  # browsers send no key
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}


def test_pages_of_an_origin_may_use_it(server: Server) -> None:
    status, headers = preflight(server, ORIGIN)
    assert status == 200
    assert headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in headers["access-control-allow-headers"]
    status, headers, _ = server.call("POST", "/v1/chat/completions", ASK, Origin=ORIGIN)
    assert status == 200 and headers["access-control-allow-origin"] == ORIGIN
    assert "X-Weft-Ignored" in headers["access-control-expose-headers"]
    status, headers = preflight(server, "http://other.example")
    assert status == 400 and "access-control-allow-origin" not in headers
    wrong = server.call("POST", "/v1/chat/completions", ASK, Origin=ORIGIN, Authorization="x")
    assert wrong[0] == 401 and wrong[1]["access-control-allow-origin"] == ORIGIN


def test_no_page_may_where_nobody_asked_for_it() -> None:
    with Server(DEMO, "-t", 1) as server:
        assert preflight(server, ORIGIN)[0] == 405
        _, headers, _ = server.call("GET", "/v1/models", Origin=ORIGIN)
        assert "access-control-allow-origin" not in headers


def test_paths_without_a_version(server: Server) -> None:
    assert server.call("POST", "/chat/completions", ASK)[0] == 200
    assert server.call("POST", "/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
    assert server.call("GET", "/models")[2] == server.call("GET", "/v1/models")[2]
    assert server.call("GET", "/models/weft-demo")[0] == 200
    assert "--embeddings" in str(server.call("POST", "/embeddings", {"input": "a"})[2])


def test_what_there_is_and_what_not(server: Server) -> None:
    status, headers, overview = server.call("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    assert "weft-demo" in overview and "POST   /v1/chat/completions" in overview
    # the paths that the note at its end speaks of
    *rows, _, note, _ = overview.split("\n")
    listed = [row.split()[:2] for row in rows[2:]]
    added = {
        (method, path) for one in ENDPOINTS for method in one.method.split() for path in one.paths
    }
    alone = []
    for method, path in listed:
        bare = path.removeprefix("/v1")
        if not path.startswith("/api/") and not {(method, bare), (method, f"/v1{bare}")} <= added:
            alone.append(path)
    assert note == f"Paths outside /api, except {' '.join(alone)}, are there with /v1 and without."
    assert "GET / lists what there is" in str(server.call("GET", "/nothing")[2])
    assert "does not take GET; send POST" in str(server.call("GET", "/v1/completions")[2])
    for page in ("/docs", "/redoc"):  # they would load scripts from elsewhere
        assert server.call("GET", page)[0] == 404
    assert server.call("GET", "/openapi.json")[0] == 200


def test_half_a_character_is_no_failure(server: Server) -> None:
    parts: list[Any] = ["\ud800", [{"type": "\ud800"}], [{"type": "text", "text": "\udfff"}]]
    for content in parts:
        body = {"messages": [{"role": "user", "content": content}], "stop": "\ud800"}
        status, _, answer = server.call("POST", "/v1/chat/completions", body)
        assert status == 400 and answer["error"]["type"] == "invalid_request_error"
    status, _, answer = server.call("POST", "/tokenize", {"content": "a\ud800"})
    assert status == 400 and answer["error"]["param"] == "content"
    assert server.call("POST", "/v1/models", {"\ud800": 1})[0] == 405


def test_prompts_that_cannot_fit_are_refused_unread(server: Server) -> None:
    long = "ab " * 10**6
    status, _, body = server.call("POST", "/v1/completions", {"prompt": long})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    assert "has at least 299999 tokens, but the context holds 256" in body["error"]["message"]
    chat = {"messages": [{"role": "user", "content": long}]}
    status, _, body = server.call("POST", "/v1/chat/completions", chat)
    assert status == 400 and body["error"]["param"] == "messages"
    status, _, body = server.call("POST", "/tokenize", {"content": "a" * (1 << 20) + "a"})
    assert status == 400 and "it may have 1048576: send it in parts" in body["error"]["message"]
    assert len(server.call("POST", "/tokenize", {"content": "a" * (1 << 20)})[2]["tokens"]) > 1000


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionBody, {"prompt": [1] * 10_000 + ["a"]}),
        (CompletionBody, {"prompt": [{}] * 10_000}),
        (CompletionBody, {"prompt": [[]] * 10_000}),
        (CompletionBody, {"prompt": [["a"] * 10_000]}),
        (CompletionBody, {"prompt": "a", "stop": [1] * 10_000}),
        (CompletionBody, {"prompt": "a", "logit_bias": {f"f{i}": 1 for i in range(10_000)}}),
        (ChatBody, {"messages": [1] * 10_000}),
        (ChatBody, {"messages": [], "tools": [{}] * 10_000}),
        (EmbeddingBody, {"input": [-1] * 10_000}),
        (DetokenizeBody, {"tokens": [-1] * 10_000}),
    ],
)
def test_a_body_full_of_mistakes_is_told_one(
    monkeypatch: pytest.MonkeyPatch, kind: Any, body: dict[str, Any]
) -> None:
    """A list of all of them takes a thousand times the memory of the body."""
    counts: list[int] = []

    def counted(error: ValidationError, cls: Any, data: Any) -> ApiError:
        counts.append(error.error_count())
        return problem_of(error, cls, data)

    monkeypatch.setattr("weft.serve.schema.problem_of", counted)
    with pytest.raises(ApiError) as caught:
        kind.model_validate(body)
    assert counts[0] <= 5 and len(str(caught.value)) < 200
