"""`/v1/rerank`, as Jina and Cohere have it, and as text-embeddings-inference has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm.encoder_models import DOCUMENTS, make_reranker
from tests.serve.in_process import DEMO, Server
from weft.llm import LLM


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reranker(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    with Server(path, "-t", 1) as running:
        yield running


def ask(server: Server, at: str = "/v1/rerank", **body: Any) -> tuple[int, Any]:
    status, _, answer = server.call("POST", at, body)
    return status, answer


@pytest.mark.parametrize(
    "at", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"]
)
def test_documents(server: Server, path: Path, at: str) -> None:
    with LLM(path, n_threads=1) as llm:
        want = llm.rerank("the", DOCUMENTS)
        n = sum(len(llm.tokenize(text)) + len(llm.tokenize("the")) for text in DOCUMENTS)
    status, answer = ask(server, at, query="the", documents=DOCUMENTS, model="mine")
    assert status == 200 and answer["object"] == "list" and answer["model"] == "mine"
    assert [row["index"] for row in answer["results"]] == [row.index for row in want]
    scores = [row["relevance_score"] for row in answer["results"]]
    assert scores == pytest.approx([row.relevance_score for row in want], abs=1e-5)
    assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}
    for top_n in (2, 99):
        _, few = ask(server, at, query="the", documents=DOCUMENTS, top_n=top_n)
        assert few["results"] == answer["results"][:top_n]


def test_texts(server: Server) -> None:
    _, answer = ask(server, query="the", documents=DOCUMENTS)
    rows = [{"index": r["index"], "score": r["relevance_score"]} for r in answer["results"]]
    assert ask(server, query="the", texts=DOCUMENTS) == (200, rows)
    _, shown = ask(server, query="the", texts=DOCUMENTS, return_text=True, top_n=2)
    assert shown == [row | {"text": DOCUMENTS[row["index"]]} for row in rows[:2]]


def test_documents_that_are_objects(server: Server) -> None:
    """They count as their texts, and come back whole if they are asked for."""
    _, plain = ask(server, query="the", documents=DOCUMENTS, return_documents=True)
    for row in plain["results"]:
        assert row["document"] == {"text": DOCUMENTS[row["index"]]}
    objects = [{"text": text, "id": i} for i, text in enumerate(DOCUMENTS)]
    _, answer = ask(server, query="the", documents=objects, return_documents=True, top_n=2)
    for row, other in zip(answer["results"], plain["results"], strict=False):
        assert row["document"] == objects[row["index"]]
        assert row["relevance_score"] == other["relevance_score"]
    _, bare = ask(server, query="the", documents=objects)
    assert all(set(row) == {"index", "relevance_score"} for row in bare["results"])
    assert bare["id"].startswith("rerank-")


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2, 3], [{"title": "a"}]])
def test_documents_that_are_none(server: Server, documents: Any) -> None:
    status, answer = ask(server, query="the", documents=documents)
    assert status == 400 and "list of" in answer["error"]["message"]


def test_what_is_refused(server: Server) -> None:
    status, answer = ask(server, documents=DOCUMENTS)
    assert status == 400 and "query is missing" in answer["error"]["message"]
    status, answer = ask(server, query="the", documents=["a", "the abc " * 40])
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    status, answer = ask(server, "/v1/embeddings", input="a")
    assert status == 400 and "ask /v1/rerank" in answer["error"]["message"]
    status, answer = ask(server, "/v1/completions", prompt="a")
    assert status == 400 and "ranks documents only" in answer["error"]["message"]


def test_a_file_that_does_not_say_that_it_ranks(tmp_path: Path) -> None:
    """As those of most rerankers do not. It gives embeddings, too."""
    path = make_reranker(tmp_path / "m.gguf", **{"bert.pooling_type": 1})
    with LLM(path, n_threads=1) as llm, Server(path, "-t", 1) as server:
        want = [row.index for row in llm.rerank("the", DOCUMENTS)]
        _, answer = ask(server, query="the", documents=DOCUMENTS)
        assert [row["index"] for row in answer["results"]] == want
        status, answer = ask(server, "/v1/embeddings", input="a")
        assert status == 200 and len(answer["data"][0]["embedding"]) == 16


def test_a_model_that_writes() -> None:
    with Server(DEMO, "-t", 1) as server:
        status, answer = ask(server, query="the", documents=DOCUMENTS)
        assert status == 400 and "no classifier" in answer["error"]["message"]
