"""Requests in the forms of other APIs, to a model with tools and reasoning, in this process: an
answer with the right shape, or a 4xx that says why in the form of that API."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import as_json, mutate_bytes, mutate_json
from tests.fuzz.requests import call
from tests.fuzz.rounds import Round
from tests.serve.talkers import SCHEMA, talker
from weft.serve import ServeOptions, Service, create_app
from weft.serve.anthropic import schema as anthropic
from weft.serve.responses import schema as responses

NATIVE = True

MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
HEARD = "/v1/audio/transcriptions"
USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
USED = {"type": "tool_use", "id": "t", "name": "f", "input": {"place": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"place": "a"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "r"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (MESSAGES, {"model": "m", "max_tokens": 3, "messages": [USER], "stop_sequences": ["x"]}),
    (MESSAGES, {"max_tokens": 4, "stream": True, "temperature": 0, "top_k": 2, "system": [
        {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [USER, {"role": "assistant", "content": "a"}]}),
    (MESSAGES, {"max_tokens": 60, "messages": [USER], "tools": [TOOL], "stream": True,
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}),
    (MESSAGES, {"max_tokens": 4, "thinking": {"type": "enabled", "budget_tokens": 1024},
                "tools": [TOOL], "stream": True, "messages": [
        USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, USED]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "and?"}]}]}),
    (MESSAGES, {"max_tokens": 3, "messages": [{"role": "user", "content": [
        {"type": "image", "source": PIXEL}]}],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "integer"}}}}),
    (COUNT, {"messages": [USER], "system": "s", "tools": [TOOL]}),
    (RESPONSES, {"model": "m", "input": "Hi", "max_output_tokens": 3, "instructions": "s"}),
    (RESPONSES, {"input": [USER, {"type": "reasoning", "content": [
        {"type": "reasoning_text", "text": "t"}], "summary": []}, CALL, OUTPUT],
        "tools": [FUNCTION], "max_output_tokens": 3, "stream": True,
        "include": ["reasoning.encrypted_content"]}),
    (RESPONSES, {"input": "a", "tools": [FUNCTION], "tool_choice": "required", "stream": True,
                 "max_output_tokens": 60, "parallel_tool_calls": False, "metadata": {"a": "b"}}),
    (RESPONSES, {"input": [{"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "a"}]}], "max_output_tokens": 5, "top_logprobs": 2,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}}}),
    (RESPONSES, {"input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]},
        {"type": "item_reference", "id": "x"}], "max_output_tokens": 2, "store": False}),
    (f"{RESPONSES}/input_tokens", {"input": "a", "previous_response_id": "resp"}),
]  # fmt: skip
FORM = {
    "model": "m", "response_format": "json", "language": "en", "temperature": "0", "prompt": "p",
    "stream": "false",
}  # fmt: skip
MODELS = (anthropic.MessagesBody, responses.ResponsesBody)
WORDS = tuple(sorted({name for model in MODELS for name in model.model_fields}))
LAST = ("message_stop", "error", "response.completed", "response.incomplete", "response.failed")


def form_of(rng: random.Random) -> bytes:
    """A form with a file, damaged."""
    fields = mutate_json(FORM, rng)
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (fields.items() if isinstance(fields, dict) else ())
    ]
    head = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    data = bytearray("".join([*parts, head, "RIFF", "\r\n--b--\r\n"]).encode(errors="replace"))
    if rng.randrange(2):
        mutate_bytes(data, rng)
    return bytes(data)


def prepare(folder: Path) -> Round:
    """A server with a small model, for two texts at a time."""
    options = ServeOptions(parallel=2, max_queue=8, max_body=1 << 18)
    app = create_app(Service(talker(folder), options, n_threads=1, n_ctx=1024))
    loop = asyncio.Runner()

    def one(rng: random.Random) -> str:
        if rng.randrange(8) == 0:
            form = b"multipart/form-data; boundary=b"
            answer = loop.run(call(app, HEARD, form_of(rng), rng.choice((1, 3)), form))
            return check(HEARD, *answer)
        path, body = rng.choice(BODIES)
        data = as_json(mutate_json(body, rng, WORDS)).encode()
        if rng.randrange(4) == 0:
            damaged = bytearray(data or b"{}")
            mutate_bytes(damaged, rng)
            data = bytes(damaged)
        return check(path, *loop.run(call(app, path, data, rng.choice((1, 1, 3)))))

    return one


def check(path: str, status: int, headers: dict[bytes, bytes], answer: bytes) -> str:
    """What became of a request; raises where it is none of the answers that there are."""
    if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        events = answer.decode().strip().split("\n\n")
        kinds = [json.loads(event.partition("data: ")[2])["type"] for event in events]
        assert status == 200 and kinds[-1] in LAST, kinds
        assert not set(kinds[:-1]) & set(LAST), kinds
        assert kinds[0] in ("message_start", "response.created"), kinds
        return "streamed"
    value = json.loads(answer)
    if status == 200:
        return "answered"
    assert 400 <= status < 500, (status, value)
    assert isinstance(value["error"]["message"], str) and value["error"]["message"], value
    assert (value.get("type") == "error") == path.startswith(MESSAGES), value
    return "refused"
