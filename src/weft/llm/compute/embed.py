"""Embeddings of many texts with one context; each batch has as many texts as fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.batch import Batch
from weft.llm.compute.context import Context
from weft.llm.config import ModelConfig, Pooling
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass


class Pair(list[int]):
    """The token ids of two texts that are read as one."""

    n_first: int | None = None
    """The number of tokens of the first text; the others have the second type, if the model has
    types. None: all tokens are of the first."""


MOST = 32
"""Maximum number of texts in a batch, for models whose sequences need only cells."""
MOST_RECURRENT = 4
"""Maximum number of texts in a batch for recurrent models, where each sequence has megabytes of
states."""


def sequences_for(config: ModelConfig, n_texts: int) -> int:
    """The `n_seq_max` of a context that computes `n_texts`, as many together as pays."""
    return max(1, min(n_texts, MOST if config.recurrent is None else MOST_RECURRENT))


def embed_texts(
    context: Context,
    texts: Sequence[Sequence[int]],
    pooling: Pooling | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """Computes the embedding of each of `texts` (token ids): [n_embd], or [n_tokens, n_embd] with
    pooling "none", or with "rank" its scores. Results are those of `Context.embed`.

    Short texts are computed together, as many as there are sequences and a ubatch holds; longer
    texts alone. `progress(done, total)` is called with numbers of texts. The cache is emptied.
    Raises ContextError for an empty text, and as `Context.embed` does."""
    if not context.embeddings:
        raise ContextError("this context gives logits; create it with embeddings=True")
    if not all(len(ids) for ids in texts):
        raise ContextError("a text has no tokens; leave it out")
    pooling = context.pooling if pooling is None else pooling
    rows: list[NDArray[np.float32]] = []
    for group in text_groups(context, texts):
        if len(group) == 1:
            rows.append(context.embed(group[0], pooling, types=_types(context, group)))
        else:
            rows += _together(context, group, pooling)
        if progress is not None:
            progress(len(rows), len(texts))
    return rows


def text_groups(context: Context, texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Groups neighbouring texts that are computed together."""
    room = min(context.n_ubatch, context.n_batch, context.n_outputs, context.n_ctx)
    group: list[Sequence[int]] = []
    size = 0
    for ids in texts:
        if group and (size + len(ids) > room or len(group) == context.cache.n_seq_max):
            yield group
            group, size = [], 0
        group.append(ids)
        size += len(ids)
    if group:
        yield group


def _together(
    context: Context, group: Sequence[Sequence[int]], pooling: Pooling
) -> list[NDArray[np.float32]]:
    ends = np.cumsum([len(ids) for ids in group])
    context.cache.clear()
    try:
        rows = context.decode(
            Batch(
                np.concatenate([np.asarray(ids) for ids in group]),
                np.concatenate([np.arange(len(ids)) for ids in group]),
                seqs=[[seq] for seq, ids in enumerate(group) for _ in ids],
                outputs="all",
                types=_types(context, group),
            )
        )
    finally:
        context.cache.clear()
    return context.pool(np.split(rows, ends[:-1]), pooling)


def _types(context: Context, texts: Sequence[Sequence[int]]) -> list[int] | None:
    """The type of each token, for a model that has several."""
    if context.model.config.n_token_types < 2:
        return None
    types: list[int] = []
    for ids in texts:
        n = ids.n_first if isinstance(ids, Pair) else None
        types += [int(n is not None and i >= n) for i in range(len(ids))]
    return types


def unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales rows [..., n] to length 1; rows of zeros stay."""
    wide = rows.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    return np.asarray(wide / lengths, np.float32)


# Scores of documents for a query, by a model with a classifier (a reranker).
#
# The model reads a query and a document as one text. A file with the chat template `rerank` says
# how they are written; without it the two are put side by side, `<s> query </s> </s> document </s>`
# with the vocabulary's own tokens.

_TEMPLATE = "tokenizer.chat_template.rerank"
_PLACES = re.compile(r"\{(query|document)\}")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document's place in the list that was given, from 0, and its score; more is better."""

    index: int
    relevance_score: float

    def as_json(self, score: str = "relevance_score") -> dict[str, float]:
        """The row of an answer in JSON, with the score under that name."""
        return {"index": self.index, score: self.relevance_score}


def require_ranks(config: ModelConfig, name: str) -> None:
    """Raises ContextError if the model called `name` has no classifier."""
    if not config.n_scores:
        raise ContextError(
            f"{name} has no classifier, so it cannot rank documents; open a reranker, such as "
            "bge-reranker-v2-m3 or Qwen3-Reranker"
        )


def pair_ids(tokenizer: Tokenizer, query: str, document: str) -> Pair:
    """The token ids of a query with a document. As in chats, names of control tokens are read as
    these tokens if the file has a template."""
    vocab = tokenizer.vocab
    template = vocab.metadata.get(_TEMPLATE)
    if isinstance(template, str):
        parts = {"query": query, "document": document}
        text = _PLACES.sub(lambda place: parts[place[1]], template)
        return Pair(tokenizer.encode(text, add_special=False, parse_special=True))
    first, second = (tokenizer.encode(text, add_special=False) for text in (query, document))
    pair = Pair([*vocab.prefix, *first, *vocab.between])
    if vocab.model == "bert":  # others were trained with one type, even where the file has two
        pair.n_first = len(pair)
    pair += [*second, *vocab.suffix]
    return pair


def rank_pairs(
    context: Context,
    pairs: Sequence[Sequence[int]],
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """The score of each of `pairs` (token ids of a query with a document): the first that the
    classifier gives. Raises ContextError for a pair that does not fit."""
    most = context.n_ctx
    if not context.model.config.causal:  # it is computed at once
        most = min(most, context.n_ubatch, context.model.config.n_positions or most)
    for number, ids in enumerate(pairs):
        if len(ids) > most:
            raise ContextError(
                f"document {number} and the query have {len(ids)} tokens, but the model reads "
                f"{most} at once; shorten the document, or make `n_ctx` larger"
            )
    return [float(row[0]) for row in embed_texts(context, pairs, "rank", progress)]


def best_first(scores: Sequence[float], top_n: int | None = None) -> list[Ranked]:
    """The documents of `scores`, the best one first; of equal ones the earlier. With `top_n`, only
    so many."""
    rows = [Ranked(i, score) for i, score in enumerate(scores)]
    return sorted(rows, key=lambda row: -row.relevance_score)[:top_n]
