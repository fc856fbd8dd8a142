"""The limits of memories, and the largest offload that fits into them, found from plans alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weft.backends.base import Backend
from weft.errors import OutOfMemoryError, ScheduleError
from weft.execute.arena import is_at
from weft.llm.cache import memory as system
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.planning.offload import Homes, all_layers
from weft.llm.planning.plan import ContextPlan, MemoryNeed
from weft.llm.planning.request import Request

_TYPES = " and ".join(f"`{name}`" for name in CacheTypes._fields)
ADVICE = f"make `n_ctx` or `n_ubatch` smaller, use a smaller {_TYPES}, or free memory"


def limits(request: Request, plan: ContextPlan) -> Iterator[tuple[MemoryNeed, int, int]]:
    """Yields (need, bytes that count, limit) for each memory whose limit the caller, the device,
    the machine profile or the system knows.

    Weights in host memory are mapped from the file and can be dropped by the system, so they count
    only against a limit that someone has set."""
    by_name = {b.name: b for b in request.backends}
    unknown = sorted(set(request.placement.memory) - set(by_name))
    if unknown:
        raise ScheduleError(
            f"memory of {', '.join(unknown)} is limited, but the devices are {', '.join(by_name)}"
        )
    for need in plan.needs():
        set_limits = [limit_of(request, by_name[name]) for name in need.devices]
        lowest = min((limit for limit in set_limits if limit is not None), default=None)
        if lowest is not None:
            yield need, need.total + _beside(request, need, mapped=True), lowest
        elif need.is_host or any(by_name[name].kind == "CPU" for name in need.devices):
            available = system.available_bytes()
            if available is not None:
                mapped = need.weights + need.tower_weights if need.is_host else 0
                others = _beside(request, need, mapped=not need.is_host)
                yield need, need.total - mapped + others, available


def _beside(request: Request, need: MemoryNeed, *, mapped: bool) -> int:
    """Bytes that other contexts need of the same memory, weights included if `mapped`."""
    needs = [n for plan in request.placement.beside for n in plan.needs()]
    same = [n for n in needs if n.memory == need.memory]
    return sum(n.total - (0 if mapped else n.weights) for n in same)


def limit_of(request: Request, backend: Backend) -> int | None:
    """The limit of a device's memory, in bytes, from the caller, the device or the profile."""
    if backend.name in request.placement.memory:
        return request.placement.memory[backend.name]
    limits: list[int | None] = []
    free = backend.memory_limit()
    if free is not None:  # weights that another context of the model has there need no more room
        limits.append(free + _present(request, backend))
    profile = request.placement.profile
    device = None if profile is None else profile.device(backend.name)
    if profile is not None and device is not None:
        limits.append(profile.memories[device.memory].size)
    return min((n for n in limits if n is not None), default=None)


def _present(request: Request, backend: Backend) -> int:
    """Bytes of the model's weights that are in a device's memory already."""
    buffers = (leaf.buffer for leaf in request.model.weights.values())
    return sum(b.data.nbytes for b in buffers if b and is_at(b.data, backend.buffer_type))


def overfull(request: Request, plan: ContextPlan) -> list[tuple[MemoryNeed, int, int]]:
    """The memories that are too small, in the form of `limits`."""
    return [(need, n, limit) for need, n, limit in limits(request, plan) if n > limit]


def require(request: Request, plan: ContextPlan, *, hint: bool = True) -> None:
    """Raises OutOfMemoryError, with needed and available bytes, if a memory is too small.

    With `hint`, the message about a device's memory also says how many layers would fit."""
    for need, n, limit in overfull(request, plan):
        parts = {
            "weights": need.weights,
            "cache": need.cache,
            "compute": need.compute + need.copies,
        }
        if need.towers:
            parts |= {"tower weights": need.tower_weights, "towers": need.towers}
        whole = n == need.total + _beside(request, need, mapped=True)
        others = _beside(request, need, mapped=whole)
        if not whole:
            parts.pop("tower weights", None)
            del parts["weights"]
        if others:
            parts["models that draft"] = others
        advice = ADVICE
        if hint and not need.is_host and plan.homes.n_gpu_layers:
            advice = f"{_what_fits(request, plan.homes.n_gpu_layers)}; or {ADVICE}"
        if need.experts:
            parts["experts"] = need.experts
            advice += "; or `expert_budget` smaller"
        if need.repacked:
            parts["repacked weights"] = sum(need.repacked.values())
            if need.is_host or need.shares:
                advice += "; with `repack` off weights stay in the file"
        system.require_memory(parts, advice, memory=need.memory, limit=limit)


def _what_fits(request: Request, n_wanted: int) -> str:
    try:
        n = fitted(request).homes.n_gpu_layers or 0
    except OutOfMemoryError:
        n = 0
    if n:
        return f"{n} of the {n_wanted} layers fit (`n_gpu_layers` {n}, or `fit`)"
    return "not even a layer fits there (`n_gpu_layers` 0, or leave the device out)"


def fitted(request: Request) -> ContextPlan:
    """Plans with as many layers as fit on each device, in order, by the reference's rules.

    Raises OutOfMemoryError if not even the plan without offloaded layers fits."""
    host = request.backends[-1].buffer_type
    counts: dict[int, int] = {}
    best: ContextPlan | None = None
    for device, backend in enumerate(request.backends[:-1]):
        n_layers = all_layers(request.model.config.n_layer) - sum(counts.values())
        full = [request.backends[d].buffer_type for d in counts]
        if backend.buffer_type is host or backend.buffer_type in full or n_layers == 0:
            continue
        counts[device] = 0
        kept: Collection[str] = ()
        for n in range(n_layers, -1, -1):
            homes = request.homes({**counts, device: n})
            if 0 < n < n_layers and _too_big(request, homes, kept):
                continue
            plan = request.planned(homes)
            kept = homes.kept
            if n == 0 or not overfull(request, plan):
                counts[device], best = n, plan
                break
    best = best or request.planned(request.homes(0))
    require(request, best, hint=False)
    return best


def _too_big(request: Request, homes: Homes, kept: Collection[str]) -> bool:
    """True if weights and caches alone are too much for a device, which is known without a plan.

    Leaves named in `kept` stay in host memory."""
    draft = request.draft(homes, ())
    used = [0] * len(request.backends)
    for name, leaf in draft.model.weights.items():
        if name not in kept:
            used[homes.weights[name]] += leaf.max_bytes
    for il, device in enumerate(homes.caches):
        used[device] += sum(t.max_bytes for t in draft.cache.leaves(il) if t.name not in kept)
    return any(
        n > limit
        for n, backend in zip(used[:-1], request.backends[:-1], strict=True)
        if (limit := limit_of(request, backend)) is not None
    )
