"""Checks prompts and converts them to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias

import numpy as np

from weft.errors import ArgumentError, ContextError, ContextFull
from weft.llm.tokenizers.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int]
"""Text, or token ids."""


def is_list(prompt: Any) -> bool:
    """True for a list of prompts: an empty list, or one of texts or of lists of ids.

    Raises ArgumentError for a value that is not a prompt at all."""
    if isinstance(prompt, str):
        return False
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise ArgumentError(
            "the prompt is bytes; give text, e.g. prompt.decode('utf-8'), or a list of token ids"
        )
    if isinstance(prompt, np.ndarray) and prompt.ndim == 1:
        return False
    if not isinstance(prompt, Sequence):
        raise ArgumentError(
            f"the prompt is {type(prompt).__name__}; give text, a list of token ids, or a list of "
            "those"
        )
    return len(prompt) == 0 or isinstance(prompt[0], str | Sequence | np.ndarray)


def prompt_ids(prompt: Any, tokenizer: Tokenizer, parse_special: bool) -> list[int]:
    """The token ids of one prompt.

    Raises ArgumentError if it is neither text nor ids, and ContextError if it has no tokens."""
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, parse_special=parse_special)
    elif is_list(prompt) and len(prompt):
        raise ArgumentError("a prompt of the list is itself a list of prompts; give one list")
    else:
        try:
            ids = [index(token) for token in prompt]
        except TypeError:
            odd = next(token for token in prompt if not hasattr(token, "__index__"))
            raise ArgumentError(
                f"a prompt is text or token ids, and {odd!r:.60} is no token id"
            ) from None
    if not ids:
        raise ContextError("the prompt has no tokens; give some text")
    return ids


def require_fits(ids: Sequence[int], n_ctx: int, n_ctx_train: int) -> None:
    """Raises ContextFull for a prompt of more than `n_ctx` tokens."""
    if len(ids) > n_ctx:
        raise ContextFull(
            f"the prompt has {len(ids)} tokens, but the context holds {n_ctx}; shorten the prompt "
            f"or make `n_ctx` larger (the model was trained for {n_ctx_train})"
        )
