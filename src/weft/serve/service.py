"""A loaded model: engine that writes, context that embeds or ranks, tokenizer and template."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray

from weft.bounds import CONSTRAINTS_AT_ONCE
from weft.errors import ContextError
from weft.frontends.models import open_model
from weft.llm import AdapterFiles, Context, Model, ScaledFiles, Tokenizer
from weft.llm.audio.whisper import SoundTower
from weft.llm.chat.template import ChatTemplate
from weft.llm.config import Pooling
from weft.llm.drafting.build import contexts_of, make_drafting, open_drafts
from weft.llm.drafting.drafting import Drafting
from weft.llm.engine import Engine
from weft.llm.multimodal import open_towers
from weft.llm.planning.draft_options import DraftOptions
from weft.serve.adapters import ServedAdapters, ServedVectors
from weft.serve.cards import ModelCard
from weft.serve.embedder import Embedder
from weft.serve.errors import ApiError
from weft.serve.memory import PlannedBytes, planned_bytes
from weft.serve.options import ServeOptions
from weft.serve.prompts import Prompts
from weft.serve.sizes import serve_sizes

__all__ = ["Service", "model_name"]

_Row = TypeVar("_Row")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")

DRAFTS = DraftOptions()


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
        type: str | None = None,
        embeddings: bool = False,
        drafting: DraftOptions | None = DRAFTS,
        mmproj: str | os.PathLike[str] | None = None,
        adapters: AdapterFiles | None = None,
        apply_adapters: bool = True,
        control_vectors: ScaledFiles | None = None,
        control_vector_layers: Sequence[int] | None = None,
        metadata: Mapping[str, object] | None = None,
        pooling: Pooling | None = None,
        n_ctx: int | None = None,
        n_ubatch: int | None = None,
        **context: Any,
    ) -> None:
        """Opens a model; `type`, such as `q4_K_M`, quantizes it in memory. With `embeddings` it
        computes embeddings too, with a second context; a model that writes no text always does.
        `n_ctx` is the number of cells that all texts share. `mmproj` is the file of towers for
        images and sound. `adapters` are those of LoRA; without `apply_adapters` their scales are 0
        at first. `control_vectors` steer the layers `control_vector_layers` (see `Model`).
        `metadata` has values in place of the file's (see `with_keys`); `pooling` is that of
        embeddings (None: the model's).
        `drafting` says how tokens are guessed (None: not at all); answers are the same.
        `context` has further arguments of `Context`.

        Raises the errors of `Model.open`, `Context` and `Tokenizer.from_gguf`."""
        file = open_model(path, type, progress=context.get("progress"), metadata=metadata)
        embeddings = embeddings or pooling is not None
        towers = None if mmproj is None else open_towers(mmproj)
        model = Model(file, adapters, control_vectors, control_vector_layers)
        model.towers = () if towers is None else towers.all
        self.adapters = ServedAdapters(model.adapters, apply_adapters)
        self.vectors = ServedVectors(model.control_vectors)
        config = model.config
        self.model = model
        self.options = options
        self.model_id = options.alias or model_name(path)
        self.aliases = options.aliases
        self.created = int(time.time())
        self.n_embd = config.n_embd_out
        self.tokenizer = Tokenizer.from_gguf(file)
        sizes = serve_sizes(
            config, options, n_ctx=n_ctx, n_ubatch=n_ubatch, embeddings=embeddings,
            drafting=drafting,
        )  # fmt: skip
        self._engine: Engine | None = None
        self._drafting: Drafting | None = None
        self._embedder: Embedder | None = None
        self._lock = asyncio.Lock()
        self.compiling = asyncio.Semaphore(2 * CONSTRAINTS_AT_ONCE)
        """Who holds it compiles constraints in a thread: half of them wait for a process that tries
        a constraint, and half compile what was tried."""
        if sizes.embedding is not None:
            self._embedder = Embedder(Context(model, **context | sizes.embedding), pooling=pooling)
            if context.get("plan") is None and not self._embedder.context.fell_back:
                context["devices"] = self._embedder.context.devices_beside()
        if sizes.writing is not None:
            drafts = open_drafts(model, drafting)
            if drafting is not None:
                context["beside"] = drafts.plans(sizes.n_ctx, options.parallel, drafting)
                context["states"] = drafting.layers
            writing = Context(model, **context | sizes.writing)
            self._drafting = make_drafting(writing, drafting, drafts, context.get("progress"))
            self._engine = Engine(
                writing,
                self.tokenizer,
                max_queue=options.max_queue,
                max_text=config.n_ctx_train,
                drafting=self._drafting,
                prompt_delay=options.prompt_delay,
                prefixes=options.prefixes(),
            )  # fmt: skip
        self.template = ChatTemplate.from_gguf(file, self.tokenizer)
        if options.chat_template is not None:
            own = self.template
            self.template = ChatTemplate(options.chat_template, bos=own.bos, eos=own.eos)
        self.modalities: dict[str, bool] = {"vision": False, "audio": False}
        """What a message may have beside text, by llama.cpp's names."""
        senses = None
        if towers is not None:
            if self._engine is None:
                raise ContextError(
                    f"{self.model_id} writes no text about images or sound; leave out mmproj"
                )
            senses = towers.beside(self._engine.context, self.tokenizer)
            self.modalities = {
                "vision": senses.sight is not None,
                "audio": senses.hearing is not None,
            }
        self.prompts = Prompts(
            self.tokenizer, self.template, options,
            self._engine.max_text if self._engine else 0, self.adapters, self.vectors, senses,
        )  # fmt: skip

    @cached_property
    def card(self) -> ModelCard:
        """What the file says about the model."""
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
        return self._drafting is not None

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
        """What a client should know of texts: the most tokens of one, prompt included, and what a
        message may have beside text."""
        n_ctx = self._engine.max_text if self._engine else None
        return {"n_ctx": n_ctx, "modalities": self.modalities}

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return 0 if self._engine is None else self._engine.n_waiting

    @property
    def draft_contexts(self) -> dict[str, Context]:
        """The contexts of models that draft, by what they are."""
        return {} if self._drafting is None else contexts_of(self._drafting)

    @property
    def embedder_or_none(self) -> Embedder | None:
        """The embedder, if there is one."""
        return self._embedder

    @property
    def embedder(self) -> Embedder:
        """The embedder. Raises ApiError if the server was started without one."""
        if self._embedder is None:
            raise ApiError(
                400, "this server gives no embeddings; start it with --embeddings", "model",
                "unsupported",
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
        """What `compute` gives for each text. Each batch has its turn between two steps of the
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
