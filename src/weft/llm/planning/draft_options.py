"""`DraftOptions`: which drafters a text has, and how much they draft."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.errors import ContextError
from weft.llm.config import ModelConfig
from weft.records import dataclass

MOST = 30
"""Maximum number of tokens of a draft."""
P_MIN = 0.4
DIFFUSION_ROWS = 512
"""Rows of logits for texts by diffusion; a step reads a row for each mask that it may write."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Options of drafting. Drafts never change a text. Raises ContextError for a value out of
    range."""

    ngram: bool = True
    """True looks up what followed the same tokens earlier in the text."""
    most: int = MOST
    """Maximum number of tokens of the drafts of one step."""
    least: int = 1
    """Shorter drafts are not made."""
    model: str | os.PathLike[str] | None = None
    """The file, folder or name of a model that drafts: a smaller one with the same vocabulary, or
    one that was trained to draft for this model (EAGLE-3, DFlash, Gemma 4's assistants); None:
    there is none."""
    layers: bool = False
    """True drafts with the layers of the model that were trained for it (`nextn_predict_layers`,
    multi-token prediction)."""
    p_min: float = P_MIN
    """The draft of a model or of layers ends in front of a token to which they give less
    probability."""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the `Context` of the model that drafts, `n_ctx` included."""

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST:
            raise ContextError(f"a draft of {self.most} tokens: it has 1 to {MOST}")
        if not 0 <= self.least <= self.most:
            raise ContextError(
                f"the shortest draft has {self.least} tokens, the longest {self.most}; make the "
                "least 0 or more and at most that"
            )
        if not 0 <= self.p_min <= 1:
            raise ContextError(f"is {self.p_min}; it must be in 0..1", argument="p_min")


def rows_needed(n_texts: int, options: DraftOptions | None, config: ModelConfig) -> int:
    """The rows of logits (`n_outputs`) that `n_texts` texts of a model need, with drafts or without
    (None)."""
    if config.diffusion is not None:
        return max(n_texts, DIFFUSION_ROWS)
    return n_texts if options is None else max(n_texts, options.most + 1)
