"""Finds the plan with the least predicted time, including the homes of weights and caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.compiler.homes import first_with_own_memory
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache
from weft.llm.planning.fit import fitted, limits, overfull, require
from weft.llm.planning.offload import Homes
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.request import Request
from weft.llm.planning.stages import by_stages
from weft.schedule.cost import choose_homes
from weft.schedule.machines import machine_of

__all__ = ["by_time"]

_TRIES = 6


def by_time(request: Request) -> ContextPlan:
    """The plan with the least predicted time. Homes that the caller has chosen stay.

    It is never slower than the plan of `fitted`, which has as many layers on devices as fit. Raises
    OutOfMemoryError if nothing fits."""
    placement = request.placement
    if placement.n_gpu_layers is None and len({machine_of(b.name) for b in request.backends}) > 1:
        return by_stages(request)
    if placement.n_gpu_layers is not None or first_with_own_memory(request.backends) < 0:
        plan = request.planned(request.homes(placement.n_gpu_layers), by_time=True)
        require(request, plan)
        return plan
    ruled = fitted(request)
    best = _faster(request, ruled, request.planned(_copy(ruled.homes), by_time=True))
    if placement.place or not placement.offload_kv:
        return best
    chosen = _with_chosen_homes(request, best)
    return best if chosen is None else _faster(request, best, chosen)


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
