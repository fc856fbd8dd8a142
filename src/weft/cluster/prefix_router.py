"""The request router of Ray Serve that prefers the replica with the longest prefix of a prompt.

Ray Serve sends this module, as source of its own, to every process that sends requests, so it holds
nothing; `routing.py` does. The requests carry the blocks of their prompts (`prefixes.py`) as the
keyword argument `blocks`.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from weft.cluster.prefixes import Block
from weft.cluster.routing import Routing


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Gives each request to the replica that `Routing` puts first and that has room."""

    def initialize_state(self, most_ahead: int = 4) -> None:
        """Called by Ray Serve with the arguments of `request_router_kwargs`; see `Routing`."""
        self._routing: Routing[ReplicaID] = Routing(most_ahead)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas; Ray Serve takes the first that has room."""
        if not candidate_replicas or pending_request is None:
            return [[replica] for replica in candidate_replicas]
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        id_ = pending_request.metadata.internal_request_id
        ranked = self._routing.ranked(id_, list(by_id), _blocks(pending_request))
        return [[by_id[one]] for one in ranked]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Called when a replica has taken a request."""
        id_ = pending_request.metadata.internal_request_id
        self._routing.routed(id_, replica_id, _blocks(pending_request))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called when a request has ended."""
        self._routing.ended(internal_request_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called with the replicas that run now."""
        super().update_replicas(replicas)
        self._routing.keep_only({replica.replica_id for replica in replicas})


def _blocks(request: PendingRequest) -> list[Block]:
    return request.kwargs.get("blocks") or []
