"""The files and the sizes of a server's model, which a plan knows before anything is loaded."""

from __future__ import annotations

import os
from typing import Any

from weft.llm.compute.embed import MOST, sequences_for
from weft.llm.config import ModelConfig
from weft.llm.opening import Opening, take_model_arguments
from weft.llm.planning.draft_options import DraftOptions, rows_needed
from weft.records import dataclass
from weft.serve.options import ServeOptions

DEFAULT_TEXT = 2048
"""Default number of cells for each text; fewer if the model was trained for less."""
SCORED_AT_ONCE = 16
"""Tokens of a prompt that are computed together if the logits of each are wanted."""
EMBEDDED = 2048
"""Tokens of the longest text that is embedded, if the model can: chunks of documents have 1,000."""


@dataclass(frozen=True, slots=True)
class ServeSizes:
    """Arguments of the contexts of a model."""

    writing: dict[str, Any] | None
    """Sizes of the generation context; None if the model does not generate."""
    embedding: dict[str, Any] | None
    """Sizes of the embedding context; None if there is none."""


def open_served(
    path: str | os.PathLike[str],
    options: ServeOptions,
    given: dict[str, Any],
    *,
    planned: bool = False,
) -> tuple[Opening, ServeSizes]:
    """Opens the files of a model and decides the sizes of its contexts. `given` has the arguments
    of `Service`, and is left with arguments of `Context`. `planned` is passed on to `Opening`."""
    embeddings = given.pop("embeddings", False)
    n_ctx, n_ubatch = given.pop("n_ctx", None), given.pop("n_ubatch", None)
    opening = Opening(path, planned=planned, **take_model_arguments(given))
    return opening, serve_sizes(
        opening.model.config, options, n_ctx=n_ctx, n_ubatch=n_ubatch, embeddings=embeddings,
        drafting=opening.drafts.options,
    )  # fmt: skip


def writes(config: ModelConfig) -> bool:
    """False for a model that only gives embeddings or scores."""
    return config.diffusion is not None or (config.causal and config.pooling in ("none", "last"))


def serve_sizes(
    config: ModelConfig,
    options: ServeOptions,
    *,
    n_ctx: int | None = None,
    n_ubatch: int | None = None,
    embeddings: bool = False,
    drafting: DraftOptions | None = None,
) -> ServeSizes:
    """The sizes for `options.parallel` texts; `n_ctx` and `n_ubatch` are those of the command line
    (None: the default; an `n_ctx` of 0 is the length that the model was trained for)."""
    longest = min(config.n_ctx_train, DEFAULT_TEXT)
    by_diffusion = config.diffusion is not None
    if n_ctx is None:  # texts by diffusion have cells during a step alone
        n_ctx = longest if by_diffusion else options.parallel * longest
    n_ctx = n_ctx or config.n_ctx_train
    longest = min(EMBEDDED if n_ubatch is None else n_ubatch, config.n_ctx_train)
    if n_ubatch is None:  # a step computes whole texts there
        n_ubatch = n_ctx if by_diffusion else min(512, n_ctx)
    writing: dict[str, Any] | None = None
    embedding: dict[str, Any] | None = None
    if writes(config):
        writing = {
            "n_ctx": n_ctx,
            "n_ubatch": max(n_ubatch, options.parallel),
            "n_outputs": max(rows_needed(options.parallel, drafting, config), SCORED_AT_ONCE),
            "n_seq_max": options.parallel,
        }
    if embeddings or writing is None:
        n = min(longest, n_ctx)
        embedding = {
            "n_ctx": n, "n_ubatch": n, "n_outputs": n, "embeddings": True,
            "n_seq_max": sequences_for(config, MOST),
        }  # fmt: skip
    return ServeSizes(writing, embedding)
