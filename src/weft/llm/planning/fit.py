"""The limits of memories, and the largest offload that fits into them, found from plans alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

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
    only against a limit that someone has set. Devices whose memory is a part of the host's share
    one pool with it: the limit of each memory of the pool is what the others leave."""
    by_name = {b.name: b for b in request.backends}
    unknown = sorted(set(request.placement.memory) - set(by_name))
    if unknown:
        raise ScheduleError(
            f"memory of {', '.join(unknown)} is limited, but the devices are {', '.join(by_name)}"
        )
    needs = plan.needs()
    for need in needs:
        backends = [by_name[name] for name in need.devices]
        known = [limit_of(request, backend) for backend in backends]
        limit = min((n for n in known if n is not None), default=None)
        is_mapped = (need.is_host and limit is None) or (need.shares and not _is_set(request, need))
        if limit is None and (need.is_host or any(b.kind == "CPU" for b in backends)):
            limit = system.available_bytes()
        pool = _pool(request, needs) if need.in_pool and not _is_set(request, need) else None
        if pool is not None:
            room = pool - _taken(request, needs, need)
            limit = room if need.is_host or limit is None else min(room, limit)
        if limit is not None:
            yield need, _counted(request, need, is_mapped=is_mapped), max(limit, 0)


def _is_set(request: Request, need: MemoryNeed) -> bool:
    """Whether the caller has said how much of a memory plans may use."""
    return not request.placement.memory.keys().isdisjoint(need.devices)


def _pool(request: Request, needs: Sequence[MemoryNeed]) -> int | None:
    """The bytes of the host's memory and of devices in it: of the machine's profile, else what the
    system has free, with weights of the model that are on these devices already."""
    host, inside = request.backends[-1], {d for n in needs if n.in_host for d in n.devices}
    size = None if host.name in request.placement.memory else limit_of(request, host)
    if size is not None:
        return size
    available = system.available_bytes()
    present = sum(_present(request, b) for b in request.backends if b.name in inside)
    return None if available is None else available + present


def _taken(request: Request, needs: Sequence[MemoryNeed], need: MemoryNeed) -> int:
    """Bytes of the host's memory that memories other than `need` take of it; those that the caller
    has set apart do not count."""
    others = [n for n in needs if n.in_pool and n is not need and not _is_set(request, n)]
    return sum(_counted(request, n, is_mapped=n.is_host or n.shares) for n in others)


def _counted(request: Request, need: MemoryNeed, *, is_mapped: bool) -> int:
    """Bytes of a memory that count, also bytes of other contexts; weights that are mapped from the
    file do not."""
    mapped = need.weights + need.tower_weights if is_mapped else 0
    return need.total - mapped + _beside(request, need, mapped=not is_mapped)


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
    """How many layers fit, with the options that lead to such a plan."""
    try:
        n = min(fitted(request).homes.n_gpu_layers or 0, n_wanted)
    except OutOfMemoryError:
        return "not even a layer fits there (leave the device out)"
    if n == 0:
        return "not even a layer fits there (`n_gpu_layers` 0, or leave the device out)"
    count = f"{n} of the {n_wanted} layers fit"
    if n == n_wanted or overfull(request, request.planned(request.homes(n))):
        return f"{count} where each device takes what it has room for (`fit`)"
    return f"{count} (`n_gpu_layers` {n}, or `fit`)"


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
