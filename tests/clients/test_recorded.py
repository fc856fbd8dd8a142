"""The requests that other programs send, as `test_clients_of_others.py` has recorded them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.in_process import DEMO, Server
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf

REQUESTS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "requests.json").read_text("utf-8")
)
LAST = {
    "/v1/chat/completions": "data: [DONE]",
    "/v1/messages": '"message_stop"',
    "/v1/responses": '"type":"response.incomplete"',
}
"""What the end of a stream has, by path."""
LIMITS = ("max_tokens", "max_completion_tokens")
"""Fields whose values are cut, so that answers are short."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model with room for agents; an answer has at most four tokens."""
    path = tmp_path_factory.mktemp("clients") / "roomy.gguf"
    with open_gguf(DEMO) as file:
        metadata = dict(file.copy_metadata()) | {"llama.context_length": np.uint32(16384)}
        write_gguf(path, metadata, [(t.name, t.dtype, t.ne, t.data) for t in file.tensors.values()])
    with Server(path, "-np", 1, "-t", 1, "-c", 16384, "--max-tokens", 4, "--embeddings") as running:
        yield running


@pytest.mark.parametrize("client", REQUESTS)
def test_what_a_client_sends_is_answered(server: Server, client: str) -> None:
    for request in REQUESTS[client]:
        body = {key: min(value, 4) if key in LIMITS and value else value
                for key, value in (request["body"] or {}).items()} or None  # fmt: skip
        status, headers, answer = server.call(
            request["method"], request["path"], body, **request["headers"]
        )
        assert status == request["status"], answer
        assert headers.get("x-weft-ignored") == request["ignored"], request["path"]
        path = request["path"].partition("?")[0]
        if request["body"] and request["body"].get("stream"):
            end = answer.strip().rsplit("\n\n", 1)[-1]
            assert LAST[path] in end and "event: error" not in answer, answer


def test_every_client_is_there() -> None:
    assert set(REQUESTS) >= {"claude", "codex", "continue", "langchain", "llama_index", "llm"}
    paths = {request["path"].partition("?")[0] for sent in REQUESTS.values() for request in sent}
    assert paths >= {*LAST, "/v1/embeddings"}
