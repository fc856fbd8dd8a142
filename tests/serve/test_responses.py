"""The Responses API, with the official client and event by event."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.cli.in_process import weft
from tests.serve.in_process import DEMO, ROOT, Server
from tests.serve.talkers import SCHEMA, events, said, talker
from tests.waiting import eventually
from weft.frontends.models import open_model
from weft.llm import Tokenizer
from weft.serve.errors import ApiError
from weft.serve.responses.format import ResponseWriter
from weft.serve.responses.schema import ResponsesBody
from weft.serve.responses.store import KeptResponses
from weft.serve.responses.translate import chat_of, items_of, seal

ASK = "What is 17 + 25?"
TOOL: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"place": "a"}'}
SHAPES = ROOT / "examples" / "shapes"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "-t", 1, "-np", 2) as running:
        yield running


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(talker(tmp_path_factory.mktemp("m")), "-t", 1, "-np", 2) as running:
        yield running


def ask(server: Server, given: Any = ASK, **options: Any) -> Any:
    options = {"max_output_tokens": 12, "temperature": 0} | options
    return server.client.responses.create(model="x", input=given, **options)


def count(server: Server, text: str) -> int:
    return len(server.call("POST", "/tokenize", {"content": text})[2]["tokens"])


def test_a_response(server: Server) -> None:
    got = ask(server, metadata={"a": "b"}, instructions=None)
    chat = server.client.chat.completions.create(
        model="x", messages=[{"role": "user", "content": ASK}], max_tokens=12, temperature=0
    )
    assert got.output_text == chat.choices[0].message.content
    assert got.status == "incomplete" and got.incomplete_details.reason == "max_output_tokens"
    assert got.output[0].type == "message" and got.output[0].status == "incomplete"
    assert (got.temperature, got.top_p) == (0, 1)
    drawn = server.client.responses.create(model="x", input="a", max_output_tokens=1)
    assert (drawn.temperature, drawn.top_p) == (0.8, 0.95)
    assert got.metadata == {"a": "b"} and got.model == "weft-demo" and got.store is True
    n = chat.usage.prompt_tokens
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.total_tokens) == (
        n, 12, n + 12,
    )  # fmt: skip
    assert ask(server).usage.input_tokens_details.cached_tokens == n - 1
    assert server.client.responses.input_tokens.count(model="x", input=ASK).input_tokens == n


def test_a_stream_says_the_same(server: Server) -> None:
    whole = ask(server)
    got = list(ask(server, stream=True))
    assert [event.sequence_number for event in got] == list(range(len(got)))
    deltas = [e.delta for e in got if e.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == whole.output_text
    assert got[-1].type == "response.incomplete"
    assert got[-1].response.output_text == whole.output_text
    assert got[-1].response.usage.output_tokens == 12


def test_responses_are_kept(server: Server) -> None:
    """The next one goes on from them, until they are deleted."""
    api = server.client.responses
    first = ask(server)
    then = ask(server, "and?", previous_response_id=first.id)
    assert then.previous_response_id == first.id
    items = [
        {"role": "user", "content": ASK},
        *first.output,
        {"role": "user", "content": [{"type": "input_text", "text": "and?"}]},
    ]
    assert ask(server, items).usage.input_tokens == then.usage.input_tokens
    by_name = [items[0], {"type": "item_reference", "id": first.output[0].id}, items[2]]
    assert ask(server, by_name).usage.input_tokens == then.usage.input_tokens
    assert api.retrieve(first.id).output_text == first.output_text
    kept = list(api.input_items.list(then.id, order="asc", limit=2))
    assert [item.type for item in kept] == ["message"] * 3
    assert kept[1].id == first.output[0].id
    assert api.input_items.list(then.id, limit=1).data[0].content[0].text == "and?"
    assert api.cancel(first.id).id == first.id
    api.delete(first.id)
    for call in (api.retrieve, api.delete, api.cancel, api.input_items.list):
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            call(first.id)
    with pytest.raises(openai.BadRequestError, match="send the whole") as gone:
        ask(server, previous_response_id=first.id)
    assert gone.value.code == "previous_response_not_found"
    assert ask(server, "and?", previous_response_id=then.id).output
    with pytest.raises(openai.NotFoundError):
        api.retrieve(ask(server, store=False).id)


def test_a_response_that_is_cancelled(server: Server) -> None:
    greedy = {"ignore_eos": True, "temperature": 0}
    stream = ask(server, stream=True, max_output_tokens=190, extra_body=greedy)
    with stream:
        told = iter(stream)
        id_ = next(told).response.id
        now = server.client.responses.retrieve(id_).status
        assert now in ("in_progress", "incomplete")  # the latter if it is written already
        server.client.responses.cancel(id_)
        last = list(told)[-1]
    assert last.type == "response.incomplete"
    assert last.response.status in ("cancelled", "incomplete")
    assert server.client.responses.retrieve(id_).status == last.response.status


def test_a_client_that_leaves(server: Server) -> None:
    with ask(server, stream=True, max_output_tokens=190, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    eventually(lambda: server.metrics()["running"] == 0)


def test_formats_and_logprobs(server: Server) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": True}
    got = ask(server, text={"format": form})
    assert isinstance(json.loads(got.output_text), int)
    assert got.text.format.type == "json_schema"
    include = ["message.output_text.logprobs"]
    got = ask(server, include=include, top_logprobs=2)
    (part,) = got.output[0].content
    assert len(part.logprobs) == 12 and len(part.logprobs[0].top_logprobs) == 2
    told = list(ask(server, include=include, stream=True))
    rows = [e.logprobs for e in told if e.type == "response.output_text.delta"]
    assert [r.token for row in rows for r in row] == [r.token for r in part.logprobs]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_must_be(talks: Server, stream: bool) -> None:
    tools = [TOOL, TOOL | {"name": "time"}]
    named = {"type": "function", "name": "time"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for choice in ("required", named, allowed):
        options: Any = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        options |= {"max_output_tokens": 200, "reasoning": {"effort": "none"}}
        if stream:
            told = list(ask(talks, stream=True, **options))
            got = told[-1].response
            kinds = [e.type for e in told]
            assert "response.function_call_arguments.done" in kinds
        else:
            got = ask(talks, **options)
        (call,) = got.output
        assert call.type == "function_call" and got.status == "completed"
        assert json.loads(call.arguments)["place"] in ("a", "b")
        assert call.name in (("weather", "time") if choice == "required" else ("time",))


def test_an_agent_goes_on_with_results(talks: Server) -> None:
    """What the client sends back becomes the conversation that the template writes."""
    items = [
        {"role": "developer", "content": "be"},
        {"role": "user", "content": ASK},
        {"type": "reasoning", "summary": [], "encrypted_content": seal("hm é")},
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": "hot"},
    ]
    text = (
        f"<system>so\n\nbe<user>{ASK}<assistant><think>hm é</think>"
        '{"name": "weather", "arguments": {"place": "a"}}<tool>hot<assistant>'
    )
    got = ask(talks, items, instructions="so")
    assert got.usage.input_tokens == count(talks, text)
    first = ask(
        talks, tools=[TOOL], tool_choice="required", max_output_tokens=200,
        parallel_tool_calls=False, reasoning={"effort": "none"},
    )  # fmt: skip
    call = first.output[0]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "hot"}
    then = ask(talks, [output], previous_response_id=first.id)
    function = json.dumps({"name": call.name, "arguments": json.loads(call.arguments)})
    text = f"<user>{ASK}<assistant>{function}<tool>hot<assistant>"
    assert then.usage.input_tokens == count(talks, text)


def test_images() -> None:
    data = base64.b64encode((SHAPES / "three-triangles.png").read_bytes()).decode()
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"}
    text = {"type": "input_text", "text": "What is on it?"}
    towers = SHAPES / "mmproj-weft-shapes.gguf"
    with Server(SHAPES / "weft-shapes.gguf", "--mmproj", towers, "-t", 1) as server:
        got = ask(server, [{"role": "user", "content": [image, text]}], max_output_tokens=30)
        assert "triangle" in got.output_text
        again = ask(server, "What is on it?", previous_response_id=got.id)
        assert again.usage.input_tokens > got.usage.input_tokens
        with pytest.raises(openai.BadRequestError, match="are not fetched"):
            far = image | {"image_url": "https://example.org/a.png"}
            ask(server, [{"role": "user", "content": [far]}])


@pytest.mark.parametrize(
    ("options", "message", "param"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens is 0", "max_output_tokens"),
        ({"input": ""}, "there are no messages", None),
        ({"input": 5}, "input is 5; it must be a text or a list of items", "input"),
        ({"input": "a" * 20000}, "input has at least", "input"),
        ({"input": [{"type": "odd_call"}]}, "odd_call", "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input_file", "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "the role 'robot'", "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "not kept", "input"),
        ({"tools": [{"name": "web_search"}]}, "a tool has no type", "tools.0"),
        ({"tool_choice": "required"}, "tool_choice needs tools", "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice of type 'mcp'", "tool_choice"),
        ({"background": True}, "background is not here", "background"),
        ({"conversation": "x"}, "conversation is not here", "conversation"),
        ({"prompt": {"id": "x"}}, "prompt is not here", "prompt"),
        ({"include": ["x"]}, "include has 'x'", "include"),
        ({"metadata": {"a": 1}}, "metadata has texts", "metadata"),
        ({"text": {"format": {"type": "json_schema"}}}, "without schema", "text"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "text.format.type"),
        ({"previous_response_id": "x"}, "'x' was not found", "previous_response_id"),
    ],
)
def test_what_is_refused(server: Server, options: Any, message: str, param: str | None) -> None:
    status, _, got = server.call("POST", "/v1/responses", {"input": "a"} | options)
    assert status in (400, 404), got
    assert message in got["error"]["message"] and got["error"]["param"] == param


def test_addresses(server: Server) -> None:
    id_ = ask(server).id
    status, _, got = server.call("GET", f"/v1/responses/{id_}/input_items?limit=500")
    assert status == 400 and got["error"]["param"] == "limit"
    status, _, got = server.call("GET", f"/v1/responses/{id_}/input_items?after=x")
    assert status == 400 and got["error"]["param"] == "after"
    status, _, got = server.call("GET", f"/v1/responses/{id_}?stream=true")
    assert status == 400 and got["error"]["param"] == "stream"


def test_errors_are_those_of_the_client(talks: Server) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(talks, max_output_tokens=0)
    with (
        Server(DEMO, "-t", 1, key="k") as locked,
        OpenAI(base_url=f"{locked.url}/v1", api_key="x", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError),
    ):
        wrong.responses.create(model="x", input="a")


def written(pieces: list[str], **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and the whole response of an answer."""
    tokenizer = Tokenizer.from_gguf(open_model(DEMO))
    body = ResponsesBody(input="a", include=["reasoning.encrypted_content"])

    async def both() -> tuple[list[dict[str, Any]], dict[str, Any]]:
        stream = ResponseWriter(said(pieces, **options), tokenizer, body, "m", None)
        whole = ResponseWriter(said(pieces, **options), tokenizer, body, "m", None)
        return await events(stream.stream()), await whole.whole()

    return asyncio.run(both())


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_order_of_events(size: int) -> None:
    """However the text is split, items begin, grow and end one after the other."""
    text = 'I think</think>Hello <call>{"name": "f", "arguments": {"x": [1, "é"]}}</call>'
    got, whole = written([text[i : i + size] for i in range(0, len(text), size)])
    assert [e["sequence_number"] for e in got] == list(range(len(got)))
    kinds = [e["type"].removeprefix("response.") for e in got if "delta" not in e["type"]]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.done", "content_part.done"),
        *("output_item.done", "output_item.added", "content_part.added", "output_text.done"),
        *("content_part.done", "output_item.done", "output_item.added"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    response = got[-1]["response"]
    for index, (kind, name, full) in enumerate(
        [
            ("reasoning", "reasoning_text", "I think"),
            ("message", "output_text", "Hello"),
            ("function_call", "function_call_arguments", '{"x": [1, "é"]}'),
        ]
    ):
        of_item = [e for e in got if e.get("output_index") == index]
        item = response["output"][index]
        assert item["type"] == kind and of_item[-1]["item"] == item
        assert of_item[0]["item"]["status"] == "in_progress"
        assert {e.get("item_id", item["id"]) for e in of_item} == {item["id"]}
        deltas = [e["delta"] for e in of_item if e["type"] == f"response.{name}.delta"]
        assert "".join(deltas) == full
    assert items_of([response["output"][0]], lambda _: None)[0]["encrypted_content"] == (
        seal("I think")
    )
    assert response["usage"] == whole["usage"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    plain = [{k: v for k, v in item.items() if "id" not in k} for item in response["output"]]
    assert plain == [{k: v for k, v in i.items() if "id" not in k} for i in whole["output"]]


def test_ends() -> None:
    got, whole = written(["</think>a"], reason="length")
    assert got[-1]["type"] == "response.incomplete" and whole["status"] == "incomplete"
    assert got[-2]["item"]["status"] == whole["output"][0]["status"] == "incomplete"

    async def fails() -> list[dict[str, Any]]:
        texts = said(["a"], "error", error=ValueError())
        body = ResponsesBody(input="a")
        writer = ResponseWriter(texts, Tokenizer.from_gguf(open_model(DEMO)), body, "m", None)
        return await events(writer.stream())

    failed = asyncio.run(fails())[-1]
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"


def test_a_text_that_is_cancelled() -> None:
    async def both() -> tuple[list[dict[str, Any]], dict[str, Any]]:
        tokenizer = Tokenizer.from_gguf(open_model(DEMO))
        made = []
        for _ in range(2):
            texts, body = said(["</think>a"], "cancelled"), ResponsesBody(input="a")
            made.append(ResponseWriter(texts, tokenizer, body, "m", None))
            made[-1].cancel()
        return await events(made[0].stream()), await made[1].whole()

    got, whole = asyncio.run(both())
    assert got[-1]["type"] == "response.incomplete"
    for response in (got[-1]["response"], whole):
        assert response["status"] == "cancelled" and response["usage"]["output_tokens"] == 1
        (item,) = response["output"]
        assert item["status"] == "incomplete" and item["content"][0]["text"] == "a"


def answer(id_: str, text: str) -> dict[str, Any]:
    return {"id": id_, "output": [{"id": f"msg_{id_}", "type": "message", "content": text}]}


def test_what_is_kept_has_bounds() -> None:
    """The oldest go; a conversation counts with all of its items."""
    kept = KeptResponses(most_bytes=1200)
    kept.put(answer("a", "x" * 300), [{"id": "1"}], None, "me")
    kept.put(answer("b", "y" * 200), [{"id": "2"}], kept.get("a", "me"), "me")
    assert [item["id"] for item in kept.get("b", "me").items] == ["1", "msg_a", "2"]
    assert kept.item("msg_a", "me") is not None
    kept.put(answer("c", "z" * 200), [], None, "me")
    assert kept.n_bytes <= 1200
    with pytest.raises(ApiError, match="there is no response 'a'"):
        kept.get("a", "me")
    assert kept.item("msg_a", "me") is None
    assert kept.get("b", "me").items[0] == {"id": "1"}
    with pytest.raises(ApiError):
        kept.get("b", "another")
    assert kept.item("msg_b", "another") is None
    kept.put(answer("d", "x" * 2000), [], None, "me")
    assert kept.n_bytes == 0
    aged = KeptResponses(most_seconds=0)
    aged.put(answer("a", ""), [], None, None)
    with pytest.raises(ApiError):
        aged.get("a", None)


def test_models_of_a_folder_share_what_is_kept(tmp_path: Path) -> None:
    """Another model goes on, and the first may be unloaded."""
    for name in ("one", "two"):
        shutil.copy(DEMO, tmp_path / f"{name}.gguf")
    with Server.many(tmp_path, "-t", 1, "-np", 1, "-c", 256) as server:
        api = server.client.responses
        first = api.create(model="one", input=ASK, max_output_tokens=3)
        then = api.create(
            model="two", input="and?", previous_response_id=first.id, max_output_tokens=3
        )
        assert then.model == "two" and api.retrieve(first.id).model == "one"
        assert len(list(api.input_items.list(then.id))) == 3
        assert server.call("POST", "/models/unload", {"model": "one"})[0] == 200
        assert api.cancel(first.id).id == first.id
        api.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            api.retrieve(first.id)
        assert api.input_tokens.count(model="two", input=ASK).input_tokens > 5


def test_turns_of_an_assistant() -> None:
    """Reasoning, text and calls in a row are one message of the assistant."""
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": [
            {"type": "input_text", "text": "o"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "u"},
    ]  # fmt: skip
    body = ResponsesBody(input=items)
    chat = chat_of(body, items_of(body.input, lambda _: None)).messages
    function = {"name": "weather", "arguments": '{"place": "a"}'}
    calls = [{"id": "c1", "type": "function", "function": function}]
    assert chat == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "t", "reasoning_content": "r", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "o", "name": "weather"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "u"},
    ]


def test_a_response_is_for_its_own_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.db"
    secrets = []
    for name in ("ann", "bob"):
        ended = weft("keys", "add", name, "--keys", keys)
        assert ended.returncode == 0, ended.stderr
        secrets.append(ended.stdout.strip())
    with Server(DEMO, "-t", 1, "--keys", keys, sent_key=secrets[0]) as server:
        first = ask(server, max_output_tokens=2)
        assert server.client.responses.retrieve(first.id).id == first.id
        with OpenAI(base_url=f"{server.url}/v1", api_key=secrets[1], max_retries=0) as other:
            for call in (other.responses.retrieve, other.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    call(first.id)
            with pytest.raises(openai.BadRequestError):
                other.responses.create(model="x", input="a", previous_response_id=first.id)
        assert ask(server, previous_response_id=first.id, max_output_tokens=2).output
