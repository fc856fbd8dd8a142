"""`plan_context`: everything that a context will be, before any of it has memory.

Which device has which layer, where each node runs, what that takes in each memory. A `Context` is
made from such a plan, `weft explain` prints one, `fit` tries several.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from weft.backends.base import Backend
from weft.compile import Plan, plan_graph, resolve_devices
from weft.errors import ContextError, ScheduleError
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.llm import memory as system
from weft.llm.kv_cache import KVCache, cache_bytes
from weft.llm.model import Model
from weft.llm.offload import (
    Homes,
    all_layers,
    first_with_own_memory,
    homes_by_layer,
    keep_what_runs,
)
from weft.llm.saved_plan import SavedPlan, leaf_rows
from weft.schedule import CostOptions, Point, Policy, Profile, load_profile
from weft.schedule.cost import choose_homes

__all__ = ["ContextOptions", "ContextPlan", "MemoryNeed", "Placement", "plan_context", "prepare"]

DEFAULT_N_UBATCH = 512

_ADVICE = (
    "make n_ctx or n_ubatch smaller, use a smaller type_k and type_v, offload fewer layers (fit "
    "finds how many), or free memory"
)

GENERATED = 128
"""Tokens that are generated for each prompt of one ubatch, where a plan is made for time."""
_TRIES = 6


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """What decides the graph of a context; see `Context`."""

    n_ctx: int
    n_ubatch: int
    n_outputs: int
    n_seq_max: int = 1
    type_k: str = "f16"
    type_v: str = "f16"
    flash: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """Who decides where things are; see `Context`."""

    n_gpu_layers: int | None = None
    place: Mapping[str, str] = field(default_factory=dict)
    saved: SavedPlan | None = None
    fit: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)
    """Device -> bytes of its memory that the plan may use."""
    policy: Policy = "ggml"
    profile: Profile | None = None

    def __post_init__(self) -> None:
        others = self.fit or self.n_gpu_layers is not None or self.place
        if self.saved is not None and (others or self.policy != "ggml"):
            raise ScheduleError(
                "a plan file says where everything is; leave out n_gpu_layers, place, fit, policy"
            )
        if self.fit and self.n_gpu_layers is not None:
            raise ScheduleError("fit chooses the number of layers; leave out n_gpu_layers")
        if self.policy == "cost" and self.profile is None:
            raise ScheduleError(
                "policy 'cost' needs a machine profile; measure one with `weft calibrate`"
            )
        if self.policy not in ("ggml", "cost"):
            raise ScheduleError(f"unknown policy {self.policy!r}; known: 'ggml', 'cost'")


def prepare(
    model: Model,
    *,
    n_ctx: int | None = None,
    n_ubatch: int | None = None,
    n_outputs: int | None = None,
    n_seq_max: int | None = None,
    type_k: str | None = None,
    type_v: str | None = None,
    flash: bool | None = None,
    devices: Sequence[str | Backend] | None = None,
    n_gpu_layers: int | None = None,
    place: Mapping[str, str] | None = None,
    plan: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    fit: bool = False,
    memory: Mapping[str, int] | None = None,
    policy: Policy = "ggml",
    profile: Profile | str | os.PathLike[str] | None = None,
    **device_options: Any,
) -> ContextPlan:
    """The plan of a context from the arguments that `Context` takes; see there. With a plan file,
    what is not given is as the file says, and what is given must agree with it."""
    saved = None
    if plan is not None:
        saved = SavedPlan(plan) if isinstance(plan, Mapping) else SavedPlan.load(plan)

    def option(name: str, given: Any, default: Any) -> Any:
        if saved is not None:
            given = saved.option(name, given)
        return default if given is None else given

    numbers = {
        "n_ctx": option("n_ctx", n_ctx, model.config.n_ctx_train),
        "n_ubatch": option("n_ubatch", n_ubatch, DEFAULT_N_UBATCH),
        "n_seq_max": option("n_seq_max", n_seq_max, 1),
    }
    numbers["n_outputs"] = option("n_outputs", n_outputs, numbers["n_ubatch"])
    for name, value in numbers.items():
        if not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise ContextError(f"{name} is {value}; it must be 1 or more")
    numbers["n_ubatch"] = min(numbers["n_ubatch"], numbers["n_ctx"])
    numbers["n_outputs"] = min(numbers["n_outputs"], numbers["n_ubatch"])
    options = ContextOptions(
        **numbers,
        type_k=option("type_k", type_k, "f16"),
        type_v=option("type_v", type_v, "f16"),
        flash=option("flash", flash, True),
    )
    placement = Placement(
        n_gpu_layers,
        dict(place or {}),
        saved,
        fit,
        dict(memory or {}),
        policy,
        profile if profile is None or isinstance(profile, Profile) else load_profile(profile),
    )
    if devices is None:
        devices = ("cpu",) if saved is None else saved.devices
    backends = resolve_devices(devices, **device_options)
    if all(b.buffer_type is backends[-1].buffer_type for b in backends) and not placement.memory:
        cells = cache_bytes(model.config, options.n_ctx, options.type_k, options.type_v)
        system.require_memory({"cache": cells}, _ADVICE)
    return plan_context(model, options, backends, placement)


@dataclass(slots=True)
class MemoryNeed:
    """Bytes that a plan takes in one memory."""

    memory: str
    devices: tuple[str, ...]
    """Those that compute in it."""
    is_host: bool
    weights: int = 0
    cache: int = 0
    compute: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.compute


@dataclass(slots=True)
class ContextPlan:
    """A context on paper."""

    model: Model
    """With its weights where they will live."""
    options: ContextOptions
    backends: Sequence[Backend]
    homes: Homes
    cache: KVCache
    """Without memory."""
    graph: Graph
    plan: Plan

    def needs(self) -> list[MemoryNeed]:
        """Bytes by memory, in the order of the devices."""
        found: dict[int, MemoryNeed] = {}

        def need(buffer_type: Any) -> MemoryNeed:
            if id(buffer_type) not in found:
                names = tuple(b.name for b in self.backends if b.buffer_type is buffer_type)
                found[id(buffer_type)] = MemoryNeed(buffer_type.name, names, buffer_type.is_host)
            return found[id(buffer_type)]

        for backend in self.backends:
            need(backend.buffer_type)
        for leaf in self.graph.leaves:
            if leaf.buffer is None:
                continue
            buffer_type = leaf.buffer.type or self.backends[-1].buffer_type
            size = leaf.max_bytes if buffer_type.is_host else buffer_type.alloc_size(leaf)
            if leaf.buffer.usage == "weights":
                need(buffer_type).weights += size
            else:
                need(buffer_type).cache += size
        for arena in self.plan.allocation.arenas:
            need(arena.buffer_type).compute += arena.size
        return list(found.values())

    def memory_rows(self) -> list[dict[str, Any]]:
        """`buffer` (weights, cache, compute), `memory`, `bytes`, `about` of each kind of buffer."""
        rows = []
        bounds = {id(a.buffer_type): a for a in self.plan.allocation.arenas}
        types = {b.buffer_type.name: b.buffer_type for b in self.backends}
        for need in self.needs():
            mapped = "mapped from the file" if need.is_host else "sent to the device at load"
            arena = bounds.get(id(types.get(need.memory)))
            peak = "" if arena is None else f"at the peak {arena.lower_bound:,} B are in use"
            for buffer, size, about in (
                ("weights", need.weights, mapped),
                ("cache", need.cache, "allocated once, kept between runs"),
                ("compute", need.compute, peak),
            ):
                if size:
                    row = {"buffer": buffer, "memory": need.memory, "bytes": size, "about": about}
                    if buffer == "compute" and arena is not None:
                        row["lower_bound"] = arena.lower_bound
                    rows.append(row)
        return rows

    def to_json(self) -> dict[str, Any]:
        """Everything, as `SavedPlan` reads it."""
        names = [b.name for b in self.backends]
        homes = {name: names[b] for name, b in self.homes.weights.items()}
        caches: dict[Tensor, str] = {}
        for il, b in enumerate(self.homes.caches):
            caches |= {self.cache.k[il]: names[b], self.cache.v[il]: names[b]}
        return self.plan.to_json() | {
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


def plan_context(
    model: Model, options: ContextOptions, backends: Sequence[Backend], placement: Placement
) -> ContextPlan:
    """The plan of a context; nothing is allocated or read.

    Raises ScheduleError for a placement that cannot be, FormatError for a saved plan that is not
    of this model, OutOfMemoryError where nothing fits the memories."""
    if placement.saved is not None:
        return _as_saved(model, options, backends, placement.saved)
    if placement.policy == "cost":
        return _by_time(model, options, backends, placement)
    cost = _cost(options, placement)
    if placement.fit:
        found = _fitted(model, options, backends, placement, cost)
    else:
        found = _by_layer(model, options, backends, placement, placement.n_gpu_layers)
        _require(found, placement, cost)
    if cost is not None:
        made = found.plan.schedule
        made.predicted = cost.model(made.graph, backends).predict(made)
    return found


# ---- one plan ------------------------------------------------------------------------------------


def _by_layer(
    model: Model,
    options: ContextOptions,
    backends: Sequence[Backend],
    placement: Placement,
    n_gpu_layers: int | Mapping[int, int] | None,
    cost: CostOptions | None = None,
) -> ContextPlan:
    homes = _homes(model, backends, placement, n_gpu_layers)
    return _planned(model, options, backends, homes, cost)


def _homes(
    model: Model,
    backends: Sequence[Backend],
    placement: Placement,
    n_gpu_layers: int | Mapping[int, int] | None,
) -> Homes:
    return homes_by_layer(
        model.weights, model.config.n_layer, backends, n_gpu_layers, placement.place
    )


def _planned(
    model: Model,
    options: ContextOptions,
    backends: Sequence[Backend],
    homes: Homes,
    cost: CostOptions | None = None,
) -> ContextPlan:
    built = _built(model, options, backends, homes)
    while keep_what_runs(homes, built[2], list(zip(built[1].k, built[1].v, strict=True)), backends):
        built = _built(model, options, backends, homes)
    placed, cache, graph = built
    # one plan serves batches of all sizes: to copy weights for a single token would be slow
    plan = plan_graph(
        graph, backends, policy="cost" if cost else "ggml", op_offload=False, cost=cost
    )
    return ContextPlan(placed, options, backends, homes, cache, graph, plan)


def _built(
    model: Model, options: ContextOptions, backends: Sequence[Backend], homes: Homes
) -> tuple[Model, KVCache, Graph]:
    placed = model.placed({n: backends[b].buffer_type for n, b in homes.weights.items()})
    cache = KVCache(
        model.config,
        options.n_ctx,
        n_seq_max=options.n_seq_max,
        type_k=options.type_k,
        type_v=options.type_v,
        buffer_type=[backends[b].buffer_type for b in homes.caches],
        allocate=False,
    )
    graph = placed.build(
        cache, n_ubatch=options.n_ubatch, n_outputs=options.n_outputs, flash=options.flash
    )
    return placed, cache, graph


def _as_saved(
    model: Model, options: ContextOptions, backends: Sequence[Backend], saved: SavedPlan
) -> ContextPlan:
    """What a plan file says, once it is sure that it is about this model and these devices."""
    saved.check_devices(backends)
    homes = Homes(*saved.homes(model.weights, model.config.n_layer, backends))
    placed, cache, graph = _built(model, options, backends, homes)
    saved.check_caches((*cache.k, *cache.v))
    assign = saved.node_devices(graph, backends)
    plan = plan_graph(graph, backends, policy="plan", assign=assign)
    found = ContextPlan(placed, options, backends, homes, cache, graph, plan)
    saved.check_memory(plan.schedule, {n.memory: n.compute for n in found.needs()})
    return found


# ---- the largest offload that fits ---------------------------------------------------------------


def _fitted(
    model: Model,
    options: ContextOptions,
    backends: Sequence[Backend],
    placement: Placement,
    cost: CostOptions | None,
) -> ContextPlan:
    """Device after device, each with as many of the layers that are left as fit, by the reference's
    rules; `cost` knows the sizes of memories."""
    everything = all_layers(model.config.n_layer)
    host = backends[-1].buffer_type
    counts: dict[int, int] = {}
    best: ContextPlan | None = None
    tried: ContextPlan | None = None
    for device, backend in enumerate(backends[:-1]):
        left = everything - sum(counts.values())
        seen = [backends[d].buffer_type for d in counts]
        if backend.buffer_type is host or backend.buffer_type in seen or left == 0:
            continue
        for n in range(left, -1, -1):
            homes = _homes(model, backends, placement, {**counts, device: n})
            if n and _too_big(model, options, backends, homes, placement, cost):
                continue
            tried = _planned(model, options, backends, homes)
            if not _overfull(tried, placement, cost):
                best = tried
                counts[device] = n
                break
        else:
            counts[device] = 0
    if best is None and tried is None:
        best = tried = _by_layer(model, options, backends, placement, 0)
    if best is None or _overfull(best, placement, cost):
        assert tried is not None
        _require(tried, placement, cost)
    assert best is not None
    return best


def _too_big(
    model: Model,
    options: ContextOptions,
    backends: Sequence[Backend],
    homes: Homes,
    placement: Placement,
    cost: CostOptions | None,
) -> bool:
    """Whether weights and caches alone are too much for a device; nothing is planned for this."""
    used = [0] * len(backends)
    for name, leaf in model.weights.items():
        used[homes.weights[name]] += leaf.max_bytes
    per_layer = cache_bytes(model.config, options.n_ctx, options.type_k, options.type_v)
    for device in homes.caches:
        used[device] += per_layer // max(len(homes.caches), 1)
    return any(
        n > limit
        for n, backend in zip(used[:-1], backends[:-1], strict=True)
        if (limit := _told(backend, placement, cost)) is not None
    )


def _told(backend: Backend, placement: Placement, cost: CostOptions | None) -> int | None:
    """The limit of a device's memory that the caller, the device or the profile knows."""
    if backend.name in placement.memory:
        return placement.memory[backend.name]
    known = [backend.memory_limit()]
    device = None if cost is None else cost.profile.device(backend.name)
    if cost is not None and device is not None:
        known.append(cost.profile.memories[device.memory].size)
    return min((n for n in known if n is not None), default=None)


def _limits(
    plan: ContextPlan, placement: Placement, cost: CostOptions | None
) -> Iterator[tuple[MemoryNeed, int, int]]:
    """(need, bytes that count, limit) of each memory whose limit is known.

    Weights in host memory are mapped from the file and can be dropped by the system, so they count
    only where someone has set the limit."""
    by_name = {b.name: b for b in plan.backends}
    unknown = sorted(set(placement.memory) - set(by_name))
    if unknown:
        raise ScheduleError(
            f"memory of {', '.join(unknown)} is limited, but the devices are {', '.join(by_name)}"
        )
    for need in plan.needs():
        told = [
            limit
            for name in need.devices
            if (limit := _told(by_name[name], placement, cost)) is not None
        ]
        if told:
            yield need, need.total, min(told)
        elif need.is_host or any(by_name[d].kind == "CPU" for d in need.devices):
            available = system.available_bytes()
            if available is not None:
                mapped = need.weights if need.is_host else 0
                yield need, need.total - mapped, available


def _overfull(
    plan: ContextPlan, placement: Placement, cost: CostOptions | None
) -> list[tuple[MemoryNeed, int, int]]:
    return [(need, n, limit) for need, n, limit in _limits(plan, placement, cost) if n > limit]


def _require(plan: ContextPlan, placement: Placement, cost: CostOptions | None) -> None:
    """Raises OutOfMemoryError with needed and available bytes where a memory is too small."""
    for need, n, limit in _overfull(plan, placement, cost):
        parts = {"weights": need.weights, "cache": need.cache, "compute": need.compute}
        if n < need.total:
            del parts["weights"]
        system.require_memory(parts, _ADVICE, memory=need.memory, limit=limit)


# ---- least time ----------------------------------------------------------------------------------


def _by_time(
    model: Model, options: ContextOptions, backends: Sequence[Backend], placement: Placement
) -> ContextPlan:
    """The plan with the least predicted time: where weights and caches live is chosen too, unless
    the caller has. Never slower than as many layers as fit, run by the reference's rules."""
    cost = _cost(options, placement)
    assert cost is not None
    if placement.n_gpu_layers is not None or first_with_own_memory(backends) < 0:
        found = _by_layer(model, options, backends, placement, placement.n_gpu_layers, cost)
        _require(found, placement, cost)
        return found
    ruled = _fitted(model, options, backends, placement, cost)
    best = _planned(model, options, backends, _copy(ruled.homes), cost)
    if placement.place or _overfull(best, placement, cost):
        return best
    chosen = _with_chosen_homes(model, options, backends, placement, cost, best)
    if chosen is not None and _seconds(chosen) < _seconds(best):
        return chosen
    return best


def _copy(homes: Homes) -> Homes:
    return replace(homes, weights=dict(homes.weights), caches=list(homes.caches))


def _seconds(plan: ContextPlan) -> float:
    predicted = plan.plan.schedule.predicted
    assert predicted is not None
    return predicted.total


def _cost(options: ContextOptions, placement: Placement) -> CostOptions | None:
    """What time is predicted of: a prompt as long as an ubatch, and what is generated after it,
    with a full cache."""
    if placement.profile is None:
        return None
    prompt = {"n_tokens": options.n_ubatch, "n_kv": options.n_ctx, "n_outputs": 1}
    token = {"n_tokens": 1, "n_kv": options.n_ctx, "n_outputs": 1}
    what = f"prompt of {options.n_ubatch} tokens and {GENERATED} generated"
    return CostOptions(placement.profile, (Point(prompt, 1), Point(token, GENERATED)), what)


def _with_chosen_homes(
    model: Model,
    options: ContextOptions,
    backends: Sequence[Backend],
    placement: Placement,
    cost: CostOptions,
    known: ContextPlan,
) -> ContextPlan | None:
    """A plan whose weights and caches live where the search wants them, None where it finds none.

    What computing takes is known only once there is a plan: the room for weights is that which the
    last plan left, until one fits."""
    homes = homes_by_layer(model.weights, model.config.n_layer, backends, 0)
    _, cache, graph = _built(model, options, backends, homes)
    free = [t for t in graph.leaves if t.buffer is not None]
    cost_model = cost.model(graph, backends)
    limits: dict[str, int] = {}
    reserve = {n.memory: n.compute for n in known.needs()}
    for _ in range(_TRIES):
        for need, counted, limit in _limits(known, placement, cost):
            if counted < need.total:
                continue  # mapped weights have room
            name = next(d.memory for d in cost.profile.devices if d.name in need.devices)
            limits[name] = limit - reserve.get(need.memory, 0)
        if any(room < 0 for room in limits.values()):
            return None
        chosen = choose_homes(cost_model, free, limits)
        if chosen is None:
            return None
        found = _planned(model, options, backends, _homes_of(chosen.device_of, homes, cache), cost)
        over = _overfull(found, placement, cost)
        if not over:
            return found
        for need, n, limit in over:
            reserve[need.memory] = max(reserve.get(need.memory, 0), need.compute) + n - limit
    return None


def _homes_of(device_of: Mapping[Tensor, int], homes: Homes, cache: KVCache) -> Homes:
    found = _copy(homes)
    found.n_gpu_layers = None
    for leaf, device in device_of.items():
        if leaf.buffer is not None and leaf.buffer.usage == "weights":
            found.weights[leaf.name] = device
    if "output.weight" not in {leaf.name for leaf in device_of}:
        found.weights["output.weight"] = found.weights.get("token_embd.weight", 0)
    for il, (k, v) in enumerate(zip(cache.k, cache.v, strict=True)):
        found.caches[il] = device_of.get(k, device_of.get(v, found.caches[il]))
    return found
