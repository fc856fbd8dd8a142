"""The request router of Ray Serve that prefers the replica which knows most of a prompt.

Ray Serve makes one in every process that sends requests to a deployment. The requests carry the
blocks of their prompts as the keyword argument `blocks` (`prefixes.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from weft.cluster.prefixes import Block, KnownPrefixes

__all__ = ["PrefixRouter", "routed_counts"]

_CHOSEN_SECONDS = 2.0
"""How long a replica that was chosen for a request counts as having it, until it has."""
_COUNTS: Counter[str] = Counter()


def routed_counts() -> dict[str, int]:
    """Requests of this process that were routed, by why: `prefix`, to the replica that knows most
    of the prompt; `balance`, away from it, for it had too many requests; `load`, to the replica
    with the fewest requests, since none knew anything."""
    return {why: _COUNTS[why] for why in ("prefix", "balance", "load")}


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Prefers the replica that knows the longest part of a prompt, as long as it has at most
    `most_ahead` requests more than the replica with the fewest; else the latter."""

    def initialize_state(self, most_ahead: int = 4) -> None:
        """Called by Ray Serve with the arguments of `request_router_kwargs`."""
        self._most_ahead = most_ahead
        self._known: KnownPrefixes[ReplicaID] = KnownPrefixes()
        self._running: dict[str, ReplicaID] = {}
        self._chosen: dict[str, tuple[ReplicaID, float, str]] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas; Ray Serve takes the first that has room."""
        if not candidate_replicas:
            return []
        loads = self._loads()
        blocks = _blocks(pending_request)
        by_load = sorted(candidate_replicas, key=lambda r: loads[r.replica_id])
        ranked, why = by_load, "load"
        if blocks:
            known = {r.replica_id: self._known.known_chars(r.replica_id, blocks) for r in by_load}
            best = max(by_load, key=lambda r: known[r.replica_id])  # of equals the least loaded
            if known[best.replica_id]:
                ahead = loads[best.replica_id] - loads[by_load[0].replica_id]
                why = "prefix" if ahead <= self._most_ahead else "balance"
                if why == "prefix":
                    ranked = [best, *(r for r in by_load if r is not best)]
        if pending_request is not None:
            id_ = pending_request.metadata.internal_request_id
            self._chosen[id_] = ranked[0].replica_id, time.monotonic(), why
        return [[replica] for replica in ranked]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Called when a replica has taken a request."""
        id_ = pending_request.metadata.internal_request_id
        chosen = self._chosen.pop(id_, None)
        if chosen is not None:
            full = chosen[2] == "prefix" and chosen[0] != replica_id
            _COUNTS["balance" if full else chosen[2]] += 1
        self._running[id_] = replica_id
        self._known.note(replica_id, _blocks(pending_request))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called when a request has ended."""
        self._running.pop(internal_request_id, None)
        self._chosen.pop(internal_request_id, None)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called with the replicas that run now."""
        super().update_replicas(replicas)
        there = {replica.replica_id for replica in replicas}
        self._known.keep_only(there)
        self._running = {id_: r for id_, r in self._running.items() if r in there}

    def _loads(self) -> Counter[ReplicaID]:
        """The requests of each replica, those on their way to it included."""
        since = time.monotonic() - _CHOSEN_SECONDS
        self._chosen = {id_: c for id_, c in self._chosen.items() if c[1] > since}
        loads = Counter(self._running.values())
        loads.update(replica for replica, _, _ in self._chosen.values())
        return loads


def _blocks(request: PendingRequest | None) -> list[Block]:
    return [] if request is None else request.kwargs.get("blocks") or []
