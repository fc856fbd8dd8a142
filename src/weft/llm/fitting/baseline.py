"""The scores of one model on a text, with which other models are compared.

The text is cut into chunks, of which the second half is scored, as `weft perplexity` does. The
scores of the first model are kept as long as they take little memory; for longer texts it is
computed again for each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.embed import sequences_for
from weft.llm.compute.perplexity import chunks_at_once, require_in_order
from weft.llm.config import ModelConfig
from weft.llm.model import Model
from weft.llm.planning.options import PlanArguments
from weft.llm.quality.divergence import KLDivergence, KLStatistics
from weft.llm.quality.logits_file import log_probs
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

MOST_KEPT = 1 << 30
"""Maximum number of bytes of log-probabilities that are kept."""
LEAST_CHUNK = 16
_UBATCH = 512

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Text:
    """The chunks of a text, int64 [n_chunks, n_ctx], and what comes before each."""

    chunks: NDArray[np.int64]
    bos: int | None
    """The token in place of the first token of each chunk; None: the text's own."""

    @property
    def n_ctx(self) -> int:
        """Tokens of a chunk."""
        return int(self.chunks.shape[1])

    @property
    def n_scored(self) -> int:
        """Number of scored tokens."""
        return len(self.chunks) * (self.n_ctx - 1 - self.n_ctx // 2)


def text_of(tokens: Sequence[int], n_ctx: int, most: int | None, bos: int | None) -> Text:
    """Cuts the tokens of a text into chunks of `n_ctx`, at most `most` of them.

    A text of fewer tokens is one shorter chunk. Raises ContextError for fewer than 16 tokens."""
    if most is not None and most < 1:
        raise ContextError(f"--chunks is {most}; it must be 1 or more")
    n_ctx = min(n_ctx, len(tokens))
    if n_ctx < LEAST_CHUNK:
        raise ContextError(
            f"{n_ctx} tokens of text in a chunk, but at least {LEAST_CHUNK} are needed; give a "
            "longer text (-f) or longer chunks"
        )
    n = len(tokens) // n_ctx
    n = n if most is None else min(n, most)
    return Text(np.array(tokens[: n * n_ctx], np.int64).reshape(n, n_ctx), bos)


class Held:
    """The distributions of a model on a text, and the figures of others against them."""

    def __init__(
        self,
        model: Model,
        text: Text,
        progress: Progress | None = None,
        **options: Unpack[PlanArguments],
    ) -> None:
        """Computes what `model` says. `progress` is called with numbers of chunks. `options` go to
        the contexts.

        Raises ContextError for a model that gives no logits, or not for such chunks."""
        _require_logits(model.config)
        self.model, self.text = model, text
        self._options = options
        self._parts = _parts(model.config, text)
        size = 4 * text.n_scored * model.config.n_vocab
        self._kept: list[NDArray[np.float32]] | None = [] if size <= MOST_KEPT else None
        self._context: Context | None = None
        done, figures = 0, KLStatistics()
        for chunks, rows in self._rows(model, options):
            base = log_probs(rows)
            figures.add(base, rows, _targets(chunks))
            if self._kept is not None:
                self._kept.append(base)
            done += len(chunks)
            if progress is not None:
                progress(done, len(text.chunks))
        self.figures: KLDivergence = figures.result()
        """The figures of the model itself, whose divergence is 0."""

    def score(
        self, model: Model, progress: Progress | None = None, **options: Unpack[PlanArguments]
    ) -> KLDivergence:
        """The figures of another model, or of the same with other `options`."""
        merged: PlanArguments = {**self._options, **options}
        own = iter(self._kept) if self._kept is not None else self._again()
        done, figures = 0, KLStatistics()
        for (chunks, rows), base in zip(self._rows(model, merged), own, strict=True):
            figures.add(base, rows, _targets(chunks))
            done += len(chunks)
            if progress is not None:
                progress(done, len(self.text.chunks))
        return figures.result()

    def _again(self) -> Iterator[NDArray[np.float32]]:
        if self._context is None:
            self._context = _context(self.model, self.text, self._options)
        return (log_probs(rows) for _, rows in _computed(self._context, self._parts, self.text.bos))

    def _rows(
        self, model: Model, options: PlanArguments
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        return _computed(_context(model, self.text, options), self._parts, self.text.bos)


def _require_logits(config: ModelConfig) -> None:
    require_in_order(config)
    if config.n_encoder:
        raise ContextError(
            "this model has an encoder and a decoder, which answer a text with another; models are "
            "compared by how they go on with one"
        )


def _parts(config: ModelConfig, text: Text) -> list[NDArray[np.int64]]:
    """The chunks, as many together as pays."""
    n = chunks_at_once(config, text.n_ctx, _UBATCH, len(text.chunks))
    return [text.chunks[at : at + n] for at in range(0, len(text.chunks), n)]


def _context(model: Model, text: Text, options: PlanArguments) -> Context:
    together = chunks_at_once(model.config, text.n_ctx, _UBATCH, len(text.chunks))
    sizes: PlanArguments = {"n_seq_max": together, "n_ubatch": min(_UBATCH, together * text.n_ctx)}
    context = Context(model, text.n_ctx * together, **(sizes | options))
    if context.embeddings:
        raise ContextError(
            f"{model.file.path.name} gives embeddings; models are compared by their logits"
        )
    return context


def _computed(
    context: Context, parts: Sequence[NDArray[np.int64]], bos: int | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    for chunks in parts:
        yield chunks, scored_rows(context, chunks, bos)


def scored_rows(
    context: Context, chunks: NDArray[np.int64], bos: int | None
) -> NDArray[np.float32]:
    """The logits behind which a token of the second half of a chunk follows, f32
    [n_chunks * n_scored, n_vocab]. Each chunk is a sequence."""
    n, n_ctx = chunks.shape
    fed = chunks.copy()
    if bos is not None:
        fed[:, 0] = bos
    tokens = fed.ravel()
    seqs, positions = np.divmod(np.arange(n * n_ctx), n_ctx)
    wanted = (positions >= n_ctx // 2) & (positions < n_ctx - 1)
    context.cache.clear()
    rows = []
    step = min(context.n_ubatch, context.n_batch)
    try:
        for start in range(0, n * n_ctx, step):
            part = slice(start, start + step)
            members = [(int(seq),) for seq in seqs[part]]
            got = context.decode(tokens[part], positions[part], seqs=members, outputs=wanted[part])
            rows.append(got.copy())
    finally:
        context.cache.clear()
    return np.concatenate(rows)


def _targets(chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens that follow the rows of `scored_rows`."""
    return chunks[:, chunks.shape[1] // 2 + 1 :].ravel()


def beginning(tokenizer: Tokenizer) -> int | None:
    """The token that chunks begin with; None: the model expects none."""
    vocab = tokenizer.vocab
    return vocab.bos if vocab.add_bos else None


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
    """`n_chunks` chunks of `n_ctx` tokens, drawn from the distribution of `model` at temperature 1,
    for measuring where no other text is at hand. Each begins with `bos`, or with a token that
    depends on the seed; the same model and seed give the same text. `progress` is called with
    (tokens, all tokens)."""
    together = sequences_for(model.config, min(n_chunks, _SEQUENCES))
    context = Context(
        model, n_ctx * together, n_seq_max=together, n_ubatch=min(512, n_ctx * together),
        n_outputs=together, repack=False,
    )  # fmt: skip
    if context.embeddings or model.config.n_encoder or model.config.diffusion:
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
