"""Several texts at once: each a sequence of one context, all a token further with each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.llm.context import Context
from weft.llm.draft import Draft

__all__ = ["Piece", "Text", "write_together"]


@dataclass(slots=True, eq=False)
class Text:
    """A text to write, and how far it has come."""

    number: int
    """Which one of the texts it is."""
    prompt: Sequence[int]
    draft: Draft
    cells: int
    """Cells of the cache that it may need, prompt included."""
    n_past: int = 0


Piece: TypeAlias = tuple[int, str]
"""The number of a text, and what comes next of it; the text is empty while none is certain."""


def write_together(context: Context, texts: Sequence[Text]) -> Iterator[list[Piece]]:
    """Writes all texts to their end, as many at a time as the context has sequences and cells for;
    yields what each call of the context has made certain.

    The cache must be empty. Raises ContextError as `Context.decode`."""
    waiting = deque(texts)
    free = list(range(context.cache.n_seq_max))[::-1]
    going: dict[int, Text] = {}
    while waiting or going:
        room = context.n_ctx - sum(t.cells for t in going.values())
        new: dict[int, Text] = {}
        while waiting and free and waiting[0].cells <= room:
            text = waiting.popleft()
            room -= text.cells
            new[free.pop()] = text
        going |= new
        yield from _begin(context, new)
        _finish(context, going, free)
        if going:
            yield _step(context, going)


def _begin(context: Context, new: dict[int, Text]) -> Iterator[list[Piece]]:
    """The prompts, as many at once as a call takes."""
    left = list(new.items())
    while left:
        n, total = 0, 0
        while n < len(left) and (n == 0 or total + len(left[n][1].prompt) <= context.n_batch):
            total += len(left[n][1].prompt)
            n += 1
        yield _prompts(context, left[:n])
        left = left[n:]


def _prompts(context: Context, texts: list[tuple[int, Text]]) -> list[Piece]:
    tokens = [token for _, text in texts for token in text.prompt]
    positions = [at for _, text in texts for at in range(len(text.prompt))]
    seqs = [[seq] for seq, text in texts for _ in text.prompt]
    ends = np.cumsum([len(text.prompt) for _, text in texts]) - 1
    wanted = np.zeros(len(tokens), np.bool_)
    wanted[ends] = True
    rows = context.decode(tokens, positions, seqs=seqs, outputs=wanted)
    for _, text in texts:
        text.n_past = len(text.prompt)
    return [(text.number, text.draft.push(row)) for (_, text), row in zip(texts, rows, strict=True)]


def _step(context: Context, going: dict[int, Text]) -> list[Piece]:
    """The next token of each."""
    rows = context.decode(
        [t.draft.token for t in going.values()],
        [t.n_past for t in going.values()],
        seqs=[[seq] for seq in going],
        outputs="all",
    )
    for text in going.values():
        text.n_past += 1
    drawn = zip(going.values(), rows, strict=True)
    return [(text.number, text.draft.push(row)) for text, row in drawn]


def _finish(context: Context, going: dict[int, Text], free: list[int]) -> None:
    for seq in [seq for seq, text in going.items() if text.draft.finish_reason]:
        context.cache.seq_rm(seq)
        del going[seq]
        free.append(seq)
