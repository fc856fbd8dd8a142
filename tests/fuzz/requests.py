"""Requests to the server, in this process: an answer with the right shape or a 4xx that says why,
and what others get stays what it was."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import as_json, mutate_bytes, mutate_json
from tests.fuzz.rounds import Round
from weft.serve import ServeOptions, Service, create_app, schema

NATIVE = True

MODEL = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"model": "m", "prompt": "What is 17 + 25?", "max_tokens": 3, "temperature": 0}),
    (TEXT, {"prompt": ["a", "b"], "n": 2, "max_tokens": 2, "stream": True, "stop": ["\n", "x"]}),
    (TEXT, {"prompt": [5, 6, 7], "max_tokens": 2, "logprobs": 2, "echo": True, "seed": 1}),
    (TEXT, {"prompt": "a", "max_tokens": 4, "regex": "[0-9]+", "logit_bias": {"5": -100}}),
    (TEXT, {"prompt": "a", "max_tokens": 4, "grammar": 'root ::= "a"+', "best_of": 2}),
    (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "top_p": 0.9}),
    (CHAT, {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [
        {"type": "text", "text": "Hi"}]}], "max_completion_tokens": 2, "stream": True,
        "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 1}),
    (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "tools": [TOOL],
            "tool_choice": "auto", "response_format": {"type": "json_object"}}),
    (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3,
            "response_format": SCHEMA, "frequency_penalty": 0.1, "presence_penalty": -0.1}),
    (EMBED, {"input": ["a", "b c"], "encoding_format": "base64", "dimensions": 8}),
    ("/tokenize", {"content": "Some text", "add_special": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]  # fmt: skip
MODELS = (schema.ChatBody, schema.CompletionBody, schema.EmbeddingBody)
WORDS = tuple(sorted({name for model in MODELS for name in model.model_fields}))

Answer = tuple[int, dict[bytes, bytes], bytes]


async def call(
    app: Any, path: str, body: bytes, pieces: int = 1, kind: bytes = b"application/json"
) -> Answer:
    """Status, headers and body of a request that comes in so many pieces."""
    step = max(1, -(-len(body) // pieces))
    parts = [body[i : i + step] for i in range(0, len(body), step)] or [b""]
    waiting = [
        {"type": "http.request", "body": part, "more_body": i + 1 < len(parts)}
        for i, part in enumerate(parts)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", kind)]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 60)
    start, *rest = sent
    return start["status"], dict(start["headers"]), b"".join(m.get("body", b"") for m in rest)


def prepare(folder: Path) -> Round:
    """A server that writes and embeds, for two texts at a time."""
    options = ServeOptions(parallel=2, max_queue=8, max_body=1 << 18)
    service = Service(MODEL, options, embeddings=True, n_threads=1)
    app = create_app(service)
    loop = asyncio.Runner()
    number = 0

    def one(rng: random.Random) -> str:
        nonlocal number
        path, body = rng.choice(BODIES)
        data = as_json(mutate_json(body, rng, WORDS)).encode()
        if rng.randrange(4) == 0:
            damaged = bytearray(data or b"{}")
            mutate_bytes(damaged, rng)
            data = bytes(damaged)
        status, headers, answer = loop.run(call(app, path, data, rng.choice((1, 1, 3))))
        word = check(status, headers, answer)
        number += 1
        if number % 16 == 0:
            unspoilt(loop.run(call(app, TEXT, json.dumps(BODIES[0][1]).encode())))
        return word

    return one


def check(status: int, headers: dict[bytes, bytes], answer: bytes) -> str:
    """What became of a request; raises where it is none of the answers that there are."""
    kind = headers.get(b"content-type", b"")
    if kind.startswith(b"text/event-stream"):
        assert status == 200 and answer.endswith(b"data: [DONE]\n\n"), answer[-200:]
        return "streamed"
    value = json.loads(answer)
    if status == 200:
        return "answered"
    assert 400 <= status < 500, (status, value)
    assert isinstance(value["error"]["message"], str) and value["error"]["message"], value
    return "refused"


def unspoilt(got: Answer) -> None:
    """The demo model's answer, whatever was asked before."""
    status, _, answer = got
    assert status == 200, got
    assert json.loads(answer)["choices"][0]["text"] == " 42", answer
