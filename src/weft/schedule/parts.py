"""The parts of a schedule: splits, roles of entries, predicted times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule.offload import OpOffload


@dataclass(slots=True)
class Split:
    """Consecutive nodes that run on one backend."""

    backend: int
    start: int
    """Index of the first node in `Schedule.graph.nodes`."""
    end: int
    """Index after the last node."""
    inputs: list[Tensor] = field(default_factory=list)
    """Tensors of the graph that must be copied to the backend before this split runs. Copies that
    an earlier split of the same backend made are used again and not listed."""
    nodes: list[Tensor] = field(default_factory=list)
    """The nodes that run, with rewired sources, as `RewritesSplits.optimize` left them."""
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """(source, destination) for each of `inputs`, as final tensors, in order."""

    @property
    def n_ops(self) -> int:
        """The number of ops that run: nodes without views, after ops were fused."""
        return sum(not (node.op.is_view or node.op is NONE) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Role:
    """The role of an entry of the plan lists that is not a tensor of the graph.

    `dep` is a view that keeps `of[0]` allocated until it is copied. `copy` is copy number `copy` of
    `of[0]` on `backend`. `keep` is a node that keeps the tensors `of` allocated until here."""

    kind: str
    of: tuple[Tensor, ...]
    backend: int = -1
    copy: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `schedule`, with which it can be followed step by step."""

    policy: str
    op_offload: OpOffload
    assign: Mapping[Tensor, int]
    """User assignments; with policies `plan` and `layers`, the device of every node."""
    first_backend: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement that the search by predicted time has considered."""

    how: str
    """The way in which it was found."""
    seconds: float
    """The predicted time."""
    nodes: Mapping[str, int]
    """Device name -> number of its nodes that do work."""
    prediction: Prediction | None = None
    """The parts of the time, of the reference's placement and of the best one found."""
    taken: bool = False
    """Whether the schedule has this placement."""
    exact: bool = False
    """Whether it is known that no placement is faster."""

    def to_json(self) -> dict[str, Any]:
        """Plain data: the fields, the prediction as `Prediction.to_json` has it."""
        parts = None if self.prediction is None else self.prediction.to_json()
        return {
            "how": self.how, "seconds": self.seconds, "nodes": dict(self.nodes),
            "prediction": parts, "taken": self.taken, "exact": self.exact,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prediction:
    """The times that a model predicts for a schedule, in seconds."""

    nodes: float
    """Seconds of computing, launches included."""
    copies: float
    """Seconds of moving split inputs between memories."""
    splits: float
    """Seconds to start splits."""
    by_device: dict[str, float] = field(default_factory=dict)
    """Device name -> seconds of its nodes."""
    what: str = "pass"
    """A word for the work that takes `total` seconds."""

    @property
    def total(self) -> float:
        """The sum in seconds; devices take turns, since each split needs the one before."""
        return self.nodes + self.copies + self.splits

    def plus(self, other: Prediction, what: str) -> Prediction:
        """The prediction for both, one after the other, under the name `what`."""
        by_device = dict(self.by_device)
        for name, seconds in other.by_device.items():
            by_device[name] = by_device.get(name, 0.0) + seconds
        return Prediction(
            self.nodes + other.nodes, self.copies + other.copies, self.splits + other.splits,
            by_device, what,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain data: `of` (the name of the work), `seconds`, and its parts."""
        return {
            "of": self.what,
            "seconds": self.total,
            "nodes": self.nodes,
            "copies": self.copies,
            "splits": self.splits,
            "by_device": self.by_device,
        }
