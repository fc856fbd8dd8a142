"""`ContextPlan`: a context before any of it has memory.

It says which device has which layer, where each node runs, and how much of each memory is needed. A
`Context` is made from a plan, `weft explain` prints one, and `prepare` may try several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from html import escape
from typing import Any

from weft.allocate import Arena, GraphAllocator
from weft.backends.base import Backend
from weft.backends.cpu.experts import ExpertArena, ExpertBufferType
from weft.backends.memory import AdoptsMemory, in_host
from weft.compiler import Plan, lower_plan
from weft.errors import AllocationError
from weft.graph import Graph
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache, tables_of
from weft.llm.model import Model
from weft.llm.planning.context_options import ContextOptions
from weft.llm.planning.offload import Homes
from weft.llm.planning.options import PlanArguments
from weft.llm.planning.saved_plan import leaf_rows
from weft.notebook import in_notebook
from weft.records import dataclass
from weft.schedule.offload import OpOffload
from weft.schedule.parts import Candidate, Prediction
from weft.schedule.profile import Profile
from weft.tables import html_table

BOUNDS = (1, 31)
"""Maximum number of tokens of each regime but the last. As in ggml, devices that need big batches
take them from 32 tokens on."""


@dataclass(frozen=True, slots=True)
class RegimePlan:
    """The graph and the plan of a regime, a range of batch sizes up to `max_tokens` tokens.

    Which ops a device takes may depend on the batch: some devices take products only from some size
    on, or only if enough tokens share the transfer of a weight. A plan for the largest ubatch would
    place a single token badly. So a context plans each range once, when it is created; all regimes
    share the same arenas.

        tokens   1        2 .. 31          32 .. n_ubatch
        plan     tg       small batches    pp"""

    max_tokens: int
    graph: Graph
    plan: Plan


def bounds(n_ubatch: int, n_devices: int, least_batches: Iterable[int] = ()) -> list[int]:
    """The most tokens of each regime, the largest first. A single device takes all batch sizes, so
    it has one regime; its kernels adapt to the batch at run time. `least_batches` are further
    numbers of tokens at which a regime begins."""
    every = {*BOUNDS, *(least - 1 for least in least_batches)}
    smaller = sorted({b for b in every if 0 < b < n_ubatch}, reverse=True) if n_devices > 1 else []
    return [n_ubatch, *smaller]


def plan_regimes(
    graphs: Mapping[int, Graph], plan: Callable[[int, Graph], Plan]
) -> list[RegimePlan]:
    """Plans `graphs`, which are given by their most tokens, the largest first.

    Returns the regimes with the smallest first, leaving out those that would be placed like the
    next larger one."""
    regimes: list[RegimePlan] = []
    for max_tokens, graph in graphs.items():
        regime = RegimePlan(max_tokens, graph, plan(max_tokens, graph))
        if not regimes or _placement(regime.plan) != _placement(regimes[0].plan):
            regimes.insert(0, regime)
    return regimes


def _placement(plan: Plan) -> list[tuple[int, list[str], list[str]]]:
    return [
        (
            split.backend,
            [t.name for t in split.inputs],
            [node.op.name for node in split.nodes if not node.op.is_view],
        )
        for split in plan.schedule.splits
    ]


@dataclass(slots=True)
class MemoryNeed:
    """The bytes that a plan needs in one memory."""

    memory: str
    devices: tuple[str, ...]
    is_host: bool
    shares: bool = False
    """True if the device uses weights where they are in host memory."""
    in_host: bool = False
    """True for the memory of a device that is a part of the host's."""
    weights: int = 0
    cache: int = 0
    compute: int = 0
    lower_bound: int = 0
    """Bytes of `compute` in use at the peak; no plan needs fewer."""
    copies: int = 0
    """Compute memory of the other ubatches that run at the same time."""
    repacked: dict[str, int] = field(default_factory=dict)
    """Weights that are repacked on loading, by the name of their memory; not in `weights`."""
    experts: int = 0
    tower_weights: int = 0
    towers: int = 0
    """Compute memory of towers for images and sound."""

    @property
    def in_pool(self) -> bool:
        """True for memories that are the host's, or a part of it."""
        return self.is_host or self.in_host

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        weights = self.weights + sum(self.repacked.values()) + self.experts + self.tower_weights
        return weights + self.cache + self.compute + self.copies + self.towers


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
    """For recurrent models, the plan for several sequences at once; for a model with an
    encoder, the plan of the encoder."""
    rewrites: Sequence[str] | None = None
    """Names of the fusions to use; None: the default."""
    predicted: Prediction | None = None
    """With a machine profile: the time of a prompt and of the tokens generated after it."""
    experts: ExpertArena | None = None
    """The experts in memory, where there is a budget for them."""
    op_offload: OpOffload = OpOffload()
    """Which devices take ops whose weights are in host memory."""
    rooms: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each memory whose limit is known, the bytes of the plan that count and the limit, as they
    were when it was planned."""
    beside: Sequence[ContextPlan] = ()
    """The plans of models that draft for this one, for which there must be memory, too."""
    profile: Profile | None = None
    """The speeds of the machine, where the caller gave them."""
    considered: tuple[Candidate, ...] = ()
    """Under `policy="cost"`, the plans with different homes among which this one is the fastest."""
    again: Callable[[int, PlanArguments], ContextPlan] | None = None
    """Plans the same model on the same devices with another `n_ctx` and other options, without
    places in memory (`memory="bound"`) and whether or not it fits. None: the placement depends on
    the sizes."""

    @property
    def plan(self) -> Plan:
        """The plan of the largest batches."""
        return self.regimes[-1].plan

    @property
    def n_copies(self) -> int:
        """Number of ubatches of the largest size that run at the same time. It is 1 if there is a
        single split, which cannot overlap, and if sliding-window layers or compressed keys have
        their own cells, which the host manages between ubatches."""
        several = len(self.plan.schedule.splits) > 1
        return self.options.n_copies if several and len(tables_of(self.cache)) == 1 else 1

    @property
    def all_regimes(self) -> list[RegimePlan]:
        """All regimes, the largest last."""
        return [*([self.together] if self.together else []), *self.regimes]

    def scratch_bytes(self) -> int:
        """Bytes of the kernels' scratch, which all graphs of the plan share."""
        return max(lower_plan(regime.plan).work_bytes for regime in self.all_regimes)

    def without_growth(self) -> ContextPlan:
        """The plan with weights left in the file where repacked ones would take more memory; this
        plan itself if there are none."""
        kept = {
            leaf: to
            for leaf, to in self.plan.layouts.items()
            if isinstance(to, ExpertBufferType) or to.alloc_size(leaf) <= leaf.max_bytes
        }
        if len(kept) == len(self.plan.layouts):
            return self

        def smaller(regime: RegimePlan) -> RegimePlan:
            return replace(regime, plan=replace(regime.plan, layouts=kept))

        together = None if self.together is None else smaller(self.together)
        return replace(self, regimes=[smaller(r) for r in self.regimes], together=together)

    def needs(self) -> list[MemoryNeed]:
        """The bytes needed in each memory, in the order of the devices."""
        by_type: dict[int, MemoryNeed] = {}

        def need(buffer_type: Any) -> MemoryNeed:
            if id(buffer_type) not in by_type:
                names = tuple(b.name for b in self.backends if b.buffer_type is buffer_type)
                shares = isinstance(buffer_type, AdoptsMemory) and buffer_type.shares
                by_type[id(buffer_type)] = MemoryNeed(
                    buffer_type.name, names, buffer_type.is_host, shares, in_host(buffer_type)
                )
            return by_type[id(buffer_type)]

        for backend in self.backends:
            need(backend.buffer_type)
        leaves = {leaf: None for regime in self.all_regimes for leaf in regime.graph.leaves}
        lent = self.cache.lent
        for leaf in leaves:
            if leaf.buffer is None or leaf in lent:
                continue
            buffer_type = leaf.buffer.type or self.backends[-1].buffer_type
            size = leaf.max_bytes if buffer_type.is_host else buffer_type.alloc_size(leaf)
            layout = self.plan.layouts.get(leaf)
            if isinstance(layout, ExpertBufferType):
                need(buffer_type).experts = layout.arena.nbytes
            elif layout is not None:
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
        for tower in self.model.towers:
            for weight in tower.weights.values():
                need(self.backends[-1].buffer_type).tower_weights += weight.max_bytes
            for arena in tower.planned(self.backends, self.op_offload).allocation.arenas:
                need(arena.buffer_type).towers += arena.size
        return list(by_type.values())

    def reference_compute(self) -> dict[str, int]:
        """Memory -> bytes that ggml's allocator takes for these graphs, the largest batches first,
        as llama.cpp reserves them. Empty where places are not planned."""
        if any(arena.planner == "bound" for arena in self.plan.allocation.arenas):
            return {}
        types = [backend.buffer_type for backend in self.backends]
        planner = GraphAllocator(types)
        try:
            for regime in reversed(self.all_regimes):
                planner.reserve(regime.plan.schedule)
        except AllocationError:  # an op of weft's own that it cannot plan
            return {}
        sizes = zip(types, planner.sizes, strict=True)
        return {buffer_type.name: size for buffer_type, size in sizes if size}

    def memory_rows(self) -> list[dict[str, Any]]:
        """A row for each kind of buffer (weights, cache, compute, copies) in each memory, with the
        keys `buffer`, `memory`, `bytes` and `about`; `compute` also has `lower_bound`, and `ggml`,
        the bytes that ggml's allocator takes."""
        rows: list[dict[str, Any]] = []
        reference = self.reference_compute()
        for need in self.needs():
            mapped = _about_weights(need)
            for buffer, size, about in (
                ("weights", need.weights, mapped),
                ("cache", need.cache, "allocated once, kept between runs" + self._about_heads()),
                ("compute", need.compute, "shared by the plans of all batch sizes"),
                ("copies", need.copies, "compute memory of ubatches that run beside the first"),
                ("tower weights", need.tower_weights, "of images and sound, mapped from the file"),
                (
                    "towers",
                    need.towers,
                    "compute memory of towers, from the first image or sound on",
                ),
            ):
                if size:
                    rows.append(
                        {"buffer": buffer, "memory": need.memory, "bytes": size, "about": about}
                    )
                    if buffer == "compute":
                        rows[-1]["lower_bound"] = need.lower_bound
                        if need.memory in reference:
                            rows[-1]["ggml"] = reference[need.memory]
            if need.experts and self.experts is not None:
                rows.append(
                    {
                        "buffer": "experts",
                        "memory": "CPU_EXPERTS",
                        "bytes": need.experts,
                        "about": self.experts.about(),
                    }
                )
            for memory, size in need.repacked.items():
                about = "repacked from the file at load"
                rows.append({"buffer": "weights", "memory": memory, "bytes": size, "about": about})
        return rows

    def _about_heads(self) -> str:
        return ", of rotated heads (Hadamard)" if self.cache.rotated else ""

    def html(self, title: str) -> str:
        """A title and the table of memory as HTML, for notebooks."""
        rows = [(r["buffer"], r["memory"], f"{r['bytes']:,}", r["about"])
                for r in self.memory_rows()]  # fmt: skip
        columns = ("buffer", "memory", "bytes", "about")
        return f"<p>{escape(title)}</p>" + html_table("memory", columns, rows, ("bytes",))

    def _repr_html_(self) -> str:
        return in_notebook(self, self.html(f"<ContextPlan of {self.model.summary()}>"))

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
            "options": {
                # what is in memory changes no placement
                name: value
                for name, value in asdict(self.options).items()
                if not name.startswith("expert_")
            }
            | {"op_offload": str(self.op_offload)},
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


def _about_weights(need: MemoryNeed) -> str:
    if need.is_host:
        return "mapped from the file"
    return "used where the file is mapped" if need.shares else "sent to the device at load"
