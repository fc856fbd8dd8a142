"""Chooses the replica of a request: the replica with the longest prefix of its prompt, within a
bound."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, TypeVar

from weft.cluster.prefixes import Block, KnownPrefixes

GAIN = 256
"""Number of characters of the prompt, or half of the prompt if that is less, by which a replica
must know more than the least loaded one to be preferred: a few words with which all prompts begin
are not worth a wait."""
CHOSEN_SECONDS = 2.0
"""Number of seconds for which a chosen replica counts as having the request, until it has it."""
REASONS = ("prefix", "balance", "load")
_COUNTS: Counter[str] = Counter()
Replica = TypeVar("Replica", bound=Hashable)


def routed_counts() -> dict[str, int]:
    """Requests of this process that were routed, by why: `prefix`, to the replica that knows most
    of the prompt; `balance`, away from it, for it had too many requests; `load`, to the replica
    with the fewest requests, since none knew anything."""
    return {why: _COUNTS[why] for why in REASONS}


class Routing(Generic[Replica]):
    """The requests and the known prompts of each replica. For one thread."""

    def __init__(self, most_ahead: int, clock: Callable[[], float] = time.monotonic) -> None:
        """A replica with a prefix of the prompt is preferred as long as it has at most `most_ahead`
        requests more than the replica with the fewest."""
        self._most_ahead, self._clock = most_ahead, clock
        self._known: KnownPrefixes[Replica] = KnownPrefixes()
        self._running: dict[str, Replica] = {}
        self._chosen: dict[str, tuple[Replica, float, str]] = {}
        self._n_routed: Counter[Replica] = Counter()

    def ranked(
        self, request: str, replicas: Collection[Replica], blocks: Sequence[Block]
    ) -> list[Replica]:
        """The replicas, the best one first. Among replicas with equally many requests, the one that
        was given the fewest so far comes first."""
        loads = self._loads()
        by_load = sorted(replicas, key=lambda one: (loads[one], self._n_routed[one]))
        ranked, why = by_load, "load"
        known = {one: self._known.known_chars(one, blocks) for one in by_load}
        idle = by_load[0]
        best = max(by_load, key=lambda one: known[one])  # of equals the least loaded
        gain = known[best] - (0 if best == idle else known[idle])
        if blocks and gain >= max(min(GAIN, blocks[-1].n_chars // 2), 1):
            why = "balance"
            if loads[best] - loads[idle] <= self._most_ahead:
                why = "prefix"
                ranked = [best, *(one for one in by_load if one != best)]
        self._chosen[request] = ranked[0], self._clock(), why
        return ranked

    def routed(self, request: str, replica: Replica, blocks: Sequence[Block]) -> None:
        """Notes that a replica has taken a request."""
        wanted, _, why = self._chosen.pop(request, (replica, 0.0, "load"))
        _COUNTS["balance" if why == "prefix" and wanted != replica else why] += 1
        self._n_routed[replica] += 1
        self._running[request] = replica
        self._known.note(replica, blocks)

    def ended(self, request: str) -> None:
        """Notes that a request has ended."""
        self._running.pop(request, None)
        self._chosen.pop(request, None)

    def keep_only(self, replicas: Collection[Replica]) -> None:
        """Forgets all other replicas. A new one is taken to have had as many requests as the others
        had at least."""
        self._known.keep_only(replicas)
        self._running = {id_: one for id_, one in self._running.items() if one in replicas}
        before = self._n_routed
        least = min((before[one] for one in replicas if one in before), default=0)
        self._n_routed = Counter({one: before.get(one, least) for one in replicas})

    def _loads(self) -> Counter[Replica]:
        """The requests of each replica, those on their way to it included."""
        since = self._clock() - CHOSEN_SECONDS
        self._chosen = {id_: c for id_, c in self._chosen.items() if c[1] > since}
        loads = Counter(self._running.values())
        loads.update(replica for replica, _, _ in self._chosen.values())
        return loads
