"""The endpoints of chats, completions, embeddings and ranks."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from weft.llm.compute.embed import Pair, best_first, pair_ids
from weft.serve.endpoints import add
from weft.serve.errors import ApiError
from weft.serve.log import say_tokens
from weft.serve.openai.format import Answer
from weft.serve.prompts import Asked
from weft.serve.respond import embedded, note, respond, start
from weft.serve.schema import (
    ChatBody,
    CompletionBody,
    Document,
    EmbeddingBody,
    Generation,
    RerankBody,
)
from weft.serve.service import Service


def add_openai(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""

    @add(app, "/v1/chat/completions")
    async def chat(body: ChatBody, http: Request) -> Response:
        """An answer to messages."""
        make = partial(service.prompts.of_chat, body)
        return await _answer(service, "chat", body, http, make)

    @add(app, "/v1/completions")
    async def completions(body: CompletionBody, http: Request) -> Response:
        """The continuation of a text, of token ids, or of several."""
        make = partial(service.prompts.of_completion, body)
        return await _answer(service, "text", body, http, make)

    @add(app, "/v1/embeddings")
    async def embeddings(body: EmbeddingBody, http: Request) -> dict[str, Any]:
        """An embedding of each text, of length 1."""
        note(http, body, service)
        cut = body.truncate_prompt_tokens
        rows, n_tokens = await embedded(
            service, http, body.input, "input", body.dimensions, cut=cut is not None, first=cut
        )
        as_text = body.encoding_format == "base64"
        return {
            "object": "list",
            "model": service.model_id,
            "data": [
                {
                    "object": "embedding",
                    "index": i,
                    "embedding": base64.b64encode(row.astype("<f4").tobytes()).decode()
                    if as_text
                    else row.tolist(),
                }
                for i, row in enumerate(rows)
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    @add(app, "/v1/rerank", response_model=None)
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


async def _answer(
    service: Service, kind: Literal["chat", "text"], body: Generation, http: Request,
    make: Callable[[], Asked],
) -> Response:  # fmt: skip
    note(http, body, service)
    texts = await start(service, make)
    usage = body.stream_options is not None and body.stream_options.include_usage
    answer = Answer(
        texts, service.tokenizer, kind, service.name_for(body.model), with_usage=usage,
        with_timings=body.timings_per_token,
    )  # fmt: skip
    return await respond(answer, http, stream=bool(body.stream))


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
