"""`DraftOptions`: which drafters a text has, and how much they draft."""

from __future__ import annotations

from weft.errors import ContextError
from weft.llm.drafting.drafter import Drafter
from weft.llm.drafting.drafting import Drafting
from weft.llm.drafting.ngram import NgramDrafter
from weft.records import dataclass

__all__ = ["DraftOptions", "make_drafting", "rows_needed"]

MOST = 30
"""Most tokens of a draft."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How tokens are drafted. Drafts never change a text. Raises ContextError for a value out of
    range."""

    ngram: bool = True
    """True looks up what followed the same tokens earlier in the text."""
    most: int = MOST
    """Most tokens of the drafts of one step."""
    least: int = 1
    """Shorter drafts are not made."""

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST:
            raise ContextError(f"a draft of {self.most} tokens: it has 1 to {MOST}")
        if not 0 <= self.least <= self.most:
            raise ContextError(
                f"the shortest draft has {self.least} tokens, the longest {self.most}; make the "
                "least 0 or more and at most that"
            )


def rows_needed(n_texts: int, options: DraftOptions | None) -> int:
    """The rows of logits (`n_outputs`) that `n_texts` texts need, with drafts or without (None)."""
    return n_texts if options is None else max(n_texts, options.most + 1)


def make_drafting(n_vocab: int, options: DraftOptions | None) -> Drafting | None:
    """The drafters of `options` for a vocabulary of `n_vocab` tokens; None: there are none."""
    drafters: list[Drafter] = []
    if options is not None and options.ngram:
        drafters.append(NgramDrafter())
    if not drafters or options is None:
        return None
    return Drafting(drafters, n_vocab, most=options.most, least=max(options.least, 1))
