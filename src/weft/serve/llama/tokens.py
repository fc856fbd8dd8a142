"""The endpoints about tokens, templates and vectors of llama.cpp's server."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from numpy.typing import NDArray

from weft.serve.embeddings import embedding_texts
from weft.serve.errors import ApiError, Json, to_json
from weft.serve.inputs import require_whole
from weft.serve.llama.schema import EmbeddingRequest
from weft.serve.log import say_tokens
from weft.serve.respond import note
from weft.serve.schema import ChatBody, DetokenizeBody, EmbeddingBody, TokenizeBody
from weft.serve.service import Service

__all__ = ["add_tokens"]

LONGEST_TOKENIZED = 1 << 20
"""Most characters that /tokenize accepts."""
SHORT = 1 << 14
"""Number of characters that are tokenized in some ten milliseconds."""


def add_tokens(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""
    turn = asyncio.Lock()

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody, http: Request) -> Response:
        """The tokens of a text."""
        note(http, body, service)
        require_whole(body.content, "content")
        if len(body.content) > LONGEST_TOKENIZED:
            raise ApiError(
                400, f"content has {len(body.content)} characters; it may have "
                f"{LONGEST_TOKENIZED}: send it in parts", "content",
            )  # fmt: skip
        work = partial(_tokens, service, body)
        if len(body.content) <= SHORT:
            return await run_in_threadpool(work)
        async with turn:  # long texts one by one, so that they slow down others less
            return await run_in_threadpool(work)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody, http: Request) -> dict[str, str]:
        """The text of tokens."""
        note(http, body, service)
        n = service.tokenizer.n_vocab
        if any(i >= n for i in body.tokens):
            raise ApiError(400, f"tokens has an id over {n - 1}, the last of this model", "tokens")
        decode = partial(service.tokenizer.decode, body.tokens, special=body.special)
        return {"content": await run_in_threadpool(decode)}

    @app.post("/apply-template")
    async def apply_template(body: ChatBody, http: Request) -> dict[str, str]:
        """The text of the prompt that messages make."""
        note(http, body, service)
        return {"prompt": await run_in_threadpool(service.prompts.rendered, body)}

    @app.post("/embedding")
    async def embedding(body: EmbeddingRequest, http: Request) -> list[dict[str, Any]]:
        """Embeddings of texts, in llama.cpp's form."""
        note(http, body, service)
        if service.embedder.pooling == "rank":
            raise ApiError(400, f"{service.model_id} ranks documents; ask /v1/rerank", "model")
        asked = EmbeddingBody(input=body.content)
        texts = await run_in_threadpool(partial(embedding_texts, service, asked, "content"))
        rows = await service.embed(texts, None, http.is_disconnected)
        say_tokens(http.scope["state"], sum(map(len, texts)), 0)
        return [
            {"index": i, "embedding": [_normed(row, body.embd_normalize).tolist()]}
            for i, row in enumerate(rows)
        ]


def _tokens(service: Service, body: TokenizeBody) -> Response:
    """The whole answer, as a million pieces take seconds to write."""
    ids = service.tokenizer.encode(
        body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return Json({"tokens": ids})
    pieces = {id_: to_json({"id": id_, "piece": _piece(service, id_)}) for id_ in set(ids)}
    data = b'{"tokens":[' + b",".join([pieces[id_] for id_ in ids]) + b"]}"
    return Response(data, media_type="application/json")


def _piece(service: Service, id_: int) -> str | list[int]:
    """A token as text, or as bytes if they are no whole characters."""
    data = service.tokenizer.piece(id_, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _normed(row: NDArray[np.float32], kind: int) -> NDArray[np.float32]:
    """A row of Euclidean length 1 in another norm; -1, the length that the model gave, is not
    known any more. Raises ApiError for that."""
    if kind == 2:
        return row
    if kind < 0:
        raise ApiError(
            400, "embd_normalize is -1; embeddings have length 1 here: send 0, 1, 2 or more",
            "embd_normalize", "unsupported",
        )  # fmt: skip
    if kind >= 1 << 31:
        raise ApiError(400, "embd_normalize is too large; it is less than 2^31", "embd_normalize")
    largest = np.abs(row).max()
    size = largest
    if kind:  # of the parts of the largest, whose powers do not become nothing
        size = largest * np.power(np.abs(row / largest), kind).sum() ** (1 / kind)
    scaled = row * (32760 / size) if kind == 0 else row / size
    return np.asarray(scaled, np.float32)
