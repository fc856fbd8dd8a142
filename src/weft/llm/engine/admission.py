"""`Admission`: in which order waiting texts start and prompts are read, and how long a text may
wait.

    fcfs       in the order of their requests
    shortest   the prompt with the least to compute first, but a text is overtaken only by those
               that come within `AGEING` times the seconds that its own prompt takes, and never by
               one that comes more than `LONGEST` seconds after it

The order of two texts never changes while they wait, so that every text has its turn: the number of
texts that can come before it is bounded.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from math import ceil
from time import monotonic
from typing import Literal, get_args

from weft.errors import BusyError, ContextError
from weft.llm.engine.request import Ticket
from weft.records import dataclass

Policy = Literal["shortest", "fcfs"]
"""The order of waiting texts: the least to compute first, or first come, first served."""
POLICY: Policy = "shortest"
"""The default policy."""
AGEING = 20.0
"""Seconds for which others may overtake a text, for each second that its prompt takes."""
LONGEST = 60.0
"""Maximum number of seconds for which others may overtake a text."""
GUESS = 0.001
"""Assumed seconds of a token of a prompt, until this was measured."""
STARTS = 64
"""Number of starts whose rate says how fast the queue moves."""
MOST_RETRY = 60
"""Maximum number of seconds after which a refused client is told to try again."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How many texts may wait for their start, how long, and in which order. Raises ContextError
    for an unknown policy and for a number out of range."""

    max_queue: int = 64
    """Maximum number of texts that wait."""
    max_wait: float = 0.0
    """Maximum number of seconds that a text waits; 0: any."""
    scheduling_policy: Policy = POLICY

    def __post_init__(self) -> None:
        if self.max_queue < 0:
            raise ContextError(f"is {self.max_queue}; it must be 0 or more", argument="max_queue")
        if self.scheduling_policy not in get_args(Policy):
            raise ContextError(
                f"is {self.scheduling_policy!r}; it must be one of {', '.join(get_args(Policy))}",
                argument="scheduling_policy",
            )
        if not 0 <= self.max_wait < 1e6:
            raise ContextError(
                f"is {self.max_wait:g}; it is a number of seconds below 1,000,000, 0 for any",
                argument="max_wait",
            )


class Admission:
    """The queue of an engine. One thread changes it; any thread may read its numbers."""

    def __init__(self, options: QueueOptions | None = None, *, n_slots: int = 1) -> None:
        """`n_slots` is the number of texts that run at the same time. None: the default
        options."""
        self.options = QueueOptions() if options is None else options
        self._n_slots = n_slots
        self._waiting: list[Ticket] = []
        self._starts: deque[float] = deque(maxlen=STARTS)  # since the queue was empty

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Ticket]:
        """The waiting texts in the order of their turns; the queue may change meanwhile."""
        return iter(tuple(self._waiting))

    def add(self, text: Ticket, n_unread: int, each: float | None) -> None:
        """Queues a text of whose prompt `n_unread` tokens have to be computed, which takes `each`
        seconds for one (None: not known)."""
        if not self._waiting:
            self._starts.clear()
            self._starts.append(monotonic())
        text.turn = text.times.asked
        if self.options.scheduling_policy == "shortest":
            seconds = n_unread * (GUESS if each is None else each)
            text.turn += min(AGEING * seconds, LONGEST)
        insort(self._waiting, text, key=lambda other: other.turn)

    def remove(self, text: Ticket) -> None:
        """Takes a text out that does not start."""
        self._waiting.remove(text)

    def start(self, text: Ticket) -> None:
        """Takes a text out that starts now."""
        self.remove(text)
        text.times.started = monotonic()
        self._starts.append(text.times.started)

    def late(self) -> list[Ticket]:
        """The texts that have waited longer than they may. A text with the prompt of one that has
        started is not among them: it ends with its request."""
        if not self.options.max_wait or not self._waiting:
            return []
        before = monotonic() - self.options.max_wait
        late = [text for text in self._waiting if text.times.asked < before]
        return [text for text in late if text.after is None or not text.after.times.started]

    @property
    def n_tokens(self) -> int:
        """Number of prompt tokens of the waiting texts."""
        return sum(len(text.request.prompt) for text in self)

    @property
    def longest(self) -> float:
        """Seconds for which the text that has waited longest has waited; 0: none waits."""
        return max((monotonic() - text.times.asked for text in self), default=0.0)

    def expected(self, n_before: int) -> float:
        """Seconds that a text with `n_before` texts before it can be expected to wait, at the rate
        of the last starts since the queue was empty; 0: no text waits.

        Texts that started together end together, so fewer starts than there are slots say nothing
        about the rate: as many as there are slots are assumed to be near."""
        starts = tuple(self._starts)
        if not starts or not len(self):
            return 0.0
        return n_before * (monotonic() - starts[0]) / max(len(starts) - 1, self._n_slots)

    def busy(self, why: str, n_before: int) -> BusyError:
        """The refusal of a text, with the seconds after which its client should try again."""
        seconds = min(max(ceil(self.expected(n_before)), 1), MOST_RETRY)
        return BusyError(why, retry_after=seconds)
