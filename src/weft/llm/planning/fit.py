"""What memories hold, and the largest offload that fits them: from plans alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weft.backends.base import Backend
from weft.errors import OutOfMemoryError, ScheduleError
from weft.execute.arena import is_at
from weft.llm.planning import memory as system
from weft.llm.planning.offload import Homes, all_layers
from weft.llm.planning.plan import ContextPlan, MemoryNeed, Request

__all__ = ["ADVICE", "fitted", "limits", "overfull", "require"]

ADVICE = "make n_ctx or n_ubatch smaller, use a smaller type_k and type_v, or free memory"


def limits(request: Request, plan: ContextPlan) -> Iterator[tuple[MemoryNeed, int, int]]:
    """(need, bytes that count, limit) of each memory whose limit is known: from the caller, the
    device, the machine profile, or the system.

    Weights in host memory are mapped from the file and can be dropped by the system, so they count
    only where someone has set the limit."""
    by_name = {b.name: b for b in request.backends}
    unknown = sorted(set(request.placement.memory) - set(by_name))
    if unknown:
        raise ScheduleError(
            f"memory of {', '.join(unknown)} is limited, but the devices are {', '.join(by_name)}"
        )
    for need in plan.needs():
        told = [
            limit for name in need.devices if (limit := _told(request, by_name[name])) is not None
        ]
        if told:
            yield need, need.total, min(told)
        elif need.is_host or any(by_name[name].kind == "CPU" for name in need.devices):
            available = system.available_bytes()
            if available is not None:
                mapped = need.weights if need.is_host else 0
                yield need, need.total - mapped, available


def _told(request: Request, backend: Backend) -> int | None:
    """The limit of a device's memory that the caller, the device or the profile knows."""
    if backend.name in request.placement.memory:
        return request.placement.memory[backend.name]
    left = backend.memory_limit()
    # weights that another context of the model has there take no more room
    known = [left if left is None else left + _present(request, backend)]
    profile = request.placement.profile
    device = None if profile is None else profile.device(backend.name)
    if profile is not None and device is not None:
        known.append(profile.memories[device.memory].size)
    return min((n for n in known if n is not None), default=None)


def _present(request: Request, backend: Backend) -> int:
    """Bytes of the model's weights that are in a device's memory already."""
    buffers = (leaf.buffer for leaf in request.model.weights.values())
    return sum(b.data.nbytes for b in buffers if b and is_at(b.data, backend.buffer_type))


def overfull(request: Request, plan: ContextPlan) -> list[tuple[MemoryNeed, int, int]]:
    """The memories that are too small, as `limits` gives them."""
    return [(need, n, limit) for need, n, limit in limits(request, plan) if n > limit]


def require(request: Request, plan: ContextPlan, *, hint: bool = True) -> None:
    """Raises OutOfMemoryError with needed and available bytes where a memory is too small; `hint`:
    and with how many layers would fit where that is a device's."""
    for need, n, limit in overfull(request, plan):
        parts = {
            "weights": need.weights,
            "cache": need.cache,
            "compute": need.compute + need.copies,
        }
        if n < need.total:
            del parts["weights"]
        advice = ADVICE
        if hint and not need.is_host and plan.homes.n_gpu_layers:
            advice = f"{_what_fits(request, plan.homes.n_gpu_layers)}; or {ADVICE}"
        if need.repacked:
            parts["repacked weights"] = sum(need.repacked.values())
            if need.is_host or need.shares:
                advice += "; with repack=False (--no-repack) weights stay in the file"
        system.require_memory(parts, advice, memory=need.memory, limit=limit)


def _what_fits(request: Request, n_wanted: int) -> str:
    try:
        n = fitted(request).homes.n_gpu_layers or 0
    except OutOfMemoryError:
        n = 0
    if n:
        return f"{n} of the {n_wanted} layers fit (n_gpu_layers={n}, -ngl {n}; or fit, --fit)"
    return "not even a layer fits there (n_gpu_layers=0, -ngl 0, or leave the device out)"


def fitted(request: Request) -> ContextPlan:
    """Device after device, each with as many of the layers that are left as fit, by the
    reference's rules. Raises OutOfMemoryError where nothing does."""
    host = request.backends[-1].buffer_type
    counts: dict[int, int] = {}
    best: ContextPlan | None = None
    for device, backend in enumerate(request.backends[:-1]):
        left = all_layers(request.model.config.n_layer) - sum(counts.values())
        known = [request.backends[d].buffer_type for d in counts]
        if backend.buffer_type is host or backend.buffer_type in known or left == 0:
            continue
        counts[device] = 0
        kept: Collection[str] = ()
        for n in range(left, -1, -1):
            homes = request.homes({**counts, device: n})
            if 0 < n < left and _too_big(request, homes, kept):
                continue
            tried = request.planned(homes)
            kept = homes.kept
            if n == 0 or not overfull(request, tried):
                counts[device], best = n, tried
                break
    best = best or request.planned(request.homes(0))
    require(request, best, hint=False)
    return best


def _too_big(request: Request, homes: Homes, kept: Collection[str]) -> bool:
    """Whether weights and caches alone are too much for a device; nothing is planned for this.
    What is `kept` stays in host memory."""
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
        if (limit := _told(request, backend)) is not None
    )
