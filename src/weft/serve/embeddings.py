"""The endpoint `/v1/embeddings`."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

from weft.serve.errors import ApiError
from weft.serve.inputs import texts_of, token_lists
from weft.serve.log import say_tokens
from weft.serve.respond import note
from weft.serve.schema import EmbeddingBody
from weft.serve.service import Service

__all__ = ["add_embeddings", "embedding_texts"]


def add_embeddings(app: FastAPI, service: Service) -> None:
    """Adds the endpoint to an application."""

    @app.post("/v1/embeddings")
    @app.post("/embeddings", include_in_schema=False)
    async def embeddings(body: EmbeddingBody, http: Request) -> dict[str, Any]:
        """An embedding of each text, of length 1."""
        note(http, body, service)
        if service.embedder.pooling == "rank":
            raise ApiError(
                400, f"{service.model_id} ranks documents; ask /v1/rerank", "model", "unsupported"
            )
        width = service.n_embd
        if body.dimensions is not None and body.dimensions > width:
            raise ApiError(
                400, f"dimensions is {body.dimensions}, but the model gives {width}", "dimensions"
            )
        texts = await run_in_threadpool(embedding_texts, service, body)
        rows = await service.embed(texts, body.dimensions, http.is_disconnected)
        data = [row.astype("<f4") for row in rows]
        as_text = body.encoding_format == "base64"
        n_tokens = sum(map(len, texts))
        say_tokens(http.scope["state"], n_tokens, 0)
        return {
            "object": "list",
            "model": service.model_id,
            "data": [
                {
                    "object": "embedding",
                    "index": i,
                    "embedding": base64.b64encode(row.tobytes()).decode()
                    if as_text
                    else row.tolist(),
                }
                for i, row in enumerate(data)
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


def embedding_texts(service: Service, body: EmbeddingBody, name: str = "input") -> list[list[int]]:
    """The token ids of each text of the field `name`. Raises ApiError for one that is too long or
    empty."""
    most = service.embedder.max_tokens
    for text in texts_of(body.input):
        service.prompts.require_short(text or "", name, most)
    texts = token_lists(service.tokenizer, body.input, name)
    for number, ids in enumerate(texts):
        if not 1 <= len(ids) <= most:
            raise ApiError(
                400, f"text {number} of {name} has {len(ids)} tokens; it must be 1 to {most}",
                name, "context_length_exceeded" if ids else None,
            )  # fmt: skip
    return texts
