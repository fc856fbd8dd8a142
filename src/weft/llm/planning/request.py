"""`Request`: the model, options and devices from which a `ContextPlan` is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from weft.allocate import Memory
from weft.backends.base import Backend, OnMachine
from weft.backends.cpu import CpuBackend
from weft.backends.cpu.experts import ExpertArena, ExpertBufferType, ExpertStack, expert_arena
from weft.compiler import Plan, of_one_op, plan_graph, repacked
from weft.errors import ContextError
from weft.graph import Graph
from weft.graph.op import OPS
from weft.graph.size import upper
from weft.graph.tensor import Tensor
from weft.llm.cache.cells import block_cells
from weft.llm.cache.kv_cache import KVCache, LentCache
from weft.llm.model import Model
from weft.llm.models.step import Together, together_sizes
from weft.llm.planning.context_options import ContextOptions
from weft.llm.planning.layers import devices_by_layer
from weft.llm.planning.offload import Homes, homes_by_layer, keep_what_runs
from weft.llm.planning.placement import Placement
from weft.llm.planning.plan import ContextPlan, RegimePlan, bounds, plan_regimes
from weft.llm.planning.saved_plan import SavedPlan
from weft.program import Layout
from weft.records import dataclass
from weft.schedule import CostOptions, Point, Schedule
from weft.schedule.parts import Prediction

GENERATED = 128
"""Number of generated tokens in a predicted time; the prompt is one ubatch."""


@dataclass(frozen=True)
class Request:
    """Everything that a plan is made from."""

    model: Model
    options: ContextOptions
    backends: Sequence[Backend]
    placement: Placement
    rewrites: Sequence[str] | None = None
    """Fusions to use; None: what WEFT_REWRITES says, or all."""
    memory: Memory = "best"

    @cached_property
    def cost(self) -> CostOptions | None:
        """The workload whose time is predicted: a prompt of one ubatch and the tokens generated
        after it, with a full cache. None: there is no profile."""
        if self.placement.profile is None:
            return None
        points = (self.point(self.options.n_ubatch), self.point(1, GENERATED))
        what = f"prompt of {self.options.n_ubatch} tokens and {GENERATED} generated"
        return CostOptions(self.placement.profile, points, what)

    @property
    def together(self) -> Together | None:
        """The sizes of the graph for several sequences at once; None: the model needs none."""
        if self.model.config.recurrent is None:
            return None
        return together_sizes(self.options.n_ubatch, self.options.n_seq_max)

    def point(self, n_tokens: int, passes: float = 1.0, n_outputs: int = 1) -> Point:
        """Passes of so many tokens with a full cache, of which `n_outputs` have logits."""
        values = {"n_tokens": n_tokens, "n_kv": self.options.n_ctx, "n_outputs": n_outputs}
        if self.together is not None:
            values |= {"n_seqs": self.together.n_seqs, "n_seq_tokens": self.together.n_each}
        window_size = self.options.window_size(self.model.config)
        if window_size:
            values["n_kv_window"] = window_size
        compression = self.model.config.compression
        for ratio in compression.tables if compression is not None else ():
            n_ctx, n_seq_max = self.options.n_ctx, self.options.n_seq_max
            values[f"n_blocks_{ratio}"] = max(n_tokens // ratio, 1)
            values[f"n_compressed_{ratio}"] = block_cells(n_ctx, n_seq_max, ratio)
        return Point(values, passes)

    def cost_of(self, max_tokens: int) -> CostOptions | None:
        """The workload of one range of batch sizes; None: there is no profile. Its plan may need
        too much memory, because `overfull` looks at the plans of all ranges together."""
        if self.placement.profile is None:
            return None
        point, what = self.point(max_tokens), f"batch of {max_tokens} tokens with a full cache"
        if max_tokens == 1:
            point, what = self.point(1, GENERATED), f"{GENERATED} generated tokens"
        return CostOptions(self.placement.profile, (point,), what, must_fit=False)

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
            **options.types._asdict(),
            buffer_type=[self.backends[b].buffer_type for b in homes.caches],
            allocate=False,
            window_size=options.window_size(self.model.config),
        )
        if self.model.lender is not None:
            cache = LentCache(self.model.config, self.model.lender)
        for name, row in self.model.scale_rows().items():
            cache.scales[name] = np.tile(row, (options.n_seq_max, 1))

        def build(n: int, together: Together | None = None, rows_in: bool = False) -> Graph:
            return placed.build(
                cache,
                n_ubatch=n,
                n_outputs=min(n, options.n_outputs),
                flash=options.flash,
                embeddings=options.embeddings,
                rows_in=rows_in,
                together=together,
                states=options.states,
            )

        sizes = self.together if n_tokens else None
        several = build(sizes.n_seqs * sizes.n_each, sizes) if sizes else None
        if n_tokens and self.model.config.reads_first:
            several = build(options.n_ubatch, rows_in=True)
        return Draft(placed, cache, {n: build(n) for n in n_tokens}, several)

    def planned(
        self, homes: Homes, *, by_time: bool = False, of_layer: Sequence[int] | None = None
    ) -> ContextPlan:
        """Plans with weights and caches in `homes`, except for those that no device can use there.

        With `by_time`, nodes are placed by predicted time; with `of_layer`, or with other machines,
        on the device that their layer has (the last is that of the output); else by the reference's
        rules."""
        rules = self.placement.op_offload
        draft = self.draft(homes, bounds(self.options.n_ubatch, len(self.backends), rules.batches))
        layers = [draft.cache.leaves(il) for il in range(self.model.config.n_layer)]
        keep_what_runs(homes, draft.all_graphs, layers, self.backends)
        far = any(isinstance(backend, OnMachine) for backend in self.backends)
        shares = far and of_layer is None and not by_time
        if shares:
            of_layer = homes.of_layers()  # so that one hidden state crosses a border

        def plan(max_tokens: int, graph: Graph) -> Plan:
            cost = self.cost_of(max_tokens) if by_time or of_layer is not None else None
            assign = None
            if of_layer is not None:
                assign = devices_by_layer(graph, draft.cache, of_layer, self.backends)
            planned = plan_graph(
                graph,
                self.backends,
                policy="layers" if shares else "plan" if assign else "cost" if cost else "ggml",
                assign=assign,
                op_offload=rules,
                cost=cost,
                rewrites=self.rewrites,
                memory=self.memory,
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
        if self.together is None:  # what is read first
            return self.options.n_ubatch
        return self.together.n_seqs * self.together.n_each

    def _finished(
        self, homes: Homes, draft: Draft, regimes: list[RegimePlan], together: RegimePlan | None
    ) -> ContextPlan:
        predicted = None
        if self.cost is not None:
            prompt = self._prediction(regimes[-1].plan.schedule, self.cost.points[0])
            token = self._prediction(regimes[0].plan.schedule, self.cost.points[1])
            predicted = prompt.plus(token, self.cost.what)
        every = [*regimes, together] if together else regimes
        plans = [regime.plan for regime in every]
        if self.options.repack:
            plans = repacked(plans)
        plans, experts = _with_experts(self.model, plans, self.options)
        every = [replace(r, plan=plan) for r, plan in zip(every, plans, strict=True)]
        regimes, together = every[: len(regimes)], every[-1] if together else None
        return ContextPlan(
            draft.model, self.options, self.backends, homes, draft.cache, regimes,
            len(draft.all_graphs), together, self.rewrites, predicted, experts,
            op_offload=self.placement.op_offload,
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
    """Graphs by their maximum number of tokens, the largest first."""
    together: Graph | None = None
    """The graph for several sequences at once, or the graph of the encoder."""

    @property
    def all_graphs(self) -> list[Graph]:
        """All graphs, that for several sequences included."""
        return [*self.graphs.values(), *([self.together] if self.together else [])]


_PRODUCT = OPS["MUL_MAT_ID"]


def _with_experts(
    model: Model, plans: Sequence[Plan], options: ContextOptions
) -> tuple[list[Plan], ExpertArena | None]:
    """The plans with an arena for experts, if the options have a budget for them.

    Raises ContextError for a model without experts that the cpu reads, and for a budget that is too
    small for a token."""
    if options.expert_budget is None:
        return list(plans), None
    layouts = dict(plans[0].layouts)
    readers = of_one_op([plan.schedule for plan in plans], _PRODUCT)
    layers = _layers(plans[0])
    stacks: list[ExpertStack] = []
    leaves: list[Tensor] = []
    numbers: dict[int, int] = {}
    for leaf, (layer, n_used) in layers.items():
        backend = readers[leaf][0] if leaf in readers else None
        info = model.file.tensors.get(leaf.name)
        in_file = info is not None and info.offset >= 0
        if not isinstance(backend, CpuBackend) or not in_file or leaf.dtype.tail:
            continue
        assert leaf.buffer is not None and info is not None
        # what is read from the file is put in order on the way, not made anew
        in_order = leaf in layouts and layouts[leaf].layout == "interleaved"
        layout: Layout = "interleaved" if in_order else "rows"
        ne = (upper(leaf.ne[0]), upper(leaf.ne[1]), upper(leaf.ne[2]))
        number = numbers.setdefault(layer, len(numbers))
        stacks.append(
            ExpertStack(
                leaf.name, leaf.buffer.data, info.path.absolute(), info.offset, leaf.dtype, ne,
                layout, number, n_used,
            )
        )  # fmt: skip
        leaves.append(leaf)
    if not stacks:
        has = "no experts" if model.config.moe is None else "none that only the cpu reads"
        made = [t for leaf in layers if (t := model.file.tensors.get(leaf.name)) and t.offset < 0]
        if made:
            has = f"experts in {made[0].stored_type}, which are brought into another form at load"
        raise ContextError(
            "is for mixtures of experts on the cpu, and "
            f"{model.file.path.name} has {has}; leave it out",
            argument="expert_budget",
        )
    arena = expert_arena(stacks, options.expert_budget, options.expert_policy)
    types: dict[Layout, ExpertBufferType] = {}
    for leaf, stack in zip(leaves, stacks, strict=True):
        layouts[leaf] = types.setdefault(stack.layout, ExpertBufferType(arena, stack.layout))
    return [replace(plan, layouts=layouts) for plan in plans], arena


def _layers(plan: Plan) -> dict[Tensor, tuple[int, int]]:
    """For each stack of experts, in the order of the nodes that read them: a number that stacks
    with the same ids share, and the experts of a token."""
    layers: dict[Tensor, tuple[int, int]] = {}
    by_ids: dict[Tensor, int] = {}
    for split in plan.schedule.splits:
        for node in split.nodes:
            if node.op is not _PRODUCT:
                continue
            experts, ids = node.src[0], node.src[2]
            assert experts is not None and ids is not None
            base = ids.view_src or ids
            layers.setdefault(experts, (by_ids.setdefault(base, len(by_ids)), upper(ids.ne[0])))
    return layers
