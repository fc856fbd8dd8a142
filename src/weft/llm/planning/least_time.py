"""The plan with the least predicted time: where weights and caches live is chosen, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.compiler.homes import first_with_own_memory
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache
from weft.llm.planning.fit import fitted, limits, overfull, require
from weft.llm.planning.offload import Homes
from weft.llm.planning.plan import ContextPlan, Request
from weft.schedule.cost import choose_homes

__all__ = ["by_time"]

_TRIES = 6


def by_time(request: Request) -> ContextPlan:
    """Never slower than as many layers as fit, run by the reference's rules. Homes that the caller
    has chosen stay. Raises OutOfMemoryError where nothing fits."""
    placement = request.placement
    if placement.n_gpu_layers is not None or first_with_own_memory(request.backends) < 0:
        found = request.planned(request.homes(placement.n_gpu_layers), by_time=True)
        require(request, found)
        return found
    ruled = fitted(request)
    best = _faster(request, ruled, request.planned(_copy(ruled.homes), by_time=True))
    if placement.place or not placement.offload_kv:
        return best
    chosen = _with_chosen_homes(request, best)
    return best if chosen is None else _faster(request, best, chosen)


def _faster(request: Request, a: ContextPlan, b: ContextPlan) -> ContextPlan:
    """`b` if it fits and takes less time than `a`."""
    assert a.predicted is not None and b.predicted is not None
    return b if b.predicted.total < a.predicted.total and not overfull(request, b) else a


def _with_chosen_homes(request: Request, known: ContextPlan) -> ContextPlan | None:
    """A plan whose weights and caches live where the search wants them, None where it finds none.

    What computing takes is known only once there is a plan: the room for weights is that which the
    last plan left, until one fits."""
    assert request.cost is not None
    host = request.homes(0)
    n_ubatch = request.options.n_ubatch
    draft = request.draft(host, (n_ubatch,))
    graph = draft.graphs[n_ubatch]
    free = [leaf for leaf in graph.leaves if leaf.buffer is not None]
    model = request.cost.model(graph, request.backends)
    rooms: dict[str, int] = {}
    reserve = {need.memory: need.compute for need in known.needs()}
    for _ in range(_TRIES):
        for need, counted, limit in limits(request, known):
            if counted < need.total:
                continue  # mapped weights have room
            device = next(d for d in request.cost.profile.devices if d.name in need.devices)
            rooms[device.memory] = limit - reserve.get(need.memory, 0)
        if any(room < 0 for room in rooms.values()):
            return None
        chosen = choose_homes(model, free, rooms)
        if chosen is None:
            return None
        homes = _homes_of(chosen.device_of, host, draft.cache)
        found = request.planned(homes, by_time=True)
        over = overfull(request, found)
        if not over:
            return found
        for need, n, limit in over:
            reserve[need.memory] = max(reserve.get(need.memory, 0), need.compute) + n - limit
    return None


def _homes_of(device_of: Mapping[Tensor, int], host: Homes, cache: KVCache) -> Homes:
    found = _copy(host)
    found.n_gpu_layers = None
    for leaf, device in device_of.items():
        if leaf.name in found.weights:
            found.weights[leaf.name] = device
    if "output.weight" not in {leaf.name for leaf in device_of}:
        found.weights["output.weight"] = found.weights.get("token_embd.weight", 0)
    for il in range(len(found.caches)):
        devices = [device_of[leaf] for leaf in cache.leaves(il) if leaf in device_of]
        if devices:
            found.caches[il] = devices[0]
    return found


def _copy(homes: Homes) -> Homes:
    return replace(
        homes, weights=dict(homes.weights), caches=list(homes.caches), kept=dict(homes.kept)
    )
