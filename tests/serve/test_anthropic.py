"""Anthropic's API, with its own client and event by event."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.serve.in_process import DEMO, ROOT, Server
from tests.serve.talkers import SCHEMA, events, said, talker
from tests.waiting import eventually
from weft.serve.anthropic.format import MessageWriter
from weft.serve.anthropic.schema import MessagesBody
from weft.serve.anthropic.translate import begun_of, chat_of
from weft.serve.errors import ApiError

ASK: Any = [{"role": "user", "content": "What is 17 + 25?"}]
TOOL: Any = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
SHAPES = ROOT / "examples" / "shapes"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "-t", 1, "-np", 2, "--max-tokens", 40) as running:
        yield running


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(talker(tmp_path_factory.mktemp("m")), "-t", 1, "-np", 2, key="k") as running:
        yield running


def client(server: Server, **options: Any) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0, **options)


def ask(server: Server, messages: Any = ASK, **options: Any) -> Any:
    with client(server) as own:
        options = {"max_tokens": 12, "extra_body": {"temperature": 0}} | options
        return own.messages.create(model="x", messages=messages, **options)


def test_a_message(server: Server) -> None:
    """The text is that of the chat API; the answer to the same again comes from the cache."""
    got = ask(server)
    chat = server.client.chat.completions.create(
        model="x", messages=ASK, max_tokens=12, temperature=0
    )
    assert [block.type for block in got.content] == ["text"]
    assert got.content[0].text == chat.choices[0].message.content
    assert (got.stop_reason, got.stop_sequence) == ("max_tokens", None)
    assert got.model == "weft-demo" and got.role == "assistant" and got.id.startswith("msg_")
    assert got.usage.output_tokens == 12
    n = chat.usage.prompt_tokens
    assert got.usage.input_tokens + got.usage.cache_read_input_tokens == n
    again = ask(server).usage
    assert again.cache_read_input_tokens == n - 1 and again.input_tokens == 1
    with client(server) as own:
        assert own.messages.count_tokens(model="x", messages=ASK).input_tokens == n


def test_a_stream_says_the_same(server: Server) -> None:
    whole = ask(server)
    with (
        client(server) as own,
        own.messages.stream(
            model="x", messages=ASK, max_tokens=12, extra_body={"temperature": 0}
        ) as stream,
    ):
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 12


def test_stop_sequences(server: Server) -> None:
    text = ask(server).content[0].text
    got = ask(server, stop_sequences=["never", text[3:6]])
    assert got.content[0].text == text[:3]
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", text[3:6])


def test_max_tokens_are_at_most_those_of_the_server(server: Server) -> None:
    assert ask(server, max_tokens=16000).usage.output_tokens <= 40


def test_an_answer_that_has_begun(talks: Server) -> None:
    """The model goes on from a last message of the assistant."""
    begun = [*ASK, {"role": "assistant", "content": [{"type": "text", "text": "abc"}]}]
    with Anthropic(base_url=talks.url, auth_token="k", max_retries=0) as own:
        n = own.messages.count_tokens(model="x", messages=begun).input_tokens
    text = "<user>What is 17 + 25?<assistant>abc"
    tokens = talks.call("POST", "/tokenize", {"content": text})[2]["tokens"]
    assert n == len(tokens)


def test_thinking(talks: Server) -> None:
    """It is asked of the template, and shown, if the request enables it."""
    with Anthropic(base_url=talks.url, api_key="k", max_retries=0) as own:
        on: Any = {"type": "enabled", "budget_tokens": 1024}
        got = own.messages.create(model="x", messages=ASK, max_tokens=10, thinking=on)
        assert [block.type for block in got.content] == ["thinking"]
        assert got.content[0].type == "thinking" and got.content[0].signature
        plain = own.messages.create(model="x", messages=ASK, max_tokens=10)
        assert [block.type for block in plain.content] == ["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_must_be(talks: Server, stream: bool) -> None:
    tools = [TOOL, TOOL | {"name": "time", "cache_control": {"type": "ephemeral"}}]
    options: Any = {"model": "x", "messages": ASK, "max_tokens": 200, "tools": tools}
    choices: Any = [
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "time"},
    ]
    for choice in choices:
        with Anthropic(base_url=talks.url, api_key="k", max_retries=0) as own:
            if stream:
                with own.messages.stream(tool_choice=choice, **options) as events:
                    got = events.get_final_message()
            else:
                got = own.messages.create(tool_choice=choice, **options)
        assert got.stop_reason == "tool_use"
        (block,) = got.content
        assert block.type == "tool_use" and block.id.startswith("toolu_")
        assert block.input["place"] in ("a", "b")
        assert block.name in (("time",) if choice["type"] == "tool" else ("time", "weather"))


def test_an_agent_goes_on_with_results(talks: Server) -> None:
    """What the client sends back becomes the conversation that the template writes."""
    messages = [
        *ASK,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "weft"},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "hot"},
                {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    body = {"messages": messages, "system": [{"type": "text", "text": "be"}], "metadata": {}}
    status, headers, got = talks.call("POST", "/v1/messages/count_tokens", body)
    assert status == 200 and headers["x-weft-ignored"] == "metadata"
    text = (
        "<system>be<user>What is 17 + 25?<assistant><think>hm</think>"
        '{"name": "weather", "arguments": {"place": "a"}}<tool>hot<user>and?<assistant>'
    )
    tokens = talks.call("POST", "/tokenize", {"content": text})[2]["tokens"]
    assert got == {"input_tokens": len(tokens)}


def test_the_body_of_an_agent(talks: Server) -> None:
    """As Claude Code sends it: fields for services that are not here have no effect."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 64,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"},
            {"type": "text", "text": "You are an agent.", **cached},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **cached}]}],
        "tools": [TOOL | cached | {"eager_input_streaming": True}],
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025,b-2026"}
    status, _, got = talks.call("POST", "/v1/messages?beta=true", body, **headers)
    assert status == 200 and got.rstrip().endswith('data: {"type":"message_stop"}')
    with Anthropic(base_url=talks.url, api_key="k", max_retries=0) as own:
        beta = own.beta.messages.create(
            model="x", max_tokens=8, messages=ASK, tools=[TOOL], betas=["a-2025"],
            thinking={"type": "adaptive"},
        )  # fmt: skip
    assert beta.content[0].type == "thinking"


def test_images() -> None:
    def block(name: str) -> Any:
        data = base64.b64encode((SHAPES / name).read_bytes()).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return {"type": "image", "source": source}

    text = {"type": "text", "text": "What is on it?"}
    towers = SHAPES / "mmproj-weft-shapes.gguf"
    with Server(SHAPES / "weft-shapes.gguf", "--mmproj", towers, "-t", 1) as server:
        content = [block("three-triangles.png"), text]
        got = ask(server, [{"role": "user", "content": content}], max_tokens=30)
        assert "triangle" in got.content[0].text
        result = {
            "type": "tool_result",
            "tool_use_id": "x",
            "content": [block("star-and-square.png")],
        }
        assert (
            chat_of(MessagesBody(max_tokens=1, messages=[{"role": "user", "content": [result]}]))
            .messages[0]["content"][0]["image_url"]["url"]
            .startswith("data:image/png;base64,iVBOR")
        )
        with pytest.raises(anthropic.BadRequestError, match="are not fetched"):
            source = {"type": "url", "url": "https://example.org/a.png"}
            ask(server, [{"role": "user", "content": [{"type": "image", "source": source}]}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
        ({"messages": []}, "there are no messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0 has no role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0 has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "y"}]}]}, "messages.0.content.0 is"),
        ({"messages": [*ASK, {"role": "assistant", "content": "a "}]}, "white space"),
        ({"tools": [{"input_schema": {}}]}, "a tool has no name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"tool_choice": {"type": "often"}}, "tool_choice.type"),
        ({"mcp_servers": [{}]}, "mcp_servers are not here"),
        ({"messages": [{"role": "user", "content": "a" * 20000}]}, "the context holds"),
        ({"system": [{"type": "image"}]}, "system.0 is no"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_what_is_refused(server: Server, options: Any, message: str) -> None:
    body = {"messages": ASK, "max_tokens": 2} | options
    status, _, got = server.call("POST", "/v1/messages", body)
    assert status == 400 and got["type"] == "error"
    assert got["error"]["type"] == "invalid_request_error" and message in got["error"]["message"]


def test_errors_are_those_of_the_client(server: Server, talks: Server) -> None:
    with pytest.raises(anthropic.BadRequestError):
        ask(server, max_tokens=0)
    with pytest.raises(anthropic.AuthenticationError, match="key"):
        ask(talks)
    with pytest.raises(anthropic.NotFoundError), client(server) as own:
        own.post("/v1/messages/batches", cast_to=object, body={})
    assert server.call("GET", "/v1/messages")[2]["type"] == "error"
    assert server.call("POST", "/v1/messages", b"{")[2]["type"] == "error"
    assert server.call("POST", "/v1/messages", b" " * (5 << 20))[2]["error"]["type"] == (
        "request_too_large"
    )


def test_the_list_of_models(server: Server) -> None:
    with client(server) as own:
        (one,) = own.models.list()
        assert (one.id, one.display_name, one.type) == ("weft-demo", "weft-demo", "model")
        assert own.models.retrieve("weft-demo").created_at == one.created_at


def test_threads_are_sent_whole(server: Server) -> None:
    """The client asks for a conversation that the server keeps, and goes on without."""
    more: Any = {"role": "user", "content": "and?"}
    with client(server) as own:
        thread = own.beta.messages.thread(model="x", max_tokens=4)
        first = thread.send(*ASK)
        then = thread.send(more)
        said = [*ASK, {"role": "assistant", "content": first.content}, more]
        n = own.messages.count_tokens(model="x", messages=said).input_tokens
    assert then.usage.input_tokens + (then.usage.cache_read_input_tokens or 0) == n


def test_a_client_that_leaves(server: Server) -> None:
    """Its text ends."""
    body = {"ignore_eos": True}
    with client(server) as own, own.messages.create(
        model="x", messages=ASK, max_tokens=40, stream=True, extra_body=body
    ) as stream:  # fmt: skip
        next(iter(stream))
    eventually(lambda: server.metrics()["running"] == 0)


def blocks(pieces: list[str], **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and the whole message of an answer."""

    async def both() -> tuple[list[dict[str, Any]], dict[str, Any]]:
        thinks = options.pop("thinks", True)
        stream = MessageWriter(said(pieces, **options), "m", thinks=thinks, stops=["S"])
        whole = MessageWriter(said(pieces, **options), "m", thinks=thinks, stops=["S"])
        return await events(stream.stream()), await whole.whole()

    return asyncio.run(both())


CALL = '<call>{"name": "f", "arguments": {"x": [1, "é"]}}</call>'


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_order_of_events(size: int) -> None:
    """However the text is split, blocks begin, grow and end one after the other."""
    text = f"I think</think>Hello {CALL}"
    got, whole = blocks([text[i : i + size] for i in range(0, len(text), size)])
    kinds = [e["type"] for e in got]
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == [
        "message_delta",
        "message_stop",
    ]
    start = got[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"] == {"input_tokens": 4, "output_tokens": 0}
    inner, made = got[2:-2], []
    for event in inner:
        if event["type"] == "content_block_start":
            assert event["index"] == len(made)
            made.append([event["content_block"]["type"], ""])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(made) - 1
            delta = event["delta"]
            if delta["type"] != "signature_delta":
                made[-1][1] += delta.get("thinking") or delta.get("text") or delta["partial_json"]
        else:
            assert event == {"type": "content_block_stop", "index": len(made) - 1}
    assert [kind for kind, _ in made] == ["thinking", "text", "tool_use"]
    assert [text for _, text in made] == ["I think", "Hello", '{"x": [1, "é"]}']
    assert [block["type"] for block in whole["content"]] == [kind for kind, _ in made]
    assert whole["content"][2]["input"] == {"x": [1, "é"]}
    assert got[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert got[-2]["usage"] == whole["usage"]
    assert whole["usage"]["input_tokens"] == 3 and whole["usage"]["cache_read_input_tokens"] == 1


def test_reasoning_that_was_not_asked_for() -> None:
    got, whole = blocks(["hm</think>", "yes"], thinks=False)
    assert [b["type"] for b in whole["content"]] == ["text"]
    assert [e["index"] for e in got if "index" in e] == [0, 0, 0]


def test_ends() -> None:
    def end(reason: str, **options: Any) -> tuple[str, str | None]:
        got, whole = blocks(["</think>a"], reason=reason, **options)
        delta: dict[str, Any] = got[-2]["delta"]
        assert delta == {k: whole[k] for k in delta}
        return delta["stop_reason"], delta["stop_sequence"]

    assert end("stop") == ("end_turn", None)
    assert end("stop", stopped_by="S") == ("stop_sequence", "S")
    assert end("stop", stopped_by="<|im_end|>") == ("end_turn", None)
    assert end("length") == ("max_tokens", None)
    assert end("context") == ("model_context_window_exceeded", None)

    async def fails() -> list[dict[str, Any]]:
        texts = said(["a"], "error", error=ValueError())
        return await events(MessageWriter(texts, "m", thinks=True).stream())

    failed = asyncio.run(fails())
    assert failed[-1]["type"] == "error" and failed[-1]["error"]["type"] == "api_error"


def test_messages_in_a_row_are_joined() -> None:
    body = MessagesBody(
        max_tokens=1,
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": "d"},
        ],
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "s"},
        ],
    )
    assert begun_of(body) == "d"
    chat = chat_of(body)
    assert chat.messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c"},
    ]


def test_messages_behind_calls_and_results_are_not_joined() -> None:
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {"place": "a"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "hot"}
    body = MessagesBody(
        max_tokens=1,
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "text", "text": "b"}, call]},
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "d"}]},
            {"role": "user", "content": "e"},
        ],
    )
    written = [
        (m["role"], m["content"], len(m.get("tool_calls") or [])) for m in chat_of(body).messages
    ]
    assert written == [
        ("user", "a", 0),
        ("assistant", "b", 1),
        ("assistant", "c", 1),  # what was said before a call goes with it
        ("tool", "hot", 0),
        ("user", "d\n\ne", 0),
    ]


def test_output_in_a_schema() -> None:
    form = {"type": "json_schema", "schema": {"type": "integer"}}
    body = MessagesBody(max_tokens=1, messages=ASK, output_config={"format": form})
    assert chat_of(body).response_format is not None
    with pytest.raises(ApiError, match="leave one out"):
        chat_of(body.model_copy(update={"messages": [*ASK, {"role": "assistant", "content": "a"}]}))
