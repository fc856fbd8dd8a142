"""The official client against a server process: what its users do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from tests.serve.in_process import DEMO, Server

QUESTION = "What is 17 + 25?"
CHAT = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "--embeddings", "-np", 64, "-t", 2) as running:
        yield running


def complete(server: Server, prompt: str = QUESTION, **options: object) -> str:
    options = {"temperature": 0, "max_tokens": 24} | options
    answer = server.client.completions.create(model="weft-demo", prompt=prompt, **options)  # type: ignore[call-overload]
    return str(answer.choices[0].text)


def test_models(server: Server) -> None:
    listed = server.client.models.list().data
    assert [m.id for m in listed] == ["weft-demo"]
    assert server.client.models.retrieve("weft-demo").owned_by == "weft"
    with pytest.raises(NotFoundError, match="there is no model 'other'"):
        server.client.models.retrieve("other")


def test_a_completion(server: Server) -> None:
    answer = server.client.completions.create(
        model="weft-demo", prompt=QUESTION, max_tokens=4, temperature=0
    )
    assert answer.choices[0].text == " 42."
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 4)


def test_a_completion_ends_with_the_model(server: Server) -> None:
    answer = server.client.completions.create(
        model="weft-demo", prompt=QUESTION, max_tokens=240, temperature=0
    )
    assert answer.choices[0].finish_reason == "stop"


def test_a_full_context_ends_a_text_by_its_length(server: Server) -> None:
    n_ctx = server.call("GET", "/props")[2]["default_generation_settings"]["n_ctx"]
    ids = server.call("POST", "/tokenize", {"content": QUESTION})[2]["tokens"]
    prompt = (ids * n_ctx)[: n_ctx - 4]
    options: Any = {"model": "x", "temperature": 0, "extra_body": {"ignore_eos": True}}
    answer = server.client.completions.create(prompt=prompt, max_tokens=100, **options)
    assert answer.usage is not None and answer.usage.completion_tokens < 10
    assert answer.choices[0].finish_reason == "length"
    stream = server.client.completions.create(prompt=prompt, max_tokens=100, stream=True, **options)
    assert [c.choices[0].finish_reason for c in stream if c.choices][-1] == "length"


def test_a_stream_is_the_same_text(server: Server) -> None:
    stream = server.client.completions.create(
        model="weft-demo", prompt=QUESTION, max_tokens=24, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == complete(server)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 24


def test_prompts_of_all_shapes(server: Server) -> None:
    ids = server.call("POST", "/tokenize", {"content": QUESTION})[2]["tokens"]
    create = server.client.completions.create
    for prompt in (ids, [ids], [QUESTION]):
        answer = create(model="weft-demo", prompt=prompt, max_tokens=4, temperature=0)
        assert [c.text for c in answer.choices] == [" 42."]
    several = create(
        model="weft-demo", prompt=[QUESTION, "What is 3 + 4?"], max_tokens=3, temperature=0
    )
    assert [c.text for c in several.choices] == [" 42", " 7."]


def test_tokens_and_back(server: Server) -> None:
    ids = server.call("POST", "/tokenize", {"content": QUESTION, "add_special": False})[2]["tokens"]
    assert server.call("POST", "/detokenize", {"tokens": ids})[2] == {"content": QUESTION}
    status, _, body = server.call("POST", "/detokenize", {"tokens": [10**6]})
    assert status == 400 and "tokens has an id over 478" in body["error"]["message"]


def test_chat(server: Server) -> None:
    answer = server.client.chat.completions.create(
        model="weft-demo", messages=CHAT, max_completion_tokens=12, temperature=0
    )
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content
    stream = server.client.chat.completions.create(
        model="weft-demo", messages=CHAT, max_tokens=12, temperature=0, stream=True
    )
    pieces = [c.choices[0].delta for c in stream]
    assert pieces[0].role == "assistant"
    assert "".join(p.content or "" for p in pieces) == message.content


def test_messages_that_are_none(server: Server) -> None:
    for messages in ([], [{"content": "x"}], [{"role": "user"}], [{"role": "user", "content": 5}]):
        status, _, body = server.call("POST", "/v1/chat/completions", {"messages": messages})
        assert status == 400 and "message" in body["error"]["message"]


def test_a_stop_string_is_never_shown(server: Server) -> None:
    whole = complete(server)
    stop = whole[8:12]
    assert complete(server, stop=stop) == whole[: whole.index(stop)]
    stream = server.client.completions.create(
        model="weft-demo", prompt=QUESTION, max_tokens=24, temperature=0, stop=["zzz", stop],
        stream=True,
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_seeds_repeat_and_choices_differ(server: Server) -> None:
    def texts(seed: int) -> list[str]:
        answer = server.client.completions.create(
            model="weft-demo", prompt="What", max_tokens=20, temperature=1.5, n=3, seed=seed
        )
        assert [c.index for c in answer.choices] == [0, 1, 2]
        return [c.text for c in answer.choices]

    first = texts(1)
    assert first == texts(1)
    assert len({*first, *texts(7)}) > 3


def test_choices_share_the_prompt(server: Server) -> None:
    before = server.metrics()
    prompt = "Count from 8 to 11? " * 6
    answer = server.client.completions.create(
        model="weft-demo", prompt=prompt, max_tokens=2, temperature=1, n=4, seed=1
    )
    after = server.metrics()
    assert answer.usage is not None
    n = answer.usage.prompt_tokens
    assert after["reused_tokens_total"] - before["reused_tokens_total"] >= 3 * (n - 1)


def test_logprobs(server: Server) -> None:
    answer = server.client.chat.completions.create(
        model="weft-demo", messages=CHAT, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert "".join(t.token for t in choice.logprobs.content) == choice.message.content
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 3
        best = token.top_logprobs[0]
        assert (best.token, best.logprob) == (token.token, token.logprob)
        assert token.logprob <= 0 and bytes(token.bytes or []).decode() == token.token
    old = server.client.completions.create(
        model="weft-demo", prompt=QUESTION, max_tokens=4, temperature=0, logprobs=2
    ).choices[0]
    assert old.logprobs is not None and old.logprobs.tokens is not None
    assert "".join(old.logprobs.tokens) == " 42."
    assert old.logprobs.text_offset == [0, 1, 2, 3]
    assert [len(t) for t in old.logprobs.top_logprobs or []] == [2] * 4


def test_streamed_logprobs_are_of_every_token(server: Server) -> None:
    stream = server.client.chat.completions.create(
        model="weft-demo", messages=CHAT, max_tokens=6, temperature=0, logprobs=True, stream=True
    )
    tokens, text = [], ""
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].logprobs:
            tokens += [t.token for t in chunk.choices[0].logprobs.content or []]
    assert len(tokens) == 6 and "".join(tokens) == text


def test_logit_bias_and_penalties(server: Server) -> None:
    ids = server.call("POST", "/tokenize", {"content": QUESTION, "add_special": False})[2]["tokens"]
    only = ids[0]
    text = complete(server, max_tokens=3, logit_bias={str(only): 100})
    piece = server.call("POST", "/detokenize", {"tokens": [only]})[2]["content"]
    assert text == piece * 3
    plain = complete(server, max_tokens=60)
    assert complete(server, max_tokens=60, presence_penalty=2, frequency_penalty=2) != plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 3}, "temperature is 3; it must be 0 to 2"),
        ({"max_tokens": 0}, "max_tokens is 0, which makes sense with echo only"),
        ({"max_tokens": -2}, "max_tokens is -2; it must be -1 or more"),
        ({"max_tokens": "x"}, 'max_tokens is "x"; it must be a whole number'),
        ({"stop": 5}, "stop is 5; it must be a text or a list of texts"),
        ({"stop": ["x"] * 65}, "stop has 65 texts; it may have 64"),
        ({"stop": ["x" * 8000, "y" * 193]}, "stop has 8193 characters; it may have 8192"),
        ({"extra_body": {"dry_sequence_breakers": ["x"] * 65}}, "dry_sequence_breakers has 65"),
        ({"extra_body": {"repeat_penalty": 0}}, "repeat_penalty is 0; it must be 1e-06 or more"),
        ({"extra_body": {"dry_penalty_last_n": -2}}, "dry_penalty_last_n is -2; it must be -1"),
        ({"extra_body": {"typical_p": "x"}}, "typical_p is 'x'; it must be a number"),
        ({"extra_body": {"samplers": ["top_kk"]}}, "no sampler 'top_kk'"),
        ({"extra_body": {"samplers": 5}}, "samplers is 5; it must be names"),
        ({"extra_body": {"n_predict": 0}}, "n_predict is 0, which makes sense"),
        ({"logit_bias": {"x": 1}}, 'logit_bias has the key "x"; keys are token ids'),
        ({"prompt": [5, -1]}, "prompt is [5, -1]; it must be a text, token ids, or a list"),
        ({"logit_bias": {"100000": 1}}, "logit_bias has the token 100000; the last is 478"),
        ({"n": 100}, "100 texts in one request"),
        ({"prompt": "a " * 400}, "tokens, but the context holds 256"),
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": [[5], []]}, "prompt has no tokens"),
        ({"best_of": 1, "n": 2}, "best_of is 1; it must be n (2) or more"),
        ({"best_of": 2, "stream": True}, "leave out best_of or stream"),
        ({"best_of": 17}, "17 texts in one request"),
        ({"suffix": "b"}, "this model has no tokens for infilling"),
    ],
)
def test_what_cannot_be_served_says_so(
    server: Server, options: dict[str, object], message: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        server.client.completions.create(**({"model": "x", "prompt": "a"} | options))  # type: ignore[call-overload]
    assert message in str(caught.value)
    assert caught.value.type == "invalid_request_error"


def test_answers_of_a_schema(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    response = server.client.chat.completions.create(
        model="x", messages=CHAT, temperature=0, max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    )  # fmt: skip
    answer = json.loads(response.choices[0].message.content or "")
    assert list(answer) == ["sum"] and 0 <= answer["sum"] <= 99
    assert response.choices[0].finish_reason == "stop"
    assert complete(server, extra_body={"regex": "[0-9]{3}"}, max_tokens=9).isdigit()


def test_a_schema_that_is_none(server: Server) -> None:
    for format_ in ({"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 1}}):
        with pytest.raises(BadRequestError, match="has no schema"):
            server.client.chat.completions.create(
                model="x",
                messages=CHAT,
                response_format=format_,  # type: ignore[call-overload]
            )
    with pytest.raises(BadRequestError, match="regex"):
        complete(server, extra_body={"regex": "("})


def test_streams_side_by_side_are_what_they_are_alone(server: Server) -> None:
    """64 at once, each text as it is alone, and no graph is built for them."""
    prompts = [f"What is {i} + {i * 7 % 50}?" for i in range(64)]

    def stream(prompt: str) -> str:
        chunks = server.client.completions.create(
            model="weft-demo", prompt=prompt, max_tokens=40, temperature=0, stream=True
        )
        return "".join(c.choices[0].text for c in chunks)

    alone = [stream(p) for p in prompts]
    before = server.metrics()
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(stream, prompts))
    after = server.metrics()
    assert together == alone
    assert after["steps_total"] - before["steps_total"] < 40 * 64 / 2  # they did run together
    for name in ("graphs_built_total", "reallocs_total"):
        assert after[name] == before[name]
    assert (after["running"], after["queue"]) == (0, 0)


def test_an_answer_that_is_an_object(server: Server) -> None:
    answer = server.client.chat.completions.create(
        model="x", messages=CHAT, temperature=0, max_tokens=120, n=2, seed=3,
        response_format={"type": "json_object"}, logit_bias={"5": -1},
    )  # fmt: skip
    for choice in answer.choices:
        text = choice.message.content or ""
        assert text.lstrip().startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(text), dict)
    plain = server.client.chat.completions.create(
        model="x", messages=CHAT, temperature=0, max_tokens=5, response_format={"type": "text"}
    )
    assert not (plain.choices[0].message.content or "").startswith("{")


def test_choices_of_a_chat_in_a_stream(server: Server) -> None:
    """Each has its role, its text and its end; the usage comes last and is of all of them."""
    options: Any = {"max_tokens": 6, "temperature": 1.2, "n": 3, "seed": 4, "stop": ["zzz"]}
    whole = server.client.chat.completions.create(model="x", messages=CHAT, **options)
    texts, ends, roles = ["", "", ""], ["", "", ""], ["", "", ""]
    usage = None
    for chunk in server.client.chat.completions.create(
        model="x", messages=CHAT, stream=True, stream_options={"include_usage": True}, **options
    ):
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role or ""
            ends[choice.index] += choice.finish_reason or ""
    assert roles == ["assistant"] * 3
    assert texts == [c.message.content for c in whole.choices]
    assert ends == [c.finish_reason for c in whole.choices]
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_no_usage_in_a_stream_unless_it_is_asked_for(server: Server) -> None:
    stream = server.client.chat.completions.create(
        model="x", messages=CHAT, max_tokens=2, stream=True
    )
    assert all(chunk.choices and chunk.usage is None for chunk in stream)
    with pytest.raises(BadRequestError, match="top_logprobs needs logprobs"):
        server.client.chat.completions.create(model="x", messages=CHAT, top_logprobs=2)
