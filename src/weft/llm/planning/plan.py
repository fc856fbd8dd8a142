"""`ContextPlan`: a context before any of it has memory.

It says which device has which layer, where each node runs, and how much of each memory is needed. A
`Context` is made from a plan, `weft explain` prints one, and `fitted` and `by_time` try several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from weft.allocate import Arena
from weft.backends.base import Backend
from weft.backends.memory import AdoptsMemory
from weft.compiler import Plan, plan_graph, repacked
from weft.graph import Graph
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache
from weft.llm.compute.ubatches import Together, together_sizes
from weft.llm.model import Model
from weft.llm.planning.offload import Homes, homes_by_layer, keep_what_runs
from weft.llm.planning.options import ContextOptions, Placement
from weft.llm.planning.regime import RegimePlan, bounds, plan_regimes
from weft.llm.planning.saved_plan import SavedPlan, leaf_rows
from weft.schedule import CostOptions, Point, Schedule
from weft.schedule.parts import Prediction

__all__ = ["ContextPlan", "MemoryNeed", "Request"]

GENERATED = 128
"""Number of generated tokens in a predicted time; the prompt is one ubatch."""


@dataclass(slots=True)
class MemoryNeed:
    """The bytes that a plan needs in one memory."""

    memory: str
    """Name of the memory."""
    devices: tuple[str, ...]
    """Devices that compute in this memory."""
    is_host: bool
    shares: bool = False
    """True if the device uses weights where they are in host memory."""
    weights: int = 0
    cache: int = 0
    compute: int = 0
    lower_bound: int = 0
    """Bytes of `compute` that are in use at the peak; no plan needs fewer."""
    copies: int = 0
    """Compute memory of the other ubatches that run at the same time."""
    repacked: dict[str, int] = field(default_factory=dict)
    """Weights that are repacked on loading, by the name of their memory; not in `weights`."""

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.weights + sum(self.repacked.values()) + self.cache + self.compute + self.copies


@dataclass(slots=True)
class ContextPlan:
    """The plan of a context."""

    model: Model
    """The model; its leaves have the buffer types of their future homes."""
    options: ContextOptions
    backends: Sequence[Backend]
    homes: Homes
    cache: KVCache
    """The cache, without memory."""
    regimes: list[RegimePlan]
    """A plan for each range of batch sizes that is placed in its own way; the largest last."""
    graphs_built: int
    together: RegimePlan | None = None
    """For recurrent models, the plan for several sequences at once."""
    rewrites: Sequence[str] | None = None
    """Names of the fusions to use; None: the default."""
    predicted: Prediction | None = None
    """With a machine profile: the time of a prompt and of the tokens generated after it."""

    @property
    def plan(self) -> Plan:
        """The plan of the largest batches."""
        return self.regimes[-1].plan

    @property
    def n_copies(self) -> int:
        """Number of ubatches of the largest size that run at the same time. It is 1 if there is a
        single split, which cannot overlap, and if sliding-window layers have their own cells, which
        the host manages between ubatches."""
        several = len(self.plan.schedule.splits) > 1
        return self.options.n_copies if several and self.cache.window is None else 1

    @property
    def all_regimes(self) -> list[RegimePlan]:
        """All regimes, the largest last."""
        return [*([self.together] if self.together else []), *self.regimes]

    def needs(self) -> list[MemoryNeed]:
        """The bytes needed in each memory, in the order of the devices."""
        by_type: dict[int, MemoryNeed] = {}

        def need(buffer_type: Any) -> MemoryNeed:
            if id(buffer_type) not in by_type:
                names = tuple(b.name for b in self.backends if b.buffer_type is buffer_type)
                shares = isinstance(buffer_type, AdoptsMemory) and buffer_type.shares
                by_type[id(buffer_type)] = MemoryNeed(
                    buffer_type.name, names, buffer_type.is_host, shares
                )
            return by_type[id(buffer_type)]

        for backend in self.backends:
            need(backend.buffer_type)
        leaves = {leaf: None for regime in self.all_regimes for leaf in regime.graph.leaves}
        for leaf in leaves:
            if leaf.buffer is None:
                continue
            buffer_type = leaf.buffer.type or self.backends[-1].buffer_type
            size = leaf.max_bytes if buffer_type.is_host else buffer_type.alloc_size(leaf)
            layout = self.plan.layouts.get(leaf)
            if layout is not None:
                repacked = need(buffer_type).repacked
                repacked[layout.name] = repacked.get(layout.name, 0) + layout.alloc_size(leaf)
            elif leaf.name in self.model.weights:
                need(buffer_type).weights += size
            else:
                need(buffer_type).cache += size
        arenas: dict[int, list[Arena]] = {}
        for regime in self.all_regimes:
            for arena in regime.plan.allocation.arenas:
                arenas.setdefault(id(arena.buffer_type), []).append(arena)
        for of_type in arenas.values():
            one = need(of_type[0].buffer_type)
            one.compute = _shared(of_type)
            one.lower_bound = max(a.lower_bound for a in of_type)
        for arena in self.plan.allocation.arenas:
            need(arena.buffer_type).copies += (self.n_copies - 1) * arena.size
        return list(by_type.values())

    def memory_rows(self) -> list[dict[str, Any]]:
        """A row for each kind of buffer (weights, cache, compute, copies) in each memory, with the
        keys `buffer`, `memory`, `bytes` and `about`; `compute` also has `lower_bound`."""
        rows: list[dict[str, Any]] = []
        for need in self.needs():
            mapped = _about_weights(need)
            for buffer, size, about in (
                ("weights", need.weights, mapped),
                ("cache", need.cache, "allocated once, kept between runs"),
                ("compute", need.compute, "shared by the plans of all batch sizes"),
                ("copies", need.copies, "compute memory of ubatches that run beside the first"),
            ):
                if size:
                    rows.append(
                        {"buffer": buffer, "memory": need.memory, "bytes": size, "about": about}
                    )
                    if buffer == "compute":
                        rows[-1]["lower_bound"] = need.lower_bound
            for memory, size in need.repacked.items():
                about = "repacked from the file at load"
                rows.append({"buffer": "weights", "memory": memory, "bytes": size, "about": about})
        return rows

    def to_json(self) -> dict[str, Any]:
        """The whole plan as `SavedPlan` reads it: that of the largest batches, with the plans of
        smaller ones under `smaller`."""
        names = [b.name for b in self.backends]
        homes = {name: names[b] for name, b in self.homes.weights.items()}
        caches = {
            leaf: names[b] for il, b in enumerate(self.homes.caches) for leaf in self._kept(il)
        }
        data = self.plan.to_json() | {
            "max_tokens": self.regimes[-1].max_tokens,
            "smaller": [
                {"max_tokens": regime.max_tokens} | regime.plan.to_json()
                for regime in self.regimes[:-1]
            ],
            "together": self.together and self.together.plan.to_json(),
            "model": {
                "architecture": self.model.config.arch,
                "file": self.model.file.path.name,
                "layers": self.model.config.n_layer,
            },
            "options": asdict(self.options),
            "n_gpu_layers": self.homes.n_gpu_layers,
            "kept": dict(self.homes.kept),
            "weights": leaf_rows(self.model.weights.values(), homes),
            "caches": leaf_rows(caches, {leaf.name: name for leaf, name in caches.items()}),
            "memory": self.memory_rows(),
        }
        if self.predicted is not None:
            data["predicted"] = self.predicted.to_json()
        return data

    def _kept(self, il: int) -> list[Tensor]:
        return [leaf for leaf in self.cache.leaves(il) if leaf.max_bytes]


def _shared(arenas: Sequence[Arena]) -> int:
    """Bytes of the blocks of arenas that several plans share."""
    blocks: dict[int, int] = {}
    for arena in arenas:
        for number, size in enumerate(arena.chunks):
            blocks[number] = max(size, blocks.get(number, 0))
    return sum(blocks.values())


@dataclass(frozen=True)
class Request:
    """Everything that a plan is made from."""

    model: Model
    options: ContextOptions
    backends: Sequence[Backend]
    placement: Placement
    rewrites: Sequence[str] | None = None
    """Fusions to use; None: what WEFT_REWRITES says, or all."""

    @cached_property
    def cost(self) -> CostOptions | None:
        """The workload whose time is predicted: a prompt of one ubatch and the tokens generated
        after it, with a full cache. None: there is no profile."""
        if self.placement.profile is None:
            return None
        points = (self._point(self.options.n_ubatch), self._point(1, GENERATED))
        what = f"prompt of {self.options.n_ubatch} tokens and {GENERATED} generated"
        return CostOptions(self.placement.profile, points, what)

    @property
    def together(self) -> Together | None:
        """The sizes of the graph for several sequences at once; None: the model needs none."""
        if self.model.config.recurrent is None:
            return None
        return together_sizes(self.options.n_ubatch, self.options.n_seq_max)

    def _point(self, n_tokens: int, passes: float = 1.0) -> Point:
        values = {"n_tokens": n_tokens, "n_kv": self.options.n_ctx, "n_outputs": 1}
        if self.together is not None:
            values |= {"n_seqs": self.together.n_seqs, "n_seq_tokens": self.together.n_each}
        window_size = self.options.window_size(self.model.config)
        if window_size:
            values["n_kv_window"] = window_size
        return Point(values, passes)

    def cost_of(self, max_tokens: int) -> CostOptions | None:
        """The workload of one range of batch sizes; None: there is no profile."""
        profile = self.placement.profile
        if profile is None:
            return None
        if max_tokens == 1:
            tokens = self._point(1, GENERATED)
            return CostOptions(profile, (tokens,), f"{GENERATED} generated tokens")
        return CostOptions(profile, (self._point(max_tokens),), f"batch of {max_tokens} tokens")

    def homes(self, n_gpu_layers: int | Mapping[int, int] | None) -> Homes:
        """Homes by number of layers and by glob; see `homes_by_layer`."""
        homes = homes_by_layer(
            self.model.weights,
            self.model.config.n_layer,
            self.backends,
            n_gpu_layers,
            self.placement.place,
        )
        if not self.placement.offload_kv:
            homes.caches = [len(self.backends) - 1] * self.model.config.n_layer
        return homes

    def draft(self, homes: Homes, n_tokens: Sequence[int]) -> Draft:
        """Puts leaves into their homes and builds a graph for each number of tokens."""
        options = self.options
        types = {name: self.backends[b].buffer_type for name, b in homes.weights.items()}
        placed = self.model.placed(types)
        cache = KVCache(
            self.model.config,
            options.n_ctx,
            n_seq_max=options.n_seq_max,
            type_k=options.type_k,
            type_v=options.type_v,
            buffer_type=[self.backends[b].buffer_type for b in homes.caches],
            allocate=False,
            window_size=options.window_size(self.model.config),
        )

        def build(n: int, together: Together | None = None) -> Graph:
            return placed.build(
                cache,
                n_ubatch=n,
                n_outputs=min(n, options.n_outputs),
                flash=options.flash,
                embeddings=options.embeddings,
                together=together,
            )

        sizes = self.together if n_tokens else None
        several = build(sizes.n_seqs * sizes.n_each, sizes) if sizes else None
        return Draft(placed, cache, {n: build(n) for n in n_tokens}, several)

    def planned(self, homes: Homes, *, by_time: bool = False) -> ContextPlan:
        """Plans with weights and caches in `homes`, except for those that no device can use there.

        With `by_time`, nodes are placed by predicted time, else by the reference's rules."""
        draft = self.draft(homes, bounds(self.options.n_ubatch, len(self.backends)))
        layers = [draft.cache.leaves(il) for il in range(self.model.config.n_layer)]
        keep_what_runs(homes, draft.all_graphs, layers, self.backends)

        def plan(max_tokens: int, graph: Graph) -> Plan:
            cost = self.cost_of(max_tokens) if by_time else None
            planned = plan_graph(
                graph,
                self.backends,
                policy="cost" if cost else "ggml",
                cost=cost,
                rewrites=self.rewrites,
            )
            self._predict(planned.schedule, max_tokens)
            return planned

        regimes = plan_regimes(draft.graphs, plan)
        together = None
        if draft.together is not None:
            n = self._most_together
            together = RegimePlan(n, draft.together, plan(n, draft.together))
        return self._finished(homes, draft, regimes, together)

    def as_saved(self, saved: SavedPlan) -> ContextPlan:
        """Plans as a plan file says. Raises FormatError if it is for another model or devices."""
        saved.check_devices(self.backends)
        n_layer = self.model.config.n_layer
        homes = Homes(*saved.homes(self.model.weights, n_layer, self.backends))
        homes.n_gpu_layers = None
        draft = self.draft(homes, saved.max_tokens(self.options.n_ubatch))
        saved.check_caches([t for il in range(n_layer) for t in draft.cache.leaves(il)])

        def plan(max_tokens: int | None, graph: Graph) -> Plan:
            assign = saved.node_devices(max_tokens, graph, self.backends)
            return plan_graph(
                graph, self.backends, policy="plan", assign=assign, rewrites=self.rewrites
            )

        regimes: list[RegimePlan] = []
        for max_tokens, graph in draft.graphs.items():
            regimes.insert(0, RegimePlan(max_tokens, graph, plan(max_tokens, graph)))
            self._predict(regimes[0].plan.schedule, max_tokens)
        schedules: dict[int | None, Schedule] = {r.max_tokens: r.plan.schedule for r in regimes}
        together = None
        if draft.together is not None:
            together = RegimePlan(self._most_together, draft.together, plan(None, draft.together))
            schedules[None] = together.plan.schedule
        result = self._finished(homes, draft, regimes, together)
        saved.check_memory(schedules, {n.memory: n.compute for n in result.needs()})
        return result

    @property
    def _most_together(self) -> int:
        assert self.together is not None
        return self.together.n_seqs * self.together.n_each

    def _finished(
        self,
        homes: Homes,
        draft: Draft,
        regimes: list[RegimePlan],
        together: RegimePlan | None,
    ) -> ContextPlan:
        predicted = None
        if self.cost is not None:
            prompt = self._prediction(regimes[-1].plan.schedule, self.cost.points[0])
            token = self._prediction(regimes[0].plan.schedule, self.cost.points[1])
            predicted = prompt.plus(token, self.cost.what)
        if self.options.repack:
            every = [*regimes, together] if together else regimes
            plans = repacked([regime.plan for regime in every])
            every = [replace(r, plan=plan) for r, plan in zip(every, plans, strict=True)]
            regimes, together = every[: len(regimes)], every[-1] if together else None
        return ContextPlan(
            draft.model, self.options, self.backends, homes, draft.cache, regimes,
            len(draft.all_graphs), together, self.rewrites, predicted,
        )  # fmt: skip

    def _predict(self, schedule: Schedule, max_tokens: int) -> None:
        cost = self.cost_of(max_tokens)
        if cost is not None:
            schedule.predicted = cost.model(schedule.graph, self.backends).predict(schedule)

    def _prediction(self, schedule: Schedule, point: Point) -> Prediction:
        assert self.placement.profile is not None
        cost = CostOptions(self.placement.profile, (point,))
        return cost.model(schedule.graph, self.backends).predict(schedule)


@dataclass(frozen=True, slots=True)
class Draft:
    """Leaves in their homes, and the graphs that use them."""

    model: Model
    cache: KVCache
    graphs: dict[int, Graph]
    """Graphs by their most tokens, the largest first."""
    together: Graph | None = None
    """The graph for several sequences at once."""

    @property
    def all_graphs(self) -> list[Graph]:
        """All graphs, that for several sequences included."""
        return [*self.graphs.values(), *([self.together] if self.together else [])]


def _about_weights(need: MemoryNeed) -> str:
    if need.is_host:
        return "mapped from the file"
    return "used where the file is mapped" if need.shares else "sent to the device at load"
