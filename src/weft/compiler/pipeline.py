"""The pipeline: check, schedule, optimize and rewrite, allocate, validate, lower, check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, Protocol

from weft.allocate import Allocation, Memory, allocate, place_lines, validate
from weft.backends import Backend, make_backend
from weft.backends.cpu import OPTIONS as CPU_OPTIONS
from weft.backends.host import HostBackend
from weft.backends.registry import device_list
from weft.compiler.check import check_program
from weft.compiler.homes import with_weights_on_device
from weft.compiler.layouts import Layouts, choose_layouts
from weft.compiler.lower import lower
from weft.errors import AllocationError, ArgumentError, GraphError, OutOfMemoryError, ScheduleError
from weft.flags import FLAGS
from weft.graph.check import check_graph
from weft.graph.graph import Graph
from weft.graph.host import HOST
from weft.graph.rewrite import chosen_rewrites
from weft.graph.tensor import Tensor
from weft.options import require_options
from weft.program import Program
from weft.records import dataclass
from weft.schedule import CostOptions, Policy, Schedule, optimize_splits, print_listing, schedule
from weft.schedule.offload import OpOffloadLike, op_offload_for


@dataclass(frozen=True, slots=True)
class Plan:
    """The place where everything runs and lives, before lowering."""

    schedule: Schedule
    """The schedule, with each split as its backend's `optimize` left it."""
    allocation: Allocation
    layouts: Layouts = field(default_factory=dict)
    """Weights that are repacked when they are loaded, and the memory of each."""

    def explain(self, width: int | None = None) -> str:
        """Splits, nodes and causes, totals, and the memory of each device."""
        return f"{self.schedule.explain(width)}\n{self.allocation.explain()}"

    def why(self, name: str) -> str:
        """Everything known about the tensor called `name`: its device, why, and its bytes. Raises
        ScheduleError for an unknown name."""
        places = place_lines(self.schedule, self.allocation, name)
        return "\n".join([self.schedule.why(name), *places])

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data: the schedule's data, `allocation`, and `repacked` (weight ->
        memory)."""
        return self.schedule.to_json() | {
            "allocation": self.allocation.to_json(),
            "repacked": {leaf.name: memory.name for leaf, memory in self.layouts.items()},
        }


class HasGraph(Protocol):
    """An object that carries a graph, such as the result of `weft.from_torch`."""

    @property
    def graph(self) -> Graph:
        """The graph to compute."""


def compile(
    graph: Graph | HasGraph,
    devices: Sequence[str | Backend] = ("cpu",),
    *,
    policy: Policy = "ggml",
    memory: Literal["best", "ggml"] = "best",
    assign: Mapping[Tensor, Backend | int] | None = None,
    op_offload: OpOffloadLike = True,
    cost: CostOptions | None = None,
    repack: bool = False,
    offload: bool = False,
    rewrites: Sequence[str] | None = None,
    **options: Any,
) -> Program:
    """A program that computes `graph` on `devices` (highest priority first, a CPU type last).

    `devices` are names (`"cpu"`, `"reference"` and so on) or backends; `options` go to the backends
    that are made from names (`n_threads=4, target="avx2", activations="f32"` for `cpu`). `assign`
    pins tensors to a device. `policy`, `op_offload` and `cost` mean the same as in
    `weft.schedule.schedule`.
    `repack` brings weights (leaves with usage "weights") into the layout that the kernels read
    fastest when they are loaded.

    `offload` sends constants and states of host memory to the first device that has memory of its
    own, as far as it runs the nodes that use them, so that these nodes run there, too. `rewrites`
    are the names of the fusions (`weft.graph.rewrite.REWRITES`) to use, where the device has
    kernels for them; by default those of WEFT_REWRITES, or all. `Program.plan` is the memory plan.

    Raises ArgumentError for an option that no device takes, GraphError, ScheduleError,
    UnsupportedOpError, AllocationError or DeviceError; OutOfMemoryError where the memory of the
    profile of `cost` is too small."""
    require_compile_options("compile", options)
    graph = graph if isinstance(graph, Graph) else graph.graph
    _require_results(graph)
    backends = with_host(graph, resolve_devices(devices, **options))
    if offload:
        graph, moved = with_weights_on_device(graph, backends)
        assign = {moved.get(tensor, tensor): b for tensor, b in (assign or {}).items()}
    plan = plan_graph(
        graph, backends, policy=policy, memory=memory, assign=assign,
        op_offload=op_offload_for(backends, op_offload), cost=cost, rewrites=rewrites,
    )  # fmt: skip
    return lower_plan(repacked([plan])[0] if repack else plan)


def require_compile_options(
    what: str, options: Iterable[str], more: Sequence[str] = (), see: str = "help(weft.compile)"
) -> None:
    """Raises ArgumentError for an option that neither `compile` takes nor `more` lists.

    `what` names the function that was called, and `see` the place that lists all options."""
    known = (*more, *(compile.__kwdefaults__ or ()), *CPU_OPTIONS)
    require_options(what, set(options) - {"even_if_failing"}, known, see)


def _require_results(graph: Graph) -> None:
    """Raises GraphError where no result of a graph could be read."""
    bases = (node if node.view_src is None else node.view_src for node in graph.nodes)
    if graph.nodes and not graph.outputs and all(base.buffer is None for base in bases):
        raise GraphError(
            f"the graph has no outputs, so nothing could be read; mark what you want to read, e.g. "
            f"{graph.nodes[-1].name}.as_output('y'), before it is compiled"
        )


def lower_plan(plan: Plan) -> Program:
    """The program of a plan; the memory that its tensors are bound to must exist by now."""
    program = lower(plan.schedule, plan.allocation, plan, plan.layouts)
    check_program(program)
    return program


def repacked(plans: Sequence[Plan]) -> list[Plan]:
    """The plans with the layouts that their devices read fastest, for the weights that they
    share."""
    layouts = choose_layouts([plan.schedule for plan in plans])
    return [replace(plan, layouts=layouts) for plan in plans]


def plan_graph(
    graph: Graph,
    backends: Sequence[Backend],
    *,
    policy: Policy = "ggml",
    memory: Memory = "best",
    assign: Mapping[Tensor, Backend | int] | None = None,
    op_offload: OpOffloadLike = True,
    cost: CostOptions | None = None,
    rewrites: Sequence[str] | None = None,
    keep: Collection[Tensor] = (),
) -> Plan:
    """The placement and the memory of a graph, without touching a device.

    `keep` are tensors that no rewrite may hide. A graph without places (`memory="bound"`), which
    never runs, is not checked."""
    if memory != "bound":
        check_graph(graph)
    names = chosen_rewrites(rewrites)

    def plan(policy: Policy, cost: CostOptions | None) -> Plan:
        placed = schedule(graph, backends, policy, op_offload=op_offload, assign=assign, cost=cost)
        placed = optimize_splits(placed, names, keep)
        print_listing(placed)
        return Plan(placed, allocate(placed, policy=memory))

    result = plan(policy, cost)
    if policy == "cost" and cost is not None:
        result = _within_limits(result, plan, cost)
    if FLAGS.check:
        check_graph(graph)
    if FLAGS.check or memory == "ggml":
        check_plan(result)
    return result


def planned_again(program: Program, keep: Collection[Tensor] = ()) -> Plan:
    """A plan with the placement of a program: every node runs where it ran, weights lie where they
    lay.

    `keep` are tensors that no rewrite may hide."""
    before: Plan = program.plan
    schedule = before.schedule
    plan = plan_graph(
        schedule.graph,
        schedule.backends,
        policy="plan",
        assign={t: b for t, b in schedule.backend_of.items() if b >= 0},
        rewrites=sorted({rewrite.name for rewrite in schedule.rewritten}),
        keep=keep,
    )
    return replace(plan, layouts=before.layouts)


def memory_needs(plan: Plan, cost: CostOptions) -> dict[str, int]:
    """Memory of the profile -> bytes that a plan needs there for arenas, weights and caches."""
    model = cost.model(plan.schedule.graph, plan.schedule.backends)
    needs: dict[str, int] = {}
    for arena in plan.allocation.arenas:
        name = model.memory_of(arena.buffer_type)
        needs[name] = needs.get(name, 0) + arena.size
    for leaf in plan.schedule.graph.leaves:
        if leaf.buffer is not None:
            buffer_type = _type_of(leaf, plan.schedule)
            name = model.memory_of(buffer_type)
            needs[name] = needs.get(name, 0) + int(buffer_type.alloc_size(leaf))
    return needs


def _type_of(leaf: Tensor, schedule: Schedule) -> Any:
    assert leaf.buffer is not None
    own = leaf.buffer.type
    return schedule.backends[-1].buffer_type if own is None else own


def _within_limits(
    fastest: Plan,
    plan: Callable[[Policy, CostOptions | None], Plan],
    cost: CostOptions,
) -> Plan:
    """`fastest` if it fits every memory of the profile, else the plan of the reference's rules.

    Raises OutOfMemoryError naming the memory where neither fits, if one must."""
    over = _over(fastest, cost)
    if not over:
        return fastest
    rules = plan("ggml", None)
    if not cost.must_fit or not _over(rules, cost):
        return rules
    name, (need, limit) = next(iter(over.items()))
    raise OutOfMemoryError(
        f"{name} has {limit:,} bytes and no plan was found that takes less than {need:,}; use a "
        "smaller context or batch, or leave more weights in host memory"
    )


def _over(plan: Plan, cost: CostOptions) -> dict[str, tuple[int, int]]:
    """Memory -> (need, limit) in bytes, where a plan needs more than there is."""
    memories = cost.profile.memories
    too_full = {}
    for name, need in memory_needs(plan, cost).items():
        limit = memories[name].size if name in memories else None
        if limit is not None and need > limit:
            too_full[name] = (need, limit)
    return too_full


def check_plan(plan: Plan) -> None:
    """Raises AllocationError, naming both tensors, where two values share bytes that both need.

    The reference's planner makes such plans, for one because it does not keep a view that is an
    output."""
    try:
        validate(plan.schedule, plan.allocation)
    except AllocationError as error:
        raise AllocationError(
            f"{error}; plan memory with memory='best', which keeps such values"
        ) from error


_ROUNDING = ("cuda", "gpu", "opencl", "webgpu")


def keeps_activations(device: str | Backend) -> bool:
    """Whether `device` is the name of one that makes bytes of activations unless `activations` is
    `"f32"`."""
    return isinstance(device, str) and device.partition(":")[0] in _ROUNDING


def resolve_devices(devices: str | Sequence[str | Backend], **options: Any) -> list[Backend]:
    """Backends for a device list; `options` go to the cpu where it is made from its name, and
    `activations="f32"` to GPUs that are (`keeps_activations`).

    Raises ArgumentError for an option that the cpu does not have, or that no listed device
    takes."""
    devices = device_list(devices)
    require_options("cpu", set(options) - {"even_if_failing"}, CPU_OPTIONS)
    exact = {"activations": "f32"} if options.get("activations") == "f32" else {}
    taken = options.keys() <= exact.keys() and any(keeps_activations(d) for d in devices)
    if options and not taken and not any(isinstance(d, str) and _is_cpu(d) for d in devices):
        listed = ", ".join(d if isinstance(d, str) else d.name for d in devices)
        raise ArgumentError(
            f"no device takes the option {next(iter(options))}: options go to a cpu that is listed "
            f"by its name, and the list is {listed}"
        )
    backends: list[Backend] = []
    for device in devices:
        if not isinstance(device, str):
            backends.append(device)
            continue
        # options are the cpu's, but for this one
        own = options if _is_cpu(device) else exact if keeps_activations(device) else {}
        backends.append(make_backend(device, **own))
    names = [b.name for b in backends]
    if len(set(names)) != len(names):
        raise ScheduleError(f"a device is listed twice: {', '.join(names)}")
    _require_different([b for b, d in zip(backends, devices, strict=True) if isinstance(d, str)])
    return backends


def with_host(graph: Graph, backends: list[Backend]) -> list[Backend]:
    """The devices, with `host` before the last one where a graph has host functions that none of
    them calls."""
    calls = [node for node in graph.nodes if node.op is HOST]
    if not calls or any(b.supports_op(calls[0]) for b in backends):
        return backends
    return [*backends[:-1], HostBackend(), backends[-1]]


def _is_cpu(name: str) -> bool:
    return name.partition(":")[0] == "cpu"


def _require_different(backends: Sequence[Backend]) -> None:
    """Raises ScheduleError where two names mean one device, which shows as two memories of one
    name."""
    by_memory: dict[str, Backend] = {}
    for backend in backends:
        memory = backend.buffer_type
        other = by_memory.setdefault(memory.name, backend)
        if other.buffer_type is not memory:
            raise ScheduleError(
                f"{other.name} and {backend.name} are the same device ({memory.name} memory); "
                "list it once"
            )
