"""`Schedule`: the placement of a graph, its splits, and the node list that memory is planned on."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from weft.backends.base import Backend
from weft.graph.graph import Graph
from weft.graph.rewrite import Rewritten
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule import describe, explain
from weft.schedule.cause import Cause
from weft.schedule.parts import Asked, Candidate, Prediction, Role, Split

__all__ = ["Asked", "Candidate", "PlannerState", "Prediction", "Role", "Schedule", "Split"]


@dataclass(slots=True)
class Schedule:
    """The result of `schedule`. Graph tensors are never changed: nodes whose sources became copies
    (and whatever depends on them) exist a second time, as *final* tensors."""

    graph: Graph
    backends: tuple[Backend, ...]
    n_copies: int
    cur_copy: int
    backend_of: dict[Tensor, int]
    """Backend of each tensor of the graph; -1 or absent: never assigned."""
    cause_of: dict[Tensor, Cause]
    """The cause of each tensor's backend."""
    refusals: dict[tuple[Tensor, int], str]
    """(node, backend) -> the sentence with which the backend refused the node."""
    splits: list[Split] = field(default_factory=list)
    copies: dict[tuple[Tensor, int, int], Tensor] = field(default_factory=dict)
    """(tensor, backend, copy number) -> the copy. With several copies, an input's current copy on
    its own backend is the input itself."""
    rewired: dict[tuple[Tensor, int], Tensor] = field(default_factory=dict)
    """(node, index of source) -> the copy that the node reads instead."""
    graph_inputs: list[Tensor] = field(default_factory=list)
    """Leaves that are inputs; only with more than one copy."""
    final: dict[Tensor, Tensor] = field(default_factory=dict)
    """Tensor of the graph -> the tensor that stands for it in the plan lists; absent: itself."""
    origin: dict[Tensor, Tensor] = field(default_factory=dict)
    """The inverse of `final`."""
    plan_nodes: list[Tensor] = field(default_factory=list)
    """The graph that is allocated: per split its inputs (a `dep` view, then the copy), then its
    nodes, each followed by its `keep` nodes."""
    plan_node_backends: list[int] = field(default_factory=list)
    plan_leaves: list[Tensor] = field(default_factory=list)
    """With several copies: every copy of every input and split input; then the graph's leaves."""
    plan_leaf_backends: list[int] = field(default_factory=list)
    roles: dict[Tensor, Role] = field(default_factory=dict)
    """Role of each entry of the plan lists that does not stand for a tensor of the graph."""
    keep: dict[Tensor, list[Tensor]] = field(default_factory=dict)
    """Node -> tensors that must stay allocated until its backend has run it."""
    graph_size: int = 0
    """Upper bound of the plan lists' length, as the reference computes it."""
    notes: dict[Tensor, str] = field(default_factory=dict)
    """Node -> remarks of the policy beside the cause, such as times on other devices."""
    added: dict[Tensor, Tensor] = field(default_factory=dict)
    """Node that a device adds, such as one that quantizes -> the first node that reads it."""
    rewritten: list[Rewritten] = field(default_factory=list)
    """The rewrites that were applied, in order, for devices that have kernels for them."""
    generalized: list[tuple[str, str]] = field(default_factory=list)
    """The op of each node that a device runs in general form, and the op of that form."""
    predicted: Prediction | None = None
    """Under `policy="cost"`, the time that its profile predicts."""
    tried: tuple[Candidate, ...] = ()
    """Under `policy="cost"`, the placements that were considered, the one by rules first."""
    asked: Asked | None = None
    """The arguments of `schedule`; None: another function made this."""

    @property
    def final_nodes(self) -> list[Tensor]:
        """Every node that runs, in order (views included)."""
        return [node for split in self.splits for node in split.nodes]

    def final_of(self, tensor: Tensor) -> Tensor:
        """The final tensor that stands for a tensor of the graph."""
        return self.final.get(tensor, tensor)

    def backend_for(self, tensor: Tensor) -> Backend | None:
        """The backend of a tensor of the graph, None where it has none."""
        index = self.backend_of.get(tensor, -1)
        return None if index < 0 else self.backends[index]

    def explain(self, width: int | None = None) -> str:
        """The placement as a text table: splits, then each node's device and cause in words.

        Lines longer than `width` are broken."""
        return explain.table(self, width)

    def why(self, name: str) -> str:
        """Everything known about the tensor called `name`; raises ScheduleError for an unknown
        name."""
        return explain.why(self, name)

    def to_json(self) -> dict[str, Any]:
        """The placement as plain data, with the keys of `weft.schedule.describe.to_json`."""
        return describe.to_json(self)


class PlannerState:
    """The copy in use, user assignments, and the backends of the last plan lists.

    For a driver that plans graph after graph. `begin()` before an allocation moves to the next
    copy; `assigned`, `cur_copy` and `first_backend` are arguments of `schedule`; `record` follows
    it; `backends_changed` says whether a plan for the previous graph has become unusable."""

    def __init__(self, n_copies: int = 1) -> None:
        self.n_copies = n_copies
        self.assigned: dict[Tensor, int] = {}
        """User assignments, until `reset` drops them."""
        self.cur_copy = 0
        self.next_copy = 0
        self.is_allocated = False
        self.first_backend = 0
        """Backend of the first split planned last; a graph of views only runs there."""
        # (node backends, leaf backends): two pairs that swap with every plan. Entries beyond the
        # end of a shorter graph stay, as in the reference.
        self._ids: tuple[list[int], list[int]] = ([], [])
        self._previous: tuple[list[int], list[int]] = ([], [])

    def reset(self) -> None:
        """Drops user assignments, because the next graph is a new one."""
        self.assigned.clear()
        self.is_allocated = False

    def synchronize(self) -> None:
        """Notes that all devices are idle; without an allocated graph the copies start from 0
        again."""
        if not self.is_allocated:
            self.next_copy = 0

    def begin(self) -> int:
        """Moves on to the next copy, for a graph that will be allocated; returns its number."""
        self.cur_copy = self.next_copy
        self.next_copy = (self.next_copy + 1) % self.n_copies
        return self.cur_copy

    def record(self, schedule: Schedule) -> None:
        """Notes the backends of the last schedule."""
        self.first_backend = schedule.splits[0].backend
        self._ids, self._previous = self._previous, self._ids
        for ids, new in zip(
            self._ids, (schedule.plan_node_backends, schedule.plan_leaf_backends), strict=True
        ):
            ids[: len(new)] = new

    def backends_changed(self, schedule: Schedule) -> bool:
        """Whether an entry of the plan lists is in memory of another type than the entry with the
        same number in the schedule recorded before."""
        types = [b.buffer_type for b in schedule.backends]
        now = (schedule.plan_node_backends, schedule.plan_leaf_backends)
        for ids, before in zip(now, self._previous, strict=True):
            for i, b in enumerate(ids):
                old = before[i] if i < len(before) else 0
                if b != old and types[b] is not types[old]:
                    return True
        return False
