"""A text that a model writes itself, for measuring where no other text is at hand.

Tokens are drawn from the model's own distribution (temperature 1), so that the text is what the
model expects, whatever it was trained on. The same model and seed give the same text.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.embed import sequences_for
from weft.llm.fitting.held import Text
from weft.llm.model import Model

__all__ = ["write_text"]

_SEQUENCES = 8


def write_text(
    model: Model,
    n_ctx: int,
    n_chunks: int,
    bos: int | None,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Text:
    """`n_chunks` chunks of `n_ctx` tokens, drawn by `model`; each begins with `bos`, or with a
    token that depends on the seed. `progress` is called with (tokens, all tokens)."""
    together = sequences_for(model.config, min(n_chunks, _SEQUENCES))
    context = Context(
        model, n_ctx * together, n_seq_max=together, n_ubatch=min(512, n_ctx * together),
        n_outputs=together, repack=False,
    )  # fmt: skip
    if context.embeddings or model.config.n_encoder:
        raise ContextError(f"{model.file.path.name} writes no texts; give one with -f")
    rng = np.random.default_rng(seed)
    chunks = np.empty((n_chunks, n_ctx), np.int64)
    for at in range(0, n_chunks, together):
        part = chunks[at : at + together]
        first = rng.integers(0, model.config.n_vocab, len(part))
        part[:, 0] = first if bos is None else bos
        context.cache.clear()
        for i in range(1, n_ctx):
            rows = context.decode(
                part[:, i - 1], np.full(len(part), i - 1),
                seqs=[(s,) for s in range(len(part))], outputs="all",
            )  # fmt: skip
            part[:, i] = _drawn(rows, rng)
            if progress is not None:
                progress(at * n_ctx + (i + 1) * len(part), chunks.size)
    return Text(chunks, bos)


def _drawn(rows: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """A token for each row of logits."""
    p = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
    sums = np.cumsum(p, axis=1)
    at = rng.random(len(rows)) * sums[:, -1]
    found: NDArray[np.int64] = (sums < at[:, None]).sum(axis=1)
    return found.clip(max=rows.shape[1] - 1)
