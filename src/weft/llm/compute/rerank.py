"""Scores of documents for a query, by a model with a classifier (a reranker).

The model reads a query and a document as one text. A file with the chat template `rerank` says how
they are written; without it the two are put side by side, `<s> query </s> </s> document </s>` with
the vocabulary's own tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.embed import Pair, embed_texts
from weft.llm.config import ModelConfig
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

__all__ = ["Ranked", "best_first", "pair_ids", "rank_pairs", "require_ranks"]

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
