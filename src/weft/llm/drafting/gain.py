"""`Gain` decides how many tokens to draft, from what steps took and how many drafts were right.

Everything is measured as it runs; times are given by the caller. What drafting may lose is bounded:
it spends a credit, in steps without drafts, that grows by 1% of a step with every token and by
what drafts have gained. Without credit nothing is drafted until enough has grown again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from weft.records import dataclass

LENGTHS = (1, 3, 5, 7, 11, 15, 23, 30)
"""Lengths of drafts that are weighed against each other. Kernels take columns in groups, and few
lengths are measured sooner."""
WORTH = 1.05
"""Minimum factor by which a draft must be expected to speed a step up, per token."""
SLOWEST = 0.98
"""Minimum factor for every other text in the batch."""
START = 2.0
"""Steps that may be lost before anything has been gained."""
GROWTH = 0.01
"""Fraction of a step that may be lost for each token."""
MOST = 24.0
"""Maximum of a credit, in steps."""
MEASURED = 2
"""Minimum number of measured steps without drafts."""
AGAIN = 128
"""Number of steps with drafts after which one step is made without, so that its time is known."""
LOOKING = 0.007
"""Fraction of a step that may be spent on looking for drafts in vain."""
MOST_RESTS = 64
SLOPE = 0.5
"""Assumed cost of one more column, in columns, until this was measured."""


class Costs:
    """The time of a batch by its number of columns, in seconds."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._count: dict[int, int] = {}

    def note(self, n: int, seconds: float) -> None:
        """Notes a batch of `n` columns. A batch that was interrupted counts twice its time at
        most."""
        old = self._seconds.get(n)
        if old is None:
            self._seconds[n] = seconds
        else:
            self._seconds[n] = old + 0.25 * (min(seconds, 2 * old) - old)
        self._count[n] = self._count.get(n, 0) + 1

    def count(self, n: int) -> int:
        """The number of batches of `n` columns so far."""
        return self._count.get(n, 0)

    @property
    def largest(self) -> int:
        """The most columns of a batch so far."""
        return max(self._seconds, default=0)

    def seconds(self, n: int) -> float:
        """The time of a batch of `n` columns: measured, or between the nearest that were, or by the
        slope of the largest. Some batch must have been noted."""
        known = self._seconds
        if n in known:
            return known[n]
        below = max((m for m in known if m < n), default=0)
        above = min((m for m in known if m > n), default=0)
        if not below:
            return known[above]
        if above:
            part = (n - below) / (above - below)
            return known[below] + part * max(known[above] - known[below], 0.0)
        least = min(known)
        slope = SLOPE * known[least] / least
        if least < below:
            slope = max((known[below] - known[least]) / (below - least), 0.0)
        return known[below] + slope * (n - below)


class Odds:
    """The acceptance rate of the tokens of one class of proposals."""

    __slots__ = ("_right", "_wrong")

    def __init__(self, belief: float) -> None:
        self._right, self._wrong = 4 * belief, 4 * (1 - belief)

    @property
    def p(self) -> float:
        """The probability that a token is right if all before it are."""
        return self._right / (self._right + self._wrong)

    def note(self, n_right: int, failed: bool) -> None:
        """Notes a draft whose first `n_right` tokens were right; `failed`: the next was wrong."""
        self._right += n_right
        self._wrong += failed
        if self._right + self._wrong > 64:
            self._right, self._wrong = self._right / 2, self._wrong / 2

    def expected(self, n: int) -> float:
        """The number of right tokens expected of `n`."""
        p = self.p
        return n * p if p > 0.9999 else p * (1 - p**n) / (1 - p)


@dataclass(slots=True)
class Credit:
    """The time that drafts may still lose, in steps without drafts."""

    left: float = START

    def note(self, gained: float, n_tokens: float) -> None:
        """Adds what a step has gained (negative: lost), and the growth of `n_tokens`."""
        self.left = min(self.left + gained + GROWTH * n_tokens, MOST)


@dataclass(frozen=True, slots=True)
class Chance:
    """The possible draft of one text."""

    odds: Odds
    most: int
    credit: Credit
    seconds: float = 0.0
    """Seconds that the drafter takes for each token."""
    start: float = 0.0
    """Seconds that the drafter takes before the first token."""

    def cost(self, n: int) -> float:
        """The seconds that the drafter takes for `n` tokens."""
        return self.start + n * self.seconds if n else 0.0


@dataclass(slots=True)
class Gain:
    """Decides for all texts of a step."""

    costs: Costs = field(default_factory=Costs)
    credit: Credit = field(default_factory=Credit)
    each: float = 0.0
    """Seconds of a token outside the batch, for sampling and text."""
    _since: int = 0

    def length(self, chances: Sequence[Chance], n_base: int, room: int) -> int:
        """The most tokens to draft for each text of a step; 0: none.

        `n_base` is the number of columns without drafts, `room` the most columns that drafts may
        add."""
        n = len(chances)
        if self.costs.count(n) < MEASURED or self._since >= AGAIN:
            return 0
        best, most = 0, WORTH
        outside = self.each * n
        base = self.costs.seconds(n_base) + outside
        for length in LENGTHS:
            counts = [min(length, c.most) for c in chances]
            total = sum(counts)
            if total == 0 or total > room or n_base + total > 2 * self.costs.largest:
                break  # sizes far beyond those measured may cost more than they seem to
            batch = self.costs.seconds(n_base + total) + sum(
                c.cost(k) for k, c in zip(counts, chances, strict=True)
            )
            lost = (batch + outside) / base - 1
            if lost > self.credit.left or any(
                lost * k > c.credit.left * total for k, c in zip(counts, chances, strict=True)
            ):
                break
            right = [c.odds.expected(k) for k, c in zip(counts, chances, strict=True)]
            time = batch + outside + self.each * sum(right)
            if (1 + min(right)) * base < SLOWEST * time:
                continue
            worth = (n + sum(right)) / n * base / time
            if worth > most:
                best, most = length, worth
            if max(counts) < length:
                break
        return best

    def rate(self, chance: Chance) -> float:
        """The tokens per second expected of a text alone, with drafts of the best length; as long
        as times are unknown, the probability that its first token is right."""
        if not self.costs.largest:
            return chance.odds.p
        best = 0.0
        for length in LENGTHS:
            k = min(length, chance.most)
            right = chance.odds.expected(k)
            time = self.costs.seconds(1 + k) + chance.cost(k) + self.each * (1 + right)
            best = max(best, (1 + right) / time)
            if k < length:
                break
        return best

    def promises(self, odds: Odds, share: float) -> bool:
        """True if drafts with such odds, by a drafter that takes `share` of a step for a token,
        would make a text faster if checking them took no time."""
        return any(1 + odds.expected(k) > WORTH * (1 + k * share) for k in LENGTHS)

    def pays(self, odds: Odds, seconds: float) -> bool:
        """True if drafts with such odds, by a drafter that takes `seconds` for a token, make a text
        alone faster; also as long as times are unknown."""
        if not self.costs.largest:
            return True
        plain = 1 / max(self.costs.seconds(1) + self.each, 1e-9)
        return self.rate(Chance(odds, LENGTHS[-1], self.credit, seconds)) > WORTH * plain

    def steps(self, n: float) -> float:
        """The seconds of `n` steps of one text, as far as is known."""
        return n * (self.costs.seconds(1) + self.each) if self.costs.largest else 0.0

    def may_lose(self, seconds: float) -> bool:
        """True if the credit allows to lose `seconds`."""
        return seconds < self.credit.left * self.steps(1)

    def lose(self, seconds: float, n_texts: int) -> None:
        """Takes the time of a draft that came to nothing, in a step of `n_texts` texts, from the
        credit."""
        plain = self.costs.seconds(n_texts) if self.costs.largest else 0.0
        if plain:
            self.credit.note(-seconds / (plain + self.each * n_texts), 0)

    def rests(self, looked: float, n_texts: int) -> int:
        """For how many steps nothing should be looked for, after looking took the seconds `looked`
        for nothing."""
        if self.costs.count(n_texts) < MEASURED:
            return 0
        n = int(looked / (LOOKING * (self.costs.seconds(n_texts) + self.each * n_texts)))
        self.credit.note(0.0, min(n, MOST_RESTS))
        return min(n, MOST_RESTS)

    def note(self, n_columns: int, n_texts: int, batch: float, seconds: float, n_drawn: int,
             drafted: Sequence[tuple[Credit, int, int]] = ()) -> None:  # fmt: skip
        """Notes a step of `n_texts` texts: the columns and seconds of its batch, all its seconds,
        and the tokens drawn. `drafted` has, for each text with a draft, its credit, the length of
        the draft and the number of tokens drawn."""
        self.costs.note(n_columns, batch)
        if not drafted:
            if n_columns == n_texts:
                self._since = 0
                rest = (seconds - batch) / max(n_drawn, 1)
                self.each += (1.0 if not self.each else 0.25) * (rest - self.each)
            gained = 0.0
            if n_columns > n_texts and self.costs.count(n_texts):  # right tokens are read again
                plain = self.costs.seconds(n_texts) + self.each * n_texts
                gained = min(1 - seconds / plain, 0.0)
            self.credit.note(gained, 1.0)
            return
        self._since += 1
        plain = self.costs.seconds(n_texts) + self.each * n_texts
        lost = seconds / plain - 1
        self.credit.note((n_drawn - n_texts) / n_texts - lost, n_drawn / n_texts)
        total = sum(k for _, k, _ in drafted)
        for credit, k, drawn in drafted:
            credit.note((drawn - 1) / n_texts - lost * k / total, 0)
