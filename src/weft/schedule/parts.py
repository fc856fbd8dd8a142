"""The pieces that a schedule is made of: splits, roles of entries, predicted times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft.graph.tensor import Tensor

__all__ = ["Prediction", "Role", "Split"]


@dataclass(slots=True)
class Split:
    """Consecutive nodes that run on one backend."""

    backend: int
    start: int
    """Index of the first node in `Schedule.graph.nodes`."""
    end: int
    """Index after the last node."""
    inputs: list[Tensor] = field(default_factory=list)
    """Tensors of the graph that must be copied to the backend before this split runs. A copy that
    an earlier split of the same backend made is used again and not listed."""
    nodes: list[Tensor] = field(default_factory=list)
    """What runs, sources rewired; as `RewritesSplits.optimize` left it."""
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """(source, destination) for each of `inputs`, as final tensors, in order."""


@dataclass(frozen=True, slots=True)
class Role:
    """What an entry of the plan lists is when it is not a tensor of the graph.

    `dep`: a view that keeps `of[0]` allocated until it is copied. `copy`: copy number `copy` of
    `of[0]` on `backend`. `keep`: a node that keeps the tensors `of` allocated until here."""

    kind: str
    of: tuple[Tensor, ...]
    backend: int = -1
    copy: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a time model says of a schedule, in seconds."""

    nodes: float
    """Computing, launches included."""
    copies: float
    """Moving split inputs between memories."""
    splits: float
    """Starting splits."""
    by_device: dict[str, float] = field(default_factory=dict)
    """Device name -> seconds of its nodes."""
    what: str = "pass"
    """What takes that long."""

    @property
    def total(self) -> float:
        """All of it; devices take turns, since each split needs the one before."""
        return self.nodes + self.copies + self.splits

    def plus(self, other: Prediction, what: str) -> Prediction:
        """Both, one after the other."""
        by_device = dict(self.by_device)
        for name, seconds in other.by_device.items():
            by_device[name] = by_device.get(name, 0.0) + seconds
        return Prediction(
            self.nodes + other.nodes, self.copies + other.copies, self.splits + other.splits,
            by_device, what,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain data: `of` (what takes that long), `seconds`, and its parts."""
        return {
            "of": self.what,
            "seconds": self.total,
            "nodes": self.nodes,
            "copies": self.copies,
            "splits": self.splits,
            "by_device": self.by_device,
        }
