"""`PlannerState`, which one planning call hands to the next."""

from __future__ import annotations

from weft.graph.tensor import Tensor
from weft.schedule.result import Schedule

__all__ = ["PlannerState"]


class PlannerState:
    """The copy in use, user assignments, and the backends of the last plan lists.

    For a driver that plans graph after graph. `begin()` before an allocation moves to the next
    copy; `assigned`, `cur_copy` and `first_backend` are arguments of `schedule`; `record` follows
    it; `backends_changed` says whether a plan for the previous graph has become unusable."""

    __slots__ = (
        "_ids",
        "_previous",
        "assigned",
        "cur_copy",
        "first_backend",
        "is_allocated",
        "n_copies",
        "next_copy",
    )

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
