"""`Drafting` asks drafters for the texts of a step, and learns from what became of their drafts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import field
from time import perf_counter

from weft.llm.drafting.drafter import Drafter
from weft.llm.drafting.gain import LENGTHS, Chance, Credit, Gain, Odds
from weft.records import dataclass

__all__ = ["MOST_TEXTS", "Drafting", "Outcome", "Wanted"]

MOST_TEXTS = 4
"""Most texts that are written at the same time while drafts are made: with more, the columns of
their batch use the processor already."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text that could go on with a draft."""

    seq: int
    tokens: Sequence[int]
    most: int
    """Most tokens of a draft."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a draft."""

    seq: int
    n_drafted: int
    n_drawn: int
    """Tokens drawn in the step: the right ones of the draft, and one more."""
    failed: bool
    """True if a token of the draft was wrong."""


@dataclass(slots=True)
class _Made:
    """What is known of a text."""

    credit: Credit
    n_tokens: int
    odds: Odds | None = None
    """The class of its last draft."""


@dataclass(slots=True)
class _Source:
    drafter: Drafter
    odds: list[Odds]
    seconds: float = 0.0
    """Time of a token."""
    failed: bool = False


@dataclass(slots=True)
class Drafting:
    """The drafters of a context, and all that has been measured of them.

    A drafter that raises is not asked again, with a warning; ids outside the vocabulary end a
    draft. So nothing that a drafter does changes a text."""

    drafters: Sequence[Drafter]
    n_vocab: int
    most: int = LENGTHS[-1]
    """Most tokens of all drafts of a step."""
    least: int = 1
    """Shorter drafts are not checked."""
    gain: Gain = field(default_factory=Gain)
    clock: Callable[[], float] = perf_counter
    rests: int = 0
    """Steps in which nothing should be looked for, because looking takes long beside a step."""
    n_drafted: int = 0
    """Tokens drafted."""
    n_accepted: int = 0
    """Tokens among them that were right."""
    _sources: list[_Source] = field(default_factory=list)
    _texts: dict[int, _Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sources = [_Source(d, [Odds(p) for p in d.trust]) for d in self.drafters]

    def propose(self, wanted: Sequence[Wanted], n_base: int, room: int) -> list[Sequence[int]]:
        """A draft for each text, empty where none would pay. `n_base` is the number of columns of
        the batch without drafts, `room` the most that drafts may add."""
        nothing: list[Sequence[int]] = [()] * len(wanted)
        if len(wanted) > MOST_TEXTS or room < 1 or not self._sources:
            return nothing
        start, known = self.clock(), len(self._texts)
        drafts = self._drafts(wanted, n_base, min(room, self.most))
        if drafts is not None:
            return drafts
        if known == len(self._texts):  # else a prompt was read
            self.rests = self.gain.rests(self.clock() - start, len(wanted))
        return nothing

    def _drafts(
        self, wanted: Sequence[Wanted], n_base: int, room: int
    ) -> list[Sequence[int]] | None:
        """The drafts of a step; None: none would pay."""
        best: list[_Source | None] = []
        chances: list[Chance] = []
        for text in wanted:
            source, chance = self._look(text)
            best.append(source)
            chances.append(chance)
        if not any(best):
            return None
        n = self.gain.length(chances, n_base, room)
        if not n:
            return None
        asked: list[Sequence[int]] = [
            self._ask(source, text, min(n, chance.most)) if source else ()
            for source, text, chance in zip(best, wanted, chances, strict=True)
        ]
        for text, chance, draft in zip(wanted, chances, asked, strict=True):
            if draft:
                self._texts[text.seq].odds = chance.odds
        return asked

    def note(self, n_columns: int, n_texts: int, batch: float, seconds: float, n_drawn: int,
             outcomes: Sequence[Outcome] = ()) -> None:  # fmt: skip
        """Learns from a step without rest: its columns, texts, the seconds of its batch and all its
        seconds, the number of tokens drawn, and what became of each draft."""
        drafted = []
        for o in outcomes:
            text = self._texts.get(o.seq)
            if text is None or text.odds is None:
                continue
            n_right = o.n_drawn - 1 if o.failed else min(o.n_drawn, o.n_drafted)
            text.odds.note(n_right, o.failed)
            drafted.append((text.credit, o.n_drafted, o.n_drawn))
            self.n_drafted += o.n_drafted
            self.n_accepted += n_right
        self.gain.note(n_columns, n_texts, batch, seconds, n_drawn, drafted)

    def forget(self, seq: int) -> None:
        """The text of sequence `seq` has ended."""
        if self._texts.pop(seq, None) is not None:
            for source in self._sources:
                source.drafter.forget(seq)

    def _look(self, text: Wanted) -> tuple[_Source | None, Chance]:
        """The drafter that is expected to be right most often."""
        n, known = len(text.tokens), self._texts.get(text.seq)
        if known is None:
            credit = Credit(min(Credit().left, self.gain.credit.left))
            known = self._texts[text.seq] = _Made(credit, n)
        known.credit.note(0.0, n - known.n_tokens)
        known.n_tokens, known.odds = n, None
        best, chance = None, Chance(_NO_ODDS, 0, known.credit)
        if text.most < self.least:
            return best, chance
        for source in self._sources:
            if source.failed:
                continue
            try:
                which, most = source.drafter.look(text.seq, text.tokens)
                odds = source.odds[which]
            except Exception as error:
                self._give_up(source, error)
                continue
            if most >= self.least and odds.p > chance.odds.p:
                best = source
                chance = Chance(odds, min(most, text.most), known.credit, source.seconds)
        return best, chance

    def _ask(self, source: _Source, text: Wanted, n: int) -> Sequence[int]:
        start = self.clock()
        try:
            draft = [int(id_) for id_ in source.drafter.propose(text.seq, text.tokens, n)][:n]
        except Exception as error:
            self._give_up(source, error)
            return ()
        seconds = (self.clock() - start) / max(len(draft), 1)
        source.seconds += (0.25 if source.seconds else 1.0) * (seconds - source.seconds)
        wrong = next((i for i, id_ in enumerate(draft) if not 0 <= id_ < self.n_vocab), n)
        draft = draft[:wrong]
        return draft if len(draft) >= self.least else ()

    def _give_up(self, source: _Source, error: Exception) -> None:
        source.failed = True
        warnings.warn(
            f"drafter {source.drafter.name} is not asked again, because it failed: {error!r}; "
            "texts are the same without it",
            stacklevel=2,
        )


_NO_ODDS = Odds(0.0)
