"""The sizes of a server's contexts, which a plan knows before anything is loaded."""

from __future__ import annotations

from typing import Any

from weft.llm.compute.embed import MOST, sequences_for
from weft.llm.config import ModelConfig
from weft.llm.planning.draft_options import DraftOptions, rows_needed
from weft.records import dataclass
from weft.serve.options import ServeOptions

__all__ = ["ServeSizes", "serve_sizes"]

DEFAULT_TEXT = 2048
"""Default number of cells for each text; fewer if the model was trained for less."""
SCORED_AT_ONCE = 16
"""Tokens of a prompt that are computed together if the logits of each are wanted."""


@dataclass(frozen=True, slots=True)
class ServeSizes:
    """Arguments of the contexts of a model."""

    n_ctx: int
    """Cells that all texts share."""
    writing: dict[str, Any] | None
    """Of the context that writes texts; None: the model writes none."""
    embedding: dict[str, Any] | None
    """Of the context for embeddings; None: there is none."""


def writes_text(config: ModelConfig) -> bool:
    """False for a model that gives embeddings or scores only."""
    return config.causal and config.pooling in ("none", "last")


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
    n_ctx = options.parallel * longest if n_ctx is None else n_ctx or config.n_ctx_train
    n_ubatch = min(512, n_ctx) if n_ubatch is None else n_ubatch
    writing: dict[str, Any] | None = None
    embedding: dict[str, Any] | None = None
    if writes_text(config):
        writing = {
            "n_ctx": n_ctx,
            "n_ubatch": max(n_ubatch, options.parallel),
            "n_outputs": max(rows_needed(options.parallel, drafting), SCORED_AT_ONCE),
            "n_seq_max": options.parallel,
        }
    if embeddings or writing is None:
        n = min(n_ubatch, config.n_ctx_train)
        embedding = {
            "n_ctx": n, "n_ubatch": n, "n_outputs": n, "embeddings": True,
            "n_seq_max": sequences_for(config, MOST),
        }  # fmt: skip
    return ServeSizes(n_ctx, writing, embedding)
