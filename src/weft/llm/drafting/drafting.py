"""`Drafting` asks drafters for the texts of a step, and learns from what became of their drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from time import perf_counter
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.backends.cpu import CpuBackend
from weft.errors import warn
from weft.llm.compute.context import Context
from weft.llm.drafting.gain import LENGTHS, Chance, Credit, Gain, Odds
from weft.records import dataclass


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, texts are the same; only their speed differs.

    A proposal is asked for in two calls, so that one that does not pay costs little: `look` says
    how much it would be worth, and `propose` makes it."""

    name: str
    trust: Sequence[float]
    """Prior acceptance probability of a token, for each class of proposals, before anything has
    been measured."""

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        """The class of the proposal that it would make for the text `tokens` (ids, at least one) of
        sequence `seq`, an index of `trust`, and the most tokens of it (0: it has none)."""
        ...

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most `most` ids that may follow. Called right after `look`, with the same text."""
        ...

    def forget(self, seq: int) -> None:
        """The text of sequence `seq` has ended."""
        ...


@runtime_checkable
class Reader(Drafter, Protocol):
    """A drafter with a model of its own, which must have read a text before it goes on with it.

    Reading takes time, so it is asked for by itself, and only where drafts may pay."""

    share: float
    """Seconds that it is expected to take for a token, as a fraction of a step of the model that it
    drafts for; 0: not known. It counts until the time was measured."""

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        """Number of `tokens` that it must read before it can propose what follows them."""
        ...

    def read(self, seq: int, tokens: Sequence[int]) -> None:
        """Reads the text `tokens` of sequence `seq`, or what is new of it."""
        ...

    def drop(self, seq: int, start: int, n: int) -> None:
        """The `n` tokens of sequence `seq` from position `start` on have been dropped, because the
        context was full; those behind have moved there."""
        ...


@runtime_checkable
class StateReader(Reader, Protocol):
    """A reader that needs what the model computed of the tokens."""

    def take(self, seq: int, start: int, states: NDArray[np.float32]) -> None:
        """Takes what the output projection of the model read of the tokens of sequence `seq` from
        position `start` on, [n, n_embd]. Those of a draft are among them, right or wrong."""
        ...


MOST_TEXTS = 4
"""Maximum number of texts written at the same time while drafts are made: with more, the columns of
their batch use the processor already."""
FEW = 2
"""Tokens that a drafter reads as a part of a proposal: the last two of a text whose draft was right
are new to it."""
MANY = 32
"""With more tokens to read, a drafter reads them by itself first, where that pays."""
FADES = 0.99
"""Factor by which the known time of a drafter shrinks in each step without a draft, so that it is
tried again; the credit bounds what that may cost."""
GUESS = 0.02
"""Steps that a drafter is assumed to take to read a token, until this was measured, if nothing is
known of its speed. Reading a token takes no longer than writing one (`Reader.share`)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text that could go on with a draft."""

    seq: int
    tokens: Sequence[int]
    most: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a draft."""

    seq: int
    n_drafted: int
    n_drawn: int
    """Tokens drawn in the step: the right ones of the draft, and one more."""
    failed: bool


@dataclass(slots=True)
class _Made:
    """The credit and the last draft of a text."""

    credit: Credit
    n_tokens: int
    odds: Sequence[Odds] = ()
    """Acceptance rates of the class of the last draft, and of all drafts by the same drafter."""
    asked: int = 0
    """Number of tokens asked for in the last draft."""


@dataclass(slots=True)
class _Source:
    drafter: Drafter
    odds: list[Odds]
    all: Odds
    """Acceptance rates over all classes of drafts together."""
    reader: Reader | None = None
    """The drafter, if it must read texts."""
    seconds: float = 0.0
    """Seconds per drafted token."""
    reading: float = 0.0
    """Seconds per token that the drafter reads; 0: not known."""
    failed: bool = False


@dataclass(slots=True)
class Drafting:
    """The drafters of a context, and all that has been measured of them.

    A drafter that raises is not asked again, with a warning; ids outside the vocabulary end a
    draft. So nothing that a drafter does changes a text."""

    drafters: Sequence[Drafter]
    n_vocab: int
    most: int = LENGTHS[-1]
    """Maximum number of tokens of all drafts of a step."""
    least: int = 1
    """Minimum number of tokens of a draft that is checked."""
    gain: Gain = field(default_factory=Gain)
    clock: Callable[[], float] = perf_counter
    rests: int = 0
    """Number of steps in which no draft should be looked for, because looking takes long beside a
    step."""
    n_drafted: int = 0
    n_accepted: int = 0
    """Drafted tokens that were right."""
    _sources: list[_Source] = field(default_factory=list)
    _texts: dict[int, _Made] = field(default_factory=dict)
    _followed: set[int] = field(default_factory=set)
    _aside: float = 0.0
    """Seconds of this step that went to reading, and to drafts of which nothing came."""

    def __post_init__(self) -> None:
        for d in self.drafters:
            reader = d if isinstance(d, Reader) else None
            odds = [Odds(p) for p in d.trust]
            self._sources.append(_Source(d, odds, Odds(sum(d.trust) / len(odds)), reader))

    @property
    def unasked(self) -> list[Reader]:
        """The drafters that are too slow to be asked, as far as is known."""
        return [s.reader for s in self._sources if s.reader and not self._may_pay(s, s.all)]

    def propose(self, wanted: Sequence[Wanted], n_base: int, room: int) -> list[Sequence[int]]:
        """A draft for each text, empty where none would pay. `n_base` is the number of columns of
        the batch without drafts, `room` the most that drafts may add."""
        nothing: list[Sequence[int]] = [()] * len(wanted)
        if len(wanted) > MOST_TEXTS or room < 1 or not self._sources:
            return nothing
        start, known, self._aside = self.clock(), len(self._texts), 0.0
        drafts = self._drafts(wanted, n_base, min(room, self.most))
        if drafts is not None:
            return drafts
        if known == len(self._texts):  # else a prompt was read
            looked = self.clock() - start - self._aside
            self.rests = self.gain.rests(looked, len(wanted))
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
        n = self.gain.length(chances, n_base, room) if any(best) else 0
        if not n:
            for source in self._sources:  # a first time that was interrupted is forgotten
                source.seconds *= FADES
            return None
        drafts: list[Sequence[int]] = []
        start = self.clock()
        for source, text, chance in zip(best, wanted, chances, strict=True):
            known, asked = self._texts[text.seq], min(n, chance.most)
            draft = self._ask(source, text, asked) if source else ()
            drafts.append(draft)
            if source is None:
                continue
            known.odds, known.asked = (chance.odds, source.all), asked
            if not draft:  # it was not sure of a single token
                _note(known.odds, 0, True)
        if not any(drafts):
            seconds = self.clock() - start
            self._aside += seconds
            self.gain.lose(seconds, len(wanted))
        return drafts

    def note(self, n_columns: int, n_texts: int, batch: float, seconds: float, n_drawn: int,
             outcomes: Sequence[Outcome] = ()) -> None:  # fmt: skip
        """Learns from a step without rest: its columns, texts, the seconds of its batch and all its
        seconds, the number of tokens drawn, and what became of each draft."""
        seconds = max(seconds - self._aside, batch)
        drafted = []
        for o in outcomes:
            text = self._texts.get(o.seq)
            if text is None or not text.odds:
                continue
            n_right = o.n_drawn - 1 if o.failed else min(o.n_drawn, o.n_drafted)
            _note(text.odds, n_right, o.failed or n_right == o.n_drafted < text.asked)
            drafted.append((text.credit, o.n_drafted, o.n_drawn))
            self.n_drafted += o.n_drafted
            self.n_accepted += n_right
        self.gain.note(n_columns, n_texts, batch, seconds, n_drawn, drafted)

    def follow(self, seq: int, tokens: Sequence[int]) -> None:
        """Lets drafters read the beginning `tokens` of the text of sequence `seq`, where their
        drafts may pay. It is called as a prompt is read."""
        for source in self._sources:
            if source.reader is None or source.failed or not tokens:
                continue
            self._followed.add(seq)
            if not self._may_pay(source, source.all):
                continue
            pays = self.gain.pays(source.all, source.seconds)
            n = source.reader.unread(seq, tokens)
            if pays or self.gain.may_lose(self._expected(source, n)):
                seconds = self._read(source, seq, tokens)
                if not pays:
                    self.gain.lose(seconds, 1)

    def take(self, seq: int, start: int, states: NDArray[np.float32]) -> None:
        """Hands on what the model computed of tokens; see `StateReader.take`."""
        for source in self._sources:
            if isinstance(source.reader, StateReader) and not source.failed:
                try:
                    source.reader.take(seq, start, states)
                except Exception as error:
                    self._give_up(source, error)

    def drop(self, seq: int, start: int, n: int) -> None:
        """The `n` tokens of sequence `seq` from position `start` on have been dropped."""
        for source in self._sources:
            if source.reader is not None and not source.failed:
                try:
                    source.reader.drop(seq, start, n)
                except Exception as error:
                    self._give_up(source, error)

    def forget(self, seq: int) -> None:
        """The text of sequence `seq` has ended."""
        if self._texts.pop(seq, None) is not None or seq in self._followed:
            self._followed.discard(seq)
            for source in self._sources:
                source.drafter.forget(seq)

    def _look(self, text: Wanted) -> tuple[_Source | None, Chance]:
        """The drafter that is expected to gain most."""
        n, known = len(text.tokens), self._texts.get(text.seq)
        if known is None:
            credit = Credit(min(Credit().left, self.gain.credit.left))
            known = self._texts[text.seq] = _Made(credit, n)
        known.credit.note(0.0, n - known.n_tokens)
        known.n_tokens, known.odds = n, ()
        best, chance = None, Chance(_NO_ODDS, 0, known.credit)
        if text.most < self.least:
            return best, chance
        found: list[tuple[_Source, Chance]] = []
        for source in self._sources:
            if source.failed:
                continue
            try:
                which, most = source.drafter.look(text.seq, text.tokens)
                odds = source.odds[which]
                if most < self.least or not self._may_pay(source, odds):
                    continue
                start = self._start(source, odds, text)
            except Exception as error:
                self._give_up(source, error)
                continue
            if odds.p > 0:
                one = Chance(odds, min(most, text.most), known.credit, source.seconds, start)
                found.append((source, one))
        if len(found) == 1:
            return found[0]
        return max(found, key=lambda pair: self.gain.rate(pair[1]), default=(best, chance))

    def _may_pay(self, source: _Source, odds: Odds) -> bool:
        """False if its drafts would not pay even if checking them took no time. A drafter that is
        about as slow as the model is not asked at all: the first question would be in vain, too."""
        if source.seconds:
            return self.gain.promises(odds, source.seconds / max(self.gain.steps(1), 1e-9))
        share = source.reader.share if source.reader is not None else 0.0
        return self.gain.promises(source.all, share)

    def _start(self, source: _Source, odds: Odds, text: Wanted) -> float:
        """The seconds that a drafter must read before it can propose anything, besides the last
        tokens. If they are many, it reads them now, where that may pay and there is credit."""
        if source.reader is None:
            return 0.0
        n = source.reader.unread(text.seq, text.tokens)
        if n > MANY and self.gain.pays(odds, source.seconds):
            if self.gain.may_lose(self._expected(source, n)):
                seconds = self._read(source, text.seq, text.tokens[:-1])
                self._aside += seconds
                self.gain.lose(seconds, 1)
                n = source.reader.unread(text.seq, text.tokens)
        return self._expected(source, max(n - FEW, 0))

    def _expected(self, source: _Source, n: int) -> float:
        """The seconds that a drafter needs to read `n` tokens, as far as is known."""
        share = source.reader.share if source.reader is not None else 0.0
        return n * (source.reading or self.gain.steps(share or GUESS))

    def _read(self, source: _Source, seq: int, tokens: Sequence[int]) -> float:
        """Lets a drafter read a text; returns the seconds that it took."""
        assert source.reader is not None
        start = self.clock()
        try:
            n = source.reader.unread(seq, tokens)
            source.reader.read(seq, tokens)
        except Exception as error:
            self._give_up(source, error)
            return 0.0
        seconds = self.clock() - start
        if n:
            source.reading += (0.25 if source.reading else 1.0) * (seconds / n - source.reading)
        return seconds

    def _ask(self, source: _Source, text: Wanted, n: int) -> Sequence[int]:
        if source.reader is not None and source.reader.unread(text.seq, text.tokens) > FEW:
            self._read(source, text.seq, text.tokens[:-1])
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
        warn(
            f"drafter {source.drafter.name} is not asked again, because it failed: {error!r}; "
            "texts are the same without it"
        )


def _note(each: Sequence[Odds], n_right: int, ended: bool) -> None:
    for odds in each:
        odds.note(n_right, ended)


_NO_ODDS = Odds(0.0)


MOST_COLUMNS = 31
"""Maximum number of columns of a batch with drafts: from 32 on, devices may take products that are
left to the cpu for single tokens, and round differently."""


def why_no_drafts(context: Context) -> str:
    """Why drafts cannot be checked without a chance of other texts; empty if they can."""
    for regime in context.regimes:
        used = {split.device for split in regime.program.splits}
        for device in (d for d in regime.program.devices if d.name in used):
            if not isinstance(device, CpuBackend):
                return f"device {device.name} may round a batch otherwise than single tokens"
            if device.activations == "bf16":
                return "with bf16 activations, a batch is rounded otherwise than single tokens"
        if regime.max_tokens >= MOST_COLUMNS:
            break
    if context.cache.blocks:
        return "with compressed keys, attention adds up in the order of cells that are used again"
    if context.cache.window is not None:
        return "with swa_full=False, attention adds up in the order of cells that are used again"
    if not context.plan.options.flash:
        return "without flash attention, a batch is rounded otherwise than single tokens"
    return ""
