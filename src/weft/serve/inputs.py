"""Texts of a body: one or several, as strings or as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.llm import Tokenizer
from weft.serve.errors import ApiError

__all__ = ["Input", "require_whole", "texts_of", "token_lists"]

Input = str | list[str] | list[int] | list[list[int]]


def token_lists(
    tokenizer: Tokenizer, texts: Input, name: str, *, add_special: bool = True,
    parse_special: bool = False,
) -> list[list[int]]:  # fmt: skip
    """Encodes texts, one or several, as lists of ids; ids stay. `name` is the field they are in;
    the rest are options of `Tokenizer.encode`."""
    encode = partial(tokenizer.encode, add_special=add_special, parse_special=parse_special)
    if isinstance(texts, str):
        return [encode(texts)]
    if not texts:
        raise ApiError(400, f"{name} is an empty list; give at least one text", name)
    if isinstance(texts[0], int):
        return [[i for i in texts if isinstance(i, int)]]
    return [encode(text) if isinstance(text, str) else list(text)
            for text in texts if not isinstance(text, int)]  # fmt: skip


def require_whole(text: str, name: str) -> None:
    """Raises ApiError for a lone surrogate, which JSON can contain but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(
            400, f"{name} has half a character (a lone surrogate) at {error.start}; send it whole",
            name,
        ) from None  # fmt: skip


def texts_of(texts: Input) -> Sequence[str | None]:
    """The prompts that are texts, with None for each that is a list of ids."""
    if isinstance(texts, str):
        return [texts]
    if texts and isinstance(texts[0], int):
        return [None]
    return [text if isinstance(text, str) else None for text in texts]
