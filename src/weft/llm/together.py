"""Several texts at once: each a sequence of one context, all a token further with each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.llm.context import Context
from weft.llm.draft import Draft

__all__ = ["Text", "write_together"]


@dataclass(slots=True, eq=False)
class Text:
    """A text to write, and what has been written."""

    prompt: Sequence[int]
    draft: Draft
    cells: int
    """Cells of the cache that it may need, prompt included."""
    text: str = ""
    n_past: int = 0


def write_together(context: Context, texts: Sequence[Text]) -> None:
    """Writes all texts to their end, as many at a time as the context has sequences and cells for.

    The cache is empty before and after. Raises ContextError as `Context.decode`."""
    waiting = deque(texts)
    free = list(range(context.cache.n_seq_max))[::-1]
    going: dict[int, Text] = {}
    context.cache.clear()
    try:
        while waiting or going:
            room = context.n_ctx - sum(t.cells for t in going.values())
            new: dict[int, Text] = {}
            while waiting and free and waiting[0].cells <= room:
                text = waiting.popleft()
                room -= text.cells
                new[free.pop()] = text
            going |= new
            _begin(context, new)
            _finish(context, going, free)
            if going:
                _step(context, going)
    finally:
        context.cache.clear()


def _begin(context: Context, new: dict[int, Text]) -> None:
    """The prompts, as many at once as a call takes."""
    left = list(new.items())
    while left:
        n, total = 0, 0
        while n < len(left) and (n == 0 or total + len(left[n][1].prompt) <= context.n_batch):
            total += len(left[n][1].prompt)
            n += 1
        _prompts(context, left[:n])
        left = left[n:]


def _prompts(context: Context, texts: list[tuple[int, Text]]) -> None:
    tokens = [token for _, text in texts for token in text.prompt]
    positions = [at for _, text in texts for at in range(len(text.prompt))]
    seqs = [[seq] for seq, text in texts for _ in text.prompt]
    ends = np.cumsum([len(text.prompt) for _, text in texts]) - 1
    wanted = np.zeros(len(tokens), np.bool_)
    wanted[ends] = True
    rows = context.decode(tokens, positions, seqs=seqs, outputs=wanted)
    for (_, text), row in zip(texts, rows, strict=True):
        text.n_past = len(text.prompt)
        text.text += text.draft.push(row)


def _step(context: Context, going: dict[int, Text]) -> None:
    """The next token of each."""
    rows = context.decode(
        [t.draft.token for t in going.values()],
        [t.n_past for t in going.values()],
        seqs=[[seq] for seq in going],
        outputs="all",
    )
    for text, row in zip(going.values(), rows, strict=True):
        text.n_past += 1
        text.text += text.draft.push(row)


def _finish(context: Context, going: dict[int, Text], free: list[int]) -> None:
    for seq in [seq for seq, text in going.items() if text.draft.finish_reason]:
        context.cache.seq_rm(seq)
        del going[seq]
        free.append(seq)
