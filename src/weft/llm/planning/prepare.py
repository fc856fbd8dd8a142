"""`prepare` makes the plan of a context from its arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from weft.backends.base import Backend, OnMachine
from weft.backends.registry import device_list
from weft.compiler import keeps_activations, resolve_devices
from weft.compiler.homes import first_with_own_memory
from weft.errors import OutOfMemoryError, ScheduleError, warn
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.memory import require_memory
from weft.llm.model import Model
from weft.llm.planning.context_options import context_options
from weft.llm.planning.fit import ADVICE, fitted, limits, overfull, require
from weft.llm.planning.offload import Homes
from weft.llm.planning.options import DEVICE_OPTIONS, PLAN_OPTIONS, PlanArguments
from weft.llm.planning.placement import Placement, read_placement
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.request import Request
from weft.llm.planning.saved_plan import SavedPlan
from weft.llm.planning.stages import by_stages
from weft.options import require_options
from weft.schedule.cost import choose_homes
from weft.schedule.machines import machine_of
from weft.schedule.parts import Candidate

MOST_COPIES = 4
"""Maximum number of ubatches under way, unless the caller asks for more."""


def prepare(
    model: Model,
    *,
    n_ctx: int | None = None,
    must_fit: bool = True,
    **arguments: Unpack[PlanArguments],
) -> ContextPlan:
    """Plans a context from the arguments of `Context`, without allocating memory or reading
    weights.

    Without `must_fit`, the plan may need more memory than there is now, to know how much it needs.

    With a plan file, omitted arguments have the values of the file, and the others must agree with
    it. Raises ContextError for an argument out of range, ScheduleError for an impossible placement,
    FormatError for a plan of another model, OutOfMemoryError if nothing fits, and ArgumentError for
    an unknown option."""
    require_options("a context", arguments, (*PLAN_OPTIONS, "n_ctx"), "help(weft.LLM)")
    saved = given_plan(arguments)
    options = context_options(model, n_ctx, arguments, saved)
    placement = read_placement(arguments, saved)
    backends = _backends(arguments, saved)
    placement = placement.on(backends, arguments.get("op_offload"))
    if arguments.get("n_copies") is None:
        options = replace(options, n_copies=_copies_for(backends, placement, model))
    alone = all(b.buffer_type is backends[-1].buffer_type for b in backends)
    if must_fit and alone and not placement.memory:
        require_memory({"cache": options.cache_bytes(model.config)}, ADVICE)
    request = Request(model, options, backends, placement, arguments.get("rewrites"))
    plan = _planned(request, must_fit)
    plan.rooms = {need.memory: (n, limit) for need, n, limit in limits(request, plan)}
    plan.beside, plan.profile = placement.beside, placement.profile
    if saved is None and placement.policy == "ggml" and not placement.fit:
        plan.again = partial(_with_sizes, request, arguments)
    return plan


def _with_sizes(
    request: Request, arguments: PlanArguments, n_ctx: int, sizes: PlanArguments
) -> ContextPlan:
    """The plan of `request`, whose caller gave `arguments`, with other sizes: `n_ctx` and the
    options of `sizes`. Its tensors get no places in memory."""
    changed: PlanArguments = {**arguments, **sizes, "n_copies": request.options.n_copies}
    options = context_options(request.model, n_ctx, changed)
    other = replace(request, options=options, memory="bound")
    return other.planned(other.homes(other.placement.n_gpu_layers))


def _backends(arguments: PlanArguments, saved: SavedPlan | None) -> list[Backend]:
    """The backends of `machines` and then of `devices`, without which the plan file says them, or
    there is the cpu alone."""
    devices = arguments.get("devices")
    if devices is None:
        devices = ("cpu",) if saved is None else saved.devices
    devices = device_list(devices)
    if arguments.get("machines"):
        devices = _with_machines(devices, arguments)
    return _with_cpu(devices, {k: v for k, v in arguments.items() if k in DEVICE_OPTIONS})


def _with_machines(
    devices: Sequence[str | Backend], arguments: PlanArguments
) -> Sequence[str | Backend]:
    """The devices of other machines, and these behind them."""
    from weft.backends.remote import RemoteBackend
    from weft.backends.remote.group import machine_group

    group = machine_group(arguments["machines"], arguments.get("machine_key"))
    return [*group.devices(), *(d for d in devices if not isinstance(d, RemoteBackend))]


def _with_cpu(devices: Sequence[str | Backend], options: dict[str, Any]) -> list[Backend]:
    """The backends of a list of devices, with the cpu added if the last one is not a cpu."""
    # the options are for the cpu, which may not be among the devices; one is for GPUs, too
    has_cpu = any(isinstance(d, str) and d.partition(":")[0] == "cpu" for d in devices)
    keep = options.get("activations") == "f32" and any(keeps_activations(d) for d in devices)
    without_cpu = {"activations": "f32"} if keep else {}
    backends = resolve_devices(devices, **(options if has_cpu else without_cpu))
    if backends and isinstance(devices[-1], str) and backends[-1].kind != "CPU":
        if any(b.name == "cpu" for b in backends):
            order = ", ".join([*(b.name for b in backends if b.name != "cpu"), "cpu"])
            raise ScheduleError(f"the cpu must be the last of the devices: {order}")
        backends += resolve_devices(["cpu"], **options)
    return backends


def _copies_for(backends: Sequence[Backend], placement: Placement, model: Model) -> int:
    """Ubatches under way where the caller does not say: one for each machine that may have layers,
    this one among them, so that all work."""
    n = len({id(b.machine) for b in backends if isinstance(b, OnMachine)})
    given = placement.n_gpu_layers
    if n and isinstance(given, int) and 0 < given < model.config.n_layer:
        n += 1
    return min(max(n, 1), MOST_COPIES)


def given_plan(arguments: PlanArguments) -> SavedPlan | None:
    """Reads the plan file among the arguments, if there is one."""
    plan = arguments.get("plan")
    if plan is None:
        return None
    return SavedPlan(plan) if isinstance(plan, Mapping) else SavedPlan.load(plan)


def _planned(request: Request, must_fit: bool) -> ContextPlan:
    placement = request.placement
    if placement.saved is not None:
        plan = request.as_saved(placement.saved)
        require(request, plan)
        return plan
    if placement.policy == "cost":
        return _by_time(request)
    if placement.fit:
        return fitted(request)
    plan = request.planned(request.homes(placement.n_gpu_layers))
    if not must_fit:
        return plan
    try:
        require(request, plan)
    except OutOfMemoryError as error:
        smaller = plan.without_growth()
        if smaller is plan:
            raise
        require(request, smaller)
        warn(f"codebook weights stay as the file has them, slower: {error}")
        return smaller
    return plan


_TRIES = 6


def _by_time(request: Request) -> ContextPlan:
    """The plan with the least predicted time. Homes that the caller has chosen stay.

    It is never slower than the plan of `fitted`, which has as many layers on devices as fit. Raises
    OutOfMemoryError if nothing fits."""
    placement = request.placement
    if placement.n_gpu_layers is None and len({machine_of(b.name) for b in request.backends}) > 1:
        return by_stages(request)
    if placement.n_gpu_layers is not None or first_with_own_memory(request.backends) < 0:
        plan = request.planned(request.homes(placement.n_gpu_layers), by_time=True)
        if overfull(request, plan):
            plan = request.planned(request.homes(placement.n_gpu_layers))
        require(request, plan)
        return plan
    ruled = fitted(request)
    timed = request.planned(_copy(ruled.homes), by_time=True)
    plans = {"as many layers as fit, and the reference's rules": ruled}
    plans["as many layers as fit, and nodes by predicted time"] = timed
    best = _faster(request, ruled, timed)
    if not placement.place and placement.offload_kv:
        chosen = _with_chosen_homes(request, best)
        if chosen is not None:
            plans["weights, caches and nodes by predicted time"] = chosen
            best = _faster(request, best, chosen)
    best.considered = tuple(_candidate(how, plan, plan is best) for how, plan in plans.items())
    return best


def _candidate(how: str, plan: ContextPlan, taken: bool) -> Candidate:
    assert plan.predicted is not None
    schedule = plan.plan.schedule
    work = [n for n in schedule.graph.nodes if not n.op.is_view]
    nodes = Counter(plan.backends[schedule.backend_of[n]].name for n in work)
    return Candidate(how, plan.predicted.total, nodes, plan.predicted, taken)


def _faster(request: Request, a: ContextPlan, b: ContextPlan) -> ContextPlan:
    """Plan `b` if it fits and takes less time than `a`, else `a`."""
    assert a.predicted is not None and b.predicted is not None
    return b if b.predicted.total < a.predicted.total and not overfull(request, b) else a


def _with_chosen_homes(request: Request, known: ContextPlan) -> ContextPlan | None:
    """A plan whose weights and caches live where a search puts them; None: it finds none that fits.

    The compute memory of a plan is known only after planning, so each try leaves the weights the
    room that the compute memory of the last plan left."""
    assert request.cost is not None
    host = request.homes(0)
    n_ubatch = request.options.n_ubatch
    draft = request.draft(host, (n_ubatch,))
    graph = draft.graphs[n_ubatch]
    movable = [leaf for leaf in graph.leaves if leaf.buffer is not None]
    model = request.cost.model(graph, request.backends)
    rooms: dict[str, int] = {}
    reserve = {need.memory: need.compute for need in known.needs()}
    for _ in range(_TRIES):
        for need, counted, limit in limits(request, known):
            if counted < need.total:
                continue  # weights are mapped there and need no room
            device = next(d for d in request.cost.profile.devices if d.name in need.devices)
            rooms[device.memory] = limit - reserve.get(need.memory, 0)
        if any(room < 0 for room in rooms.values()):
            return None
        chosen = choose_homes(model, movable, rooms)
        if chosen is None:
            return None
        homes = _homes_of(chosen.device_of, host, draft.cache)
        plan = request.planned(homes, by_time=True)
        over = overfull(request, plan)
        if not over:
            return plan
        for need, n, limit in over:
            reserve[need.memory] = max(reserve.get(need.memory, 0), need.compute) + n - limit
    return None


def _homes_of(device_of: Mapping[Tensor, int], host: Homes, cache: KVCache) -> Homes:
    """The homes `host`, changed to the devices that the search has chosen."""
    homes = _copy(host)
    homes.n_gpu_layers = None
    for leaf, device in device_of.items():
        if leaf.name in homes.weights:
            homes.weights[leaf.name] = device
    if "output.weight" not in {leaf.name for leaf in device_of}:
        homes.weights["output.weight"] = homes.weights.get("token_embd.weight", 0)
    for il in range(len(homes.caches)):
        devices = [device_of[leaf] for leaf in cache.leaves(il) if leaf in device_of]
        if devices:
            homes.caches[il] = devices[0]
    return homes


def _copy(homes: Homes) -> Homes:
    return replace(
        homes, weights=dict(homes.weights), caches=list(homes.caches), kept=dict(homes.kept)
    )
