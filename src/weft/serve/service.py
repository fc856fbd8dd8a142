"""A loaded model: engine that writes, context that embeds or ranks, tokenizer and template."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray

from weft.bounds import CONSTRAINTS_AT_ONCE, SPEECHES_WAITING, TRANSCRIPTS_WAITING
from weft.errors import ContextError
from weft.llm import Context, Transcriber
from weft.llm.audio.tower import SoundTower
from weft.llm.code_speaker import open_speaker
from weft.llm.config import Pooling
from weft.llm.engine import Engine
from weft.llm.opening import Loaded
from weft.serve.adapters import ServedAdapters, ServedVectors
from weft.serve.embedder import Embedder
from weft.serve.errors import ApiError
from weft.serve.memory import PlannedBytes, planned_bytes
from weft.serve.model_card import ModelCard
from weft.serve.options import ServeOptions
from weft.serve.prompts import Prompts
from weft.serve.sampling import usual_values
from weft.serve.sizes import open_served
from weft.serve.turns import Turns

_Row = TypeVar("_Row")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def model_name(path: str | os.PathLike[str]) -> str:
    """The name for clients of a model without another one: that of its file."""
    return _SHARD.sub("", Path(path).stem)


class Service:
    """The loaded model that the endpoints use."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: ServeOptions,
        *,
        apply_adapters: bool = True,
        pooling: Pooling | None = None,
        **context: Any,
    ) -> None:
        """Opens a model. Without `apply_adapters` the scales of adapters are 0 at first. `pooling`
        is the pooling of embeddings (None: the model's). `context` has the arguments of `Opening`
        and of `Context`, and `embeddings`: with it the model computes embeddings too, with a second
        context; a model that writes no text always does. `n_ctx` is the number of cells that all
        texts share. Drafting does not change answers.

        Raises the errors of `Opening` and `Context`."""
        context["embeddings"] = context.get("embeddings", False) or pooling is not None
        opening, sizes = open_served(path, options, context)
        model = opening.model
        self.adapters = ServedAdapters(model.adapters, apply_adapters)
        self.vectors = ServedVectors(model.control_vectors)
        self.model = model
        self.options = options
        self.model_id = options.alias or model_name(path)
        self.aliases = options.aliases
        self.created = int(time.time())
        self.n_embd = model.config.n_embd_out
        self.tokenizer = opening.tokenizer
        self._engine: Engine | None = None
        self._loaded: Loaded | None = None
        self._embedder: Embedder | None = None
        self._lock = asyncio.Lock()
        given = options.transcriber
        self.transcriber = None if given is None else Transcriber(given)
        """A model of Whisper that writes transcripts; None: the model itself does, if it hears."""
        self.transcribing = Turns(TRANSCRIPTS_WAITING)
        """Who has the turn uses the transcriber."""
        speaker = options.speaker
        self.speaker = None if speaker is None else open_speaker(speaker)
        """A model that speaks; None: the server makes no sound."""
        self.speaking = Turns(SPEECHES_WAITING)
        """Who has the turn uses the speaker."""
        self.compiling = asyncio.Semaphore(2 * CONSTRAINTS_AT_ONCE)
        """Who holds it compiles constraints in a thread: half of them wait for a process that tries
        a constraint, and half compile what was tried."""
        if sizes.embedding is not None:
            beside = Context(model, progress=opening.progress, **context | sizes.embedding)
            self._embedder = Embedder(beside, pooling=pooling)
            if options.cache_events and sizes.writing is None:
                beside.watch_cache(options.cache_events)
            if context.get("plan") is None and not beside.fell_back:
                context["devices"] = beside.devices_beside()
        senses = None
        if sizes.writing is not None:
            self._loaded = opening.load(**context | sizes.writing)
            if options.cache_events:
                self._loaded.context.watch_cache(options.cache_events)
            self._engine = Engine(
                self._loaded.context,
                self.tokenizer,
                queue=options.queue(),
                max_text=model.config.n_ctx_train,
                drafting=self._loaded.drafting,
                prompt_delay=options.prompt_delay,
                prefixes=options.prefixes(),
            )
            senses = self._loaded.senses
        elif model.towers:
            raise ContextError(
                f"{self.model_id} writes no text about images or sound; leave out mmproj"
            )
        self.template = opening.template(options.chat_template)
        self.modalities: dict[str, bool] = {
            "vision": senses is not None and senses.sight is not None,
            "audio": senses is not None and senses.hearing is not None,
        }
        """The media that a message may have beside text, by llama.cpp's names."""
        self.prompts = Prompts(
            self.tokenizer, self.template, options,
            self._engine.max_text if self._engine else 0, self.adapters, self.vectors, senses,
        )  # fmt: skip

    @cached_property
    def card(self) -> ModelCard:
        """The facts about the model from its file."""
        names = ("audio" if isinstance(t, SoundTower) else "vision" for t in self.model.towers)
        senses = tuple(names)
        return ModelCard(
            self.model_id, self.model.file, tokenizer=self.tokenizer, template=self.template,
            senses=senses,
        )  # fmt: skip

    @property
    def n_ctx(self) -> int:
        """The most tokens of one text."""
        if self._engine is not None:
            return self._engine.max_text
        return self.embedder.max_tokens

    @property
    def drafts(self) -> bool:
        """True if tokens are guessed."""
        return self._loaded is not None and self._loaded.drafting is not None

    def memory(self) -> PlannedBytes:
        """The bytes that its contexts were planned with."""
        contexts = [part.context for part in (self._engine, self._embedder) if part is not None]
        contexts += self.draft_contexts.values()
        return planned_bytes([context.plan for context in contexts])

    def name_for(self, model: str | None) -> str:
        """The model that an answer names: the adapter or alias that the request asked for, or the
        model."""
        known = model in self.adapters.names or model in self.aliases
        return model if known and model is not None else self.model_id

    @property
    def engine(self) -> Engine:
        """The engine. Raises ApiError if the model writes no text or the engine is stopping."""
        if self._engine is None:
            what = "ranks documents" if self.embedder.pooling == "rank" else "gives embeddings"
            raise ApiError(400, f"{self.model_id} {what} only", "model", "unsupported")
        if not self._engine.alive:
            raise ApiError(503, "the server is stopping; try another one")
        return self._engine

    @property
    def engine_or_none(self) -> Engine | None:
        """The engine, if there is one."""
        return self._engine

    def about_text(self) -> dict[str, Any]:
        """The limits of texts for clients: the maximum number of tokens, prompt included, the media
        that a message may have beside text, the values of sampling of chats that name none, and the
        model's size, by llama.cpp's names."""
        n_ctx = self._engine.max_text if self._engine else None
        return {
            "n_ctx": n_ctx, "n_ctx_train": self.card.n_ctx_train, "n_params": self.card.n_params,
            "size": self.card.nbytes, "modalities": self.modalities,
            "sampling": usual_values(self.options.sampling),
        }  # fmt: skip

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return 0 if self._engine is None else self._engine.n_waiting

    @property
    def draft_contexts(self) -> dict[str, Context]:
        """The contexts of models that draft, by what they are."""
        return {} if self._loaded is None else self._loaded.draft_contexts

    @property
    def embedder_or_none(self) -> Embedder | None:
        """The embedder, if there is one."""
        return self._embedder

    @property
    def embedder(self) -> Embedder:
        """The embedder. Raises ApiError if the server was started without one."""
        if self._embedder is None:
            raise ApiError(
                400, f"{self.model_id} is served without a context for embeddings, whose memory is "
                "planned at the start; start the server with --embeddings (or set embeddings = "
                "true for the model in models.toml)", "model", "unsupported",
            )  # fmt: skip
        return self._embedder

    @property
    def ranks(self) -> bool:
        """True if the model ranks documents."""
        return self._embedder is not None and self._embedder.ranks

    async def embed(
        self,
        texts: Sequence[Sequence[int]],
        dimensions: int | None,
        left: Callable[[], Awaitable[bool]],
    ) -> list[NDArray[np.float32]]:
        """Computes the embeddings of texts. Raises ApiError if the client has left, which `left`
        says."""
        return await self._in_batches(
            texts, partial(self.embedder.embed, dimensions=dimensions), left
        )

    async def rank(
        self, pairs: Sequence[Sequence[int]], left: Callable[[], Awaitable[bool]]
    ) -> list[float]:
        """Computes the score of each pair of a query and a document; see `embed`."""
        return await self._in_batches(pairs, self.embedder.rank, left)

    async def _in_batches(
        self,
        texts: Sequence[Sequence[int]],
        compute: Callable[[list[Sequence[int]]], list[_Row]],
        left: Callable[[], Awaitable[bool]],
    ) -> list[_Row]:
        """The result of `compute` for each text. Each batch has its turn between two steps of the
        engine."""
        rows: list[_Row] = []
        for batch in self.embedder.batches(texts):
            if await left():
                raise ApiError(499, "the client left")
            work = partial(compute, batch)
            if self._engine is None:
                async with self._lock:
                    rows += await run_in_threadpool(work)
            else:
                rows += await asyncio.wrap_future(self._engine.run(work))
        return rows

    def check_health(self) -> None:
        """Raises ApiError if nothing can be served any more."""
        if self._engine is not None and not self._engine.alive:
            raise ApiError(503, "the engine has stopped; start the server again")

    @property
    def fell_back(self) -> str:
        """Says which device failed and which ones replace it; empty if none failed."""
        parts = (self._engine, self._embedder)
        return next((p.context.fell_back for p in parts if p and p.context.fell_back), "")

    def close(self, grace: float = 0.0) -> None:
        """Ends the engine; see `Engine.close`."""
        if self._engine is not None:
            self._engine.close(grace)

    def forget(self) -> None:
        """Lets go of the model, whose memory is then free. Nothing may be asked of the service
        afterwards; `close` has ended it. FastAPI keeps the handlers of applications in caches of
        its own, and these have the service."""
        self.__dict__.clear()
