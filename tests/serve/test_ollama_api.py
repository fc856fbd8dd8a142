"""Ollama's API with its own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from tests.serve.in_process import DEMO, ROOT, Server
from tests.serve.talkers import said, talker
from weft.frontends.models import open_model
from weft.llm import LLM, Tokenizer
from weft.serve.ollama.format import OllamaAnswer
from weft.serve.ollama.schema import ChatRequest, GenerateRequest
from weft.serve.ollama.translate import chat_of, completion_of, fields_of, messages_of
from weft.version import __version__

SHAPES = ROOT / "examples" / "shapes"
PROMPT = "Count from 8 to 11?"
GREEDY = {"temperature": 0, "num_predict": 6}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "-np", 3, "-t", 1, "--embeddings") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as client:
        yield client


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ollama.Client]:
    with (
        Server(talker(tmp_path_factory.mktemp("talker")), "-np", 2, "-t", 1) as running,
        ollama.Client(host=running.url) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def seeing() -> Iterator[ollama.Client]:
    mmproj = SHAPES / "mmproj-weft-shapes.gguf"
    with (
        Server(SHAPES / "weft-shapes.gguf", "--mmproj", mmproj, "-t", 1) as running,
        ollama.Client(host=running.url) as client,
    ):
        yield client


def test_raw_texts_are_those_of_the_library(client: ollama.Client) -> None:
    options = {"temperature": 0.0, "top_k": 40, "top_p": 0.9, "min_p": 0.0}
    want = LLM(DEMO, n_threads=1).generate(PROMPT, max_tokens=6, repeat_penalty=1.1, **options)  # type: ignore[arg-type]
    answer = client.generate("weft-demo", PROMPT, raw=True, options=GREEDY)
    assert answer.response == want and answer.context is None
    assert answer.done and answer.done_reason == "length"
    assert (answer.prompt_eval_count, answer.eval_count) == (10, 6)
    assert answer.total_duration and answer.eval_duration and answer.prompt_eval_duration
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration
    parts = list(client.generate("weft-demo", PROMPT, raw=True, options=GREEDY, stream=True))
    assert "".join(part.response or "" for part in parts) == want
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 6 and parts[0].eval_count is None
    stopped = client.generate(
        "weft-demo", PROMPT, raw=True, options={"temperature": 0, "stop": ["9"]}
    )
    assert stopped.response == " 8 " and stopped.done_reason == "stop"


def test_chats(server: Server, client: ollama.Client) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    answer = client.chat("weft-demo", messages, options=GREEDY)
    fields = {"top_k": 40, "top_p": 0.9, "min_p": 0, "repeat_penalty": 1.1}
    body = {"messages": messages, "temperature": 0, "max_tokens": 6} | fields
    want = server.call("POST", "/v1/chat/completions", body)[2]["choices"][0]["message"]
    assert answer.message.role == "assistant" and answer.message.content == want["content"]
    parts = list(client.chat("weft-demo", messages, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == want["content"]
    assert parts[-1].done_reason == "length" and parts[-1].created_at

    async def asked() -> tuple[str, str]:
        async with ollama.AsyncClient(host=server.url) as other:
            whole = await other.chat("weft-demo", messages, options=GREEDY)
            stream = await other.chat("weft-demo", messages, options=GREEDY, stream=True)
            text = "".join([part.message.content or "" async for part in stream])
            return whole.message.content or "", text

    assert asyncio.run(asked()) == (want["content"], want["content"])


def test_prompts_continue_a_context(client: ollama.Client) -> None:
    first = client.generate("weft-demo", PROMPT, options=GREEDY)
    assert first.context is not None and first.eval_count == 6
    assert len(first.context) == (first.prompt_eval_count or 0) + 6
    then = client.generate("weft-demo", "What?", context=first.context, options=GREEDY)
    assert then.context is not None and then.context[: len(first.context)] == first.context
    with pytest.raises(ollama.ResponseError, match="context has the token 9999"):
        client.generate("weft-demo", "a", context=[9999])


def test_logprobs(client: ollama.Client) -> None:
    answer = client.generate(
        "weft-demo", PROMPT, raw=True, options=GREEDY, logprobs=True, top_logprobs=2
    )
    assert answer.logprobs is not None and len(answer.logprobs) == 6
    assert "".join(row.token for row in answer.logprobs) == answer.response
    assert all(len(row.top_logprobs or ()) == 2 for row in answer.logprobs)


def test_formats(client: ollama.Client) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    options = {"temperature": 0, "num_predict": 40}
    for raw in (True, False):
        answer = client.generate("weft-demo", "a", raw=raw, format=schema, options=options)
        assert json.loads(answer.response or "")["n"] in (3, 4)


def test_images(seeing: ollama.Client) -> None:
    picture = SHAPES / "three-triangles.png"
    message = {"role": "user", "content": "How many shapes?", "images": [picture]}
    assert seeing.chat("weft-shapes", [message], options=GREEDY).message.content == "Three."
    answer = seeing.generate(
        "weft-shapes", "How many shapes?", images=[picture.read_bytes()], options=GREEDY
    )
    assert answer.response == "Three." and answer.context is None
    assert seeing.show("weft-shapes").capabilities == ["completion", "vision"]


def test_tools(tools: ollama.Client) -> None:
    pytest.importorskip("llguidance")
    call = {"name": "weather", "arguments": {"place": "a"}}
    schema = {"const": call}
    options = {"temperature": 0, "num_predict": 120}
    messages: list[Any] = [{"role": "user", "content": "abc"}]
    answer = tools.chat("talker", messages, tools=[TOOL], format=schema, options=options)
    assert answer.message.tool_calls is not None, answer
    (got,) = answer.message.tool_calls
    assert (got.function.name, got.function.arguments) == ("weather", {"place": "a"})
    assert not answer.message.content
    parts = list(
        tools.chat("talker", messages, tools=[TOOL], format=schema, options=options, stream=True)
    )
    calls = [c for part in parts for c in part.message.tool_calls or ()]
    assert [c.function.arguments for c in calls] == [{"place": "a"}]
    messages += [answer.message, {"role": "tool", "tool_name": "weather", "content": "hot"}]
    again = tools.chat("talker", messages, tools=[TOOL], options=GREEDY)
    assert again.prompt_eval_count and again.prompt_eval_count > (answer.prompt_eval_count or 0)
    assert "tools" in (tools.show("talker").capabilities or ())


def test_thinking_in_a_chat(tools: ollama.Client) -> None:
    """`think` reaches the template."""
    messages = [{"role": "user", "content": "abc"}]
    counts = [
        tools.chat("talker", messages, think=think, options=GREEDY).prompt_eval_count or 0
        for think in (True, False)
    ]
    assert counts[0] > counts[1]
    assert "thinking" in (tools.show("talker").capabilities or ())


def test_thoughts_and_calls_of_an_answer() -> None:
    pieces = ["so ", "it is</think>", "Yes", '<call>{"name": "f", "arguments": {"a": 1}}</call>']

    async def rows(stream: bool) -> list[dict[str, Any]]:
        texts = said(pieces, ids=(7, 8))
        answer = OllamaAnswer(texts, Tokenizer.from_gguf(open_model(DEMO)), "chat", "m", 0.0)
        if not stream:
            return [await answer.whole()]
        return [json.loads(part) async for part in answer.stream()]

    (whole,) = asyncio.run(rows(False))
    assert whole["message"]["thinking"] == "so it is" and whole["message"]["content"] == "Yes"
    call = {"function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
    assert whole["message"]["tool_calls"] == [call]
    parts = asyncio.run(rows(True))
    assert "".join(part["message"].get("thinking", "") for part in parts) == "so it is"
    assert "".join(part["message"]["content"] for part in parts) == "Yes"
    assert [part["message"]["tool_calls"] for part in parts if "tool_calls" in part["message"]] == [
        [call]
    ]
    assert parts[-1]["done"] is True


def test_embeddings(server: Server, client: ollama.Client) -> None:
    rows = client.embed("weft-demo", ["a", "b"]).embeddings
    want = server.client.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
    assert [list(row) for row in rows] == [row.embedding for row in want.data]
    assert list(client.embeddings("weft-demo", "a").embedding) == list(rows[0])
    assert len(client.embed("weft-demo", "a", dimensions=3).embeddings[0]) == 3
    long = client.embed("weft-demo", "a b " * 400)
    assert long.prompt_eval_count == 256
    with pytest.raises(ollama.ResponseError, match="it must be 1 to 256"):
        client.embed("weft-demo", "a b " * 400, truncate=False)


def test_about_the_model(server: Server, client: ollama.Client) -> None:
    (row,) = client.list().models
    assert row.model == "weft-demo:latest" and row.size == DEMO.stat().st_size
    assert row.details is not None and row.details.parameter_size == "1.05M"
    assert row.details.quantization_level == "Q8_0" and row.details.format == "gguf"
    about = client.show("weft-demo:latest")
    assert about.modelinfo is not None and about.modelinfo["llama.block_count"] == 5
    assert about.capabilities == ["completion"]
    (running,) = client.ps().models
    assert running.context_length == 256 and running.size and running.size > row.size
    version = server.call("GET", "/api/version")[2]
    assert version["weft"] == __version__
    # what programs compare is the version of Ollama
    assert [int(part) for part in version["version"].split(".")] >= [0, 14, 0]
    listed = server.call("GET", "/api/tags")[2]["models"][0]
    shown = server.call("POST", "/api/show", {"model": listed["name"]})[2]
    assert listed["capabilities"] == shown["capabilities"]
    assert client.generate("weft-demo").done_reason == "load"
    assert client.chat("weft-demo").done_reason == "load"


def test_a_model_that_is_here_is_pulled_at_once(client: ollama.Client) -> None:
    """Programs pull a model before they use it."""
    assert client.pull("weft-demo:latest").status == "success"
    assert [part.status for part in client.pull("weft-demo", stream=True)] == ["success"]


def test_what_is_refused(server: Server, client: ollama.Client) -> None:
    for call, status, message in (
        (lambda: client.show("other"), 404, "model 'other' not found; this is weft-demo"),
        (lambda: client.pull("other"), 501, "does not fetch, make, copy or delete"),
        (lambda: client.create("other", from_="weft-demo"), 501, "does not fetch"),
        (lambda: client.copy("a", "b"), 501, "does not fetch"),
        (lambda: client.delete("a"), 501, "does not fetch"),
        (lambda: client.generate("m", "a", template="{{ .Prompt }}"), 400, "in Go's language"),
        (lambda: client.generate("m", "a", suffix="b"), 400, "no tokens for infilling"),
        (lambda: client.generate("m", "a", images=[b"x"], raw=True), 400, "need the chat template"),
        (lambda: client.generate("m", "a", system="b", raw=True), 400, "raw: true takes no system"),
        (lambda: client.generate("m", "a", context=[5], raw=True), 400, "raw: true takes no conte"),
        (lambda: client.generate("m", "a", options={"num_predict": "many"}), 400, "whole number"),
        (lambda: client.generate("m", "a", options={"temperature": -1}), 400, "temperature is -1"),
        (lambda: client.chat("m", [{"role": "user", "content": "a " * 900}]), 400, "tokens, but"),
    ):
        with pytest.raises(ollama.ResponseError, match=message) as error:
            call()  # type: ignore[no-untyped-call]
        assert error.value.status_code == status
    status, _, body = server.call("POST", "/api/chat", {"messages": []})
    assert status == 400 and body == {"error": "model is missing; it must be given"}
    status, _, body = server.call("POST", "/api/chat", b"{")
    assert status == 400 and body["error"].startswith("the body is not JSON")


def test_bodies_need_no_type_but_from_pages(server: Server) -> None:
    """curl -d sends forms; a page of another site could send those too, without asking first."""
    body = json.dumps({"model": "m", "prompt": "a", "stream": False, "options": GREEDY}).encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert server.call("POST", "/api/generate", body, **kind)[0] == 200
    kind["Origin"] = "http://page.example"
    assert server.call("POST", "/api/generate", body, **kind)[0] == 400


def test_options_without_effect_are_named(server: Server) -> None:
    options = {"num_ctx": 4096, "num_thread": 3, "penalize_newline": True}
    body = {"model": "m", "prompt": "a", "stream": False, "options": GREEDY | options, "odd": 1}
    status, headers, _ = server.call("POST", "/api/generate", body)
    assert status == 200
    assert headers["x-weft-ignored"] == "odd, options.penalize_newline"


def test_options_and_their_defaults() -> None:
    fields, ignored = fields_of({"seed": 3, "num_predict": -2, "stop": ["a"], "num_ctx": 8})
    assert fields["top_p"] == 0.9 and fields["max_tokens"] == -1 and not ignored
    body, _ = chat_of(ChatRequest(model="m", messages=[], think="high", format="json"))
    assert body.reasoning_effort == "high"
    assert body.sampling["json_schema"] == {"type": "object"}
    raw, _ = completion_of(GenerateRequest(model="m", prompt="a", raw=True))
    assert raw.max_tokens == -1


def test_messages() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    other = {"function": {"name": "g", "arguments": {}}}
    made = messages_of([
        {"role": "user", "content": "a", "images": ["QQ=="]},
        {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [call, other]},
        {"role": "tool", "tool_name": "g", "content": "1"},
        {"role": "tool", "content": "2"},
    ])  # fmt: skip
    assert made[0]["content"][0]["image_url"]["url"] == "data:image/png;base64,QQ=="
    first, second = made[1]["tool_calls"]
    assert first["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert made[1]["reasoning_content"] == "so"
    assert (made[2]["tool_call_id"], made[2]["name"]) == (second["id"], "g")
    assert (made[3]["tool_call_id"], made[3]["name"]) == (first["id"], "f")
