"""Bytes and seconds of each choice, from plans of whole contexts.

A plan is made for every type, in which all groups that may have it do; what a weight takes in
memory (mapped or repacked) and how long its products take for a token are read there. The rest
(cache, compute buffers, scratch, other weights) is the same for all choices but for little, so a
choice is planned once more as a whole before it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from weft.backends.cpu.experts import ExpertBufferType
from weft.dtype import DType
from weft.frontends.gguf import GGUFFile
from weft.llm.fitting.choices import Group
from weft.llm.fitting.measured import retyped
from weft.llm.model import Model
from weft.llm.planning.draft_options import DraftOptions, rows_needed
from weft.llm.planning.options import PlanArguments
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare
from weft.records import dataclass
from weft.schedule import Point, Profile
from weft.schedule.timing import TimeModel


@dataclass(frozen=True, slots=True)
class Whole:
    """A context of a model as a whole."""

    nbytes: int
    """Number of bytes in all: weights, cache, compute buffers, scratch of the threads."""
    cache: int
    """Number of bytes of the cache."""
    weights: int
    seconds: float
    """Predicted time of a generated token with a full cache; 0 without a profile."""

    @property
    def tokens_per_second(self) -> float | None:
        """Predicted; None without a profile."""
        return 1 / self.seconds if self.seconds > 0 else None


class Sizes:
    """The memory and time that types of groups take."""

    def __init__(
        self,
        file: GGUFFile,
        groups: Sequence[Group],
        n_ctx: int,
        speeds: Profile | None = None,
        **options: Unpack[PlanArguments],
    ) -> None:
        """Plans a context of `n_ctx` tokens for every type. With `speeds`, times are predicted.

        Raises as `prepare` does, but not for lack of memory."""
        self._file, self._groups, self._n_ctx, self._profile = file, groups, n_ctx, speeds
        self._options = options
        self._nbytes: dict[tuple[str, str], int] = {}
        self._seconds: dict[tuple[str, str], float] = {}
        every = dict.fromkeys(dtype for group in groups for dtype in group.types)
        self._cache = self._other_weights = 0
        fixed = [self._learn(dtype) for dtype in every]
        self.fixed_bytes = min(n for n, _ in fixed)
        """Bytes that belong to no group: the minimum over all plans."""
        self.fixed_seconds = min(s for _, s in fixed)

    def nbytes(self, group: Group, dtype: DType) -> int:
        """Bytes of memory of a group in a type."""
        return self._nbytes[group.name, dtype.name]

    def seconds(self, group: Group, dtype: DType) -> float:
        """Predicted seconds of a group's products for one token; 0 without a profile."""
        return self._seconds[group.name, dtype.name]

    def whole(self, types: Mapping[str, DType], **options: Unpack[PlanArguments]) -> Whole:
        """A context with tensors of these types, by name; `options` go before this object's own."""
        plan = self._plan(types, options)
        return whole_of(plan, self._profile)

    def estimated(self, types: Mapping[str, DType], nbytes: int, seconds: float) -> Whole:
        """The sum of parts for types by group; `nbytes` and `seconds` are what a cache takes beyond
        the cache of the plans."""
        weights = sum(self.nbytes(g, types[g.name]) for g in self._groups)
        times = sum(self.seconds(g, types[g.name]) for g in self._groups)
        if self._profile is not None:
            times += self.fixed_seconds + seconds
        total = self.fixed_bytes + weights + nbytes
        return Whole(total, self._cache + nbytes, weights + self._other_weights, times)

    def _plan(self, types: Mapping[str, DType], options: PlanArguments) -> ContextPlan:
        merged: PlanArguments = {**self._options, **options}
        model = Model(retyped(self._file, types))
        return plan_to_run(model, self._n_ctx, merged)

    def _learn(self, dtype: DType) -> tuple[int, float]:
        """Reads sizes and times of the groups that may have `dtype`; returns the sizes and times of
        the rest."""
        chosen = {g.name: dtype if dtype in g.types else g.types[0] for g in self._groups}
        by_tensor = {n: chosen[g.name] for g in self._groups for n in g.tensors}
        plan = self._plan(by_tensor, PlanArguments())
        nbytes = _leaf_bytes(plan)
        seconds = {} if self._profile is None else _leaf_seconds(plan, self._profile)
        whole = whole_of(plan, self._profile)
        rest, rest_seconds = whole.nbytes, whole.seconds
        self._cache, self._other_weights = whole.cache, whole.weights
        for group in self._groups:
            size = sum(nbytes.get(name, 0) for name in group.tensors)
            time = sum(seconds.get(name, 0.0) for name in group.tensors)
            rest -= size
            self._other_weights -= size
            rest_seconds -= time
            key = group.name, chosen[group.name].name
            self._nbytes[key], self._seconds[key] = size, time
        return rest, rest_seconds


def plan_to_run(model: Model, n_ctx: int, options: PlanArguments) -> ContextPlan:
    """The plan of the context in which `weft run` writes a text, whether or not it fits. Such a
    context has memory for the logits of one text and its drafts, not of a whole ubatch."""
    if model.writes:
        options = {"n_outputs": rows_needed(1, DraftOptions(), model.config), **options}
    return prepare(model, n_ctx=n_ctx, must_fit=False, **options)


def whole_of(plan: ContextPlan, profile: Profile | None = None) -> Whole:
    """The sums of a plan."""
    needs = plan.needs()
    scratch = plan.scratch_bytes()
    weights = sum(n.weights + sum(n.repacked.values()) + n.experts for n in needs)
    seconds = 0.0
    if profile is not None:
        schedule = plan.regimes[0].plan.schedule
        seconds = _times(plan, profile).predict(schedule).total
    return Whole(
        sum(n.total for n in needs) + scratch, sum(n.cache for n in needs), weights, seconds
    )


def _leaf_bytes(plan: ContextPlan) -> dict[str, int]:
    """The bytes of each weight, by name, where the plan puts it."""
    found: dict[str, int] = {}
    leaves = {leaf: None for regime in plan.all_regimes for leaf in regime.graph.leaves}
    for leaf in leaves:
        if leaf.buffer is None or leaf.name not in plan.model.weights:
            continue
        buffer_type = leaf.buffer.type or plan.backends[-1].buffer_type
        layout = plan.plan.layouts.get(leaf)
        if isinstance(layout, ExpertBufferType):
            continue  # an arena of its own, whatever the experts take
        if layout is not None:
            found[leaf.name] = layout.alloc_size(leaf)
        else:
            host = buffer_type.is_host
            found[leaf.name] = leaf.max_bytes if host else buffer_type.alloc_size(leaf)
    return found


def _leaf_seconds(plan: ContextPlan, profile: Profile) -> dict[str, float]:
    """The predicted seconds of the ops that read each weight, for one token."""
    times = _times(plan, profile)
    schedule = plan.regimes[0].plan.schedule
    found: dict[str, float] = {}
    for split in schedule.splits:
        for node in schedule.graph.nodes[split.start : split.end]:
            if node.op.is_view:
                continue
            read = [s.name for s in node.src if s is not None and s.name in plan.model.weights]
            if read:
                found[read[0]] = found.get(read[0], 0.0) + times.node(node, split.backend)
    return found


def _times(plan: ContextPlan, profile: Profile) -> TimeModel:
    """Times of one token with a full cache, on the graph of single tokens."""
    schedule = plan.regimes[0].plan.schedule
    graph = schedule.graph
    values = {s.name: s.max if s.name.startswith("n_kv") else 1 for s in graph.symbols.values()}
    return TimeModel(profile, graph, plan.backends, (Point(values),), "generated token")
