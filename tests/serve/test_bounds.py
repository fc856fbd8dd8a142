"""What requests may cost a server: a single one cannot end it, nor keep it from others."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import h11
import pytest

from tests.llm.tiny import metadata, tokens, write_model
from tests.serve.server import DEMO, Server
from tests.waiting import eventually
from weft.bounds import CHUNK_BYTES, CHUNKS
from weft.errors import ContextError
from weft.frontends.gguf import open_gguf
from weft.llm.sampling.constraint import Constraint
from weft.llm.sampling.params import SamplingParams
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.serve.connections import _Framing, _RefusedError

CHAIN = "".join(f"r{i}: r{i + 1}\n" for i in range(4000))
GRAMMAR = f'%llguidance {{}}\nstart: r0\n{CHAIN}r4000: "c"\n'
"""A chain of rules over which the library that compiles it recurses."""
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
BODY = {"prompt": "a", "max_tokens": 2, "ignore_eos": True}


def nested(n: int) -> dict[str, Any]:
    """A schema whose parts refer to one another, `n` deep."""
    defs: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(n)
    }
    return {"$defs": defs | {f"d{n}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    names, scores, types = tokens()
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": TEMPLATE,
        "llama.context_length": 1024,
    }
    folder = tmp_path_factory.mktemp("bounds")
    files, model = folder / "own", write_model(folder / "m.gguf", metadata(**keys))
    with Server(model, "-t", 1, "--files-dir", files) as running:
        yield running


def served(server: Server) -> None:
    status, _, answer = server.call("POST", "/v1/completions", BODY)
    assert status == 200, answer


MESSAGES = [{"role": "user", "content": "a"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(1000)}}
DEEP: dict[str, tuple[str, dict[str, Any]]] = {
    "grammar": ("/v1/completions", BODY | {"grammar": GRAMMAR}),
    "json_schema": ("/v1/completions", BODY | {"json_schema": nested(1000)}),
    "response_format": (
        "/v1/chat/completions", {"messages": MESSAGES, "response_format": FORMAT},
    ),
    "text.format": (
        "/v1/responses",
        {"input": "a", "text": {"format": {"type": "json_schema", "name": "x",
                                           "schema": nested(1000)}}},
    ),
    "Ollama's format": ("/api/chat", {"model": "m", "messages": MESSAGES, "format": nested(1000)}),
    "llama.cpp's": ("/completion", {"prompt": "a", "grammar": GRAMMAR}),
}  # fmt: skip


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_constraint(server: Server, name: str) -> None:
    path, body = DEEP[name]
    status, _, answer = server.call("POST", path, body)
    assert status == 400 and "nested too deeply" in str(answer["error"]), answer
    served(server)


LONG = {
    "blank lines": 'root ::= "a"' + "\n" * 900_000,
    "spaces": "root ::=" + " " * 900_000 + '"a"',
    "open names of tokens": 'root ::= "a" #' + "<" * 900_000,
    "names of tokens": "root ::= " + "<a" * 400_000,
    "open texts": "root ::= " + '"' * 900_001,
    "starts": "start " * 150_000,
    "repetitions": "root ::= " + " ".join(["[a-z]{0,1000}"] * 450),
    "rules": "root ::= q\n" + "".join(f'q{i} ::= "z{i}" [a-f]+\n' for i in range(30_000)),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_grammar(name: str) -> None:
    """It takes this process a few seconds at most, by whatever is read before it is compiled."""
    began = time.process_time()
    params = SamplingParams(grammar=LONG[name])
    with suppress(ContextError):
        Constraint(params, Tokenizer.from_gguf(open_gguf(DEMO)))
    assert time.process_time() - began < 5


def test_a_deep_constraint_of_a_batch(server: Server) -> None:
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
        for i, body in enumerate((BODY, BODY | {"grammar": GRAMMAR}))
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    file = server.client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = server.client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )

    def ended() -> Any:
        now = server.client.batches.retrieve(batch.id)
        return now if now.status == "completed" else None

    done = eventually(ended)
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 1)
    served(server)


@pytest.mark.parametrize("depth", [100, 200, 400, 900, 20_000])
def test_tools_of_any_depth(server: Server, depth: int) -> None:
    deep = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{deep}}}}}'
    for choice in ("auto", "required"):
        body = f'{{"messages":[{{"role":"user","content":"a"}}],"max_tokens":1,"tools":[{tool}],'
        body += f'"tool_choice":"{choice}"}}'
        status, _, answer = server.call("POST", "/v1/chat/completions", body.encode())
        assert status in (200, 400), answer
    served(server)


# ---- chunks ----


def chunked(n: int, size: int) -> bytes:
    return b"%x\r\n%s\r\n" % (size, b" " * size) * n


def sent(server: Server, data: bytes) -> bytes:
    """What the server says to raw bytes, until it closes the connection."""
    address = urlsplit(server.url)
    said = b""
    with socket.create_connection((address.hostname, address.port), 60) as connection:
        try:
            connection.sendall(data)
            while part := connection.recv(1 << 16):
                said += part
        except ConnectionError:
            pass
    return said


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_small_chunks_are_refused(server: Server) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    said = sent(server, head + chunked(CHUNKS + 100, 1))
    assert said.startswith(b"HTTP/1.1 400 ") and b"chunks for" in said
    assert b"connection: close" in said.lower()
    served(server)


def test_common_chunks_are_read(server: Server) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = json.dumps(BODY).encode()
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    said = sent(server, head + parts + chunked(3000, 16) + b"0\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200 "), said


def events(data: bytes) -> list[Any]:
    framing = _Framing(h11.SERVER, max_incomplete_event_size=1 << 16)
    framing.receive_data(data)
    found = []
    while (event := framing.next_event()) is not h11.NEED_DATA:
        found.append(event)
    return found


def test_how_many_chunks_a_body_may_have() -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    n = 2 * CHUNKS
    assert len(events(head + chunked(n, CHUNK_BYTES))) == n + 1
    with pytest.raises(_RefusedError, match=f"it may have {CHUNKS}"):
        events(head + chunked(n, CHUNK_BYTES // 3))


def test_a_body_whose_end_is_told_twice(server: Server) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
    said = sent(server, head + b"0\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400 ") and b"Transfer-Encoding and Content-Length" in said
    served(server)


def test_a_large_head(server: Server) -> None:
    """In one piece, or without an end."""
    line = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    assert sent(server, line + b"a" * 60_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    for rest in (b"a" * 70_000 + b"\r\n\r\n", b"a" * 300_000):
        said = sent(server, line + rest)
        assert said.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n"), said[:200]
        assert b"the head of the request has " in said and b" 65536" in said
    served(server)


# ---- pages of other sites ----


def form(content: bytes = b"{}\n") -> tuple[bytes, str]:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n',
        content, b"\r\n--x--\r\n",
    ]  # fmt: skip
    return b"".join(parts), "multipart/form-data; boundary=x"


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_forms_of_other_pages_are_refused(server: Server, headers: dict[str, str]) -> None:
    data, kind = form()
    for path in ("/v1/files", "/v1/audio/transcriptions", "/v1/completions"):
        for type_ in (kind, ""):
            sent_headers = {"Content-Type": type_, **headers}
            status, _, answer = server.call("POST", path, data, **sent_headers)
            assert status == 403 and answer["error"]["code"] == "origin_not_allowed", answer
    for type_ in ("text/plain", "application/x-www-form-urlencoded"):  # which nothing reads
        for path in ("/v1/completions", "/v1/files", "/api/generate"):
            sent_headers = {"Content-Type": type_, **headers}
            assert server.call("POST", path, json.dumps(BODY).encode(), **sent_headers)[0] == 400
    assert not [f for f in server.client.files.list() if f.filename == "a"]


def test_forms_of_our_page_and_of_no_page_are_read(server: Server) -> None:
    data, kind = form()
    ours: list[dict[str, str]] = [
        {}, {"Origin": server.url}, {"Origin": "http://other", "Sec-Fetch-Site": "same-origin"},
    ]  # fmt: skip
    for headers in ours:
        sent_headers = {"Content-Type": kind, **headers}
        status, _, answer = server.call("POST", "/v1/files", data, **sent_headers)
        assert status == 200, answer
        server.client.files.delete(answer["id"])
    # a browser asks before it sends JSON, and is told that it may not
    status, _, _ = server.call("POST", "/v1/completions", BODY, Origin="https://other.example")
    assert status == 200


def test_others_are_served_while_constraints_compile(server: Server) -> None:
    """The slowest of constraints keep no thread from requests that have none."""
    slow = {"type": "integer", "maximum": 10**12}
    answers: list[int] = []

    def ask(i: int) -> None:
        body = BODY | {"json_schema": slow | {"multipleOf": 99_999_000 + 2 * i + 1}}
        answers.append(server.call("POST", "/v1/completions", body)[0])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    served(server)
    assert len(answers) < len(threads)  # it did not wait for them
    for thread in threads:
        thread.join()
    assert set(answers) <= {400, 429}
