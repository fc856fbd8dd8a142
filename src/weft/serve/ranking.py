"""The endpoint `/v1/rerank`."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

from weft.llm.compute.embed import Pair
from weft.llm.compute.rerank import best_first, pair_ids
from weft.serve.errors import ApiError
from weft.serve.log import say_tokens
from weft.serve.respond import note
from weft.serve.schema import Document, RerankBody
from weft.serve.service import Service

__all__ = ["add_rerank"]


def add_rerank(app: FastAPI, service: Service) -> None:
    """Adds the endpoint to an application."""

    @app.post("/v1/rerank", response_model=None)
    @app.post("/v2/rerank", include_in_schema=False, response_model=None)
    @app.post("/rerank", include_in_schema=False, response_model=None)
    @app.post("/v1/reranking", include_in_schema=False, response_model=None)
    @app.post("/reranking", include_in_schema=False, response_model=None)
    async def rerank(body: RerankBody, http: Request) -> dict[str, Any] | list[dict[str, Any]]:
        """The indexes and scores of documents, those that answer a query best first."""
        note(http, body, service)
        texts = body.texts
        if body.documents is not None:
            texts = [d if isinstance(d, str) else d.text for d in body.documents]
        if texts is None:
            raise ApiError(400, "documents is missing; it must be a list of texts", "documents")
        pairs = await run_in_threadpool(_pairs, service, body.query, texts)
        rows = best_first(await service.rank(pairs, http.is_disconnected), body.top_n)
        n_tokens = sum(map(len, pairs))
        say_tokens(http.scope["state"], n_tokens, 0)
        if body.documents is None:
            shown = [{"text": texts[row.index]} if body.return_text else {} for row in rows]
            return [row.as_json("score") | more for row, more in zip(rows, shown, strict=True)]
        results: list[dict[str, Any]] = [dict(row.as_json()) for row in rows]
        if body.return_documents:
            results = [row | {"document": _shown(body.documents[row["index"]])} for row in results]
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": body.model or service.model_id,
            "object": "list",
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "results": results,
        }


def _shown(document: str | Document) -> dict[str, Any]:
    """A document as an object, which it is in answers."""
    return {"text": document} if isinstance(document, str) else document.model_dump()


def _pairs(service: Service, query: str, texts: list[str]) -> list[Pair]:
    """The token ids of each document with the query. Raises ApiError if the model does not rank, or
    a text is too long."""
    if not service.ranks:
        raise ApiError(
            400, f"{service.model_id} has no classifier, so it cannot rank; serve a reranker",
            "model", "unsupported",
        )  # fmt: skip
    most = service.embedder.max_tokens
    service.prompts.require_short(query, "query", most)
    for text in texts:
        service.prompts.require_short(text, "documents", most)
    pairs = [pair_ids(service.tokenizer, query, text) for text in texts]
    for number, ids in enumerate(pairs):
        if len(ids) > most:
            raise ApiError(
                400, f"document {number} and the query have {len(ids)} tokens; the model reads "
                f"{most} at once: shorten it, or start the server with a larger --ubatch-size",
                "documents", "context_length_exceeded",
            )  # fmt: skip
    return pairs
