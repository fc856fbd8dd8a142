"""The plan with the least predicted time over several machines: stages of consecutive layers."""

from __future__ import annotations

import numpy as np

from weft.errors import OutOfMemoryError
from weft.graph.tensor import Tensor
from weft.llm.planning.fit import ADVICE, limit_of, overfull, require
from weft.llm.planning.layers import BEFORE, cache_layers, layers_of, traffic
from weft.llm.planning.offload import homes_of_layers, layer_of_weight
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.request import GENERATED, Draft, Request
from weft.schedule.machines import machine_of
from weft.schedule.profile import Profile
from weft.schedule.stages import StageProblem, best_split
from weft.schedule.timing import Point, TimeModel
from weft.tables import size_text

_TRIES = 8


def in_flight(request: Request) -> int:
    """Groups of sequences that are under way at the same time: those that the caller asks for, or
    one for each machine that there is a sequence for."""
    options = request.options
    if options.n_copies > 1:
        return min(options.n_copies, options.n_seq_max)
    machines = {machine_of(b.name) for b in request.backends}
    return min(len(machines), options.n_seq_max)


def by_stages(request: Request) -> ContextPlan:
    """The plan whose layers are split over the machines of the devices with the least predicted
    time, all limits of memory kept.

    Raises OutOfMemoryError naming the machines if nothing fits."""
    reserve: dict[str, int] = {}
    problem = stage_problem(request, reserve)
    plan: ContextPlan | None = None
    for _ in range(_TRIES):
        split = best_split(problem)
        if split is None:
            raise OutOfMemoryError(_no_room(request, problem, plan))
        plan = plan_of_layers(request, split.of_layer)
        over = overfull(request, plan)
        if not over:
            return plan
        if request.placement.place:
            break  # globs say where weights are, whether or not they fit
        for need, n, limit in over:
            more = max(reserve.get(need.memory, 0), need.compute + need.copies)
            reserve[need.memory] = more if more > reserve.get(need.memory, 0) else more + n - limit
        problem = stage_problem(request, reserve)
    assert plan is not None
    require(request, plan, hint=False)
    return plan


def plan_of_layers(request: Request, of_layer: list[int]) -> ContextPlan:
    """The plan with a device for each layer, and the device of the output last."""
    homes = homes_of_layers(
        request.model.weights, of_layer, request.backends, request.placement.place
    )
    if not request.placement.offload_kv:
        homes.caches = [len(request.backends) - 1] * request.model.config.n_layer
    return request.planned(homes, of_layer=of_layer)


def stage_problem(request: Request, reserve: dict[str, int]) -> StageProblem:
    """The costs of a split over the devices of a request; `reserve` has bytes of memories that are
    not for weights and caches."""
    profile = request.placement.profile
    assert profile is not None and request.cost is not None
    n_layer = request.model.config.n_layer
    n_ubatch = request.options.n_ubatch
    host = request.homes(0)
    draft = request.draft(host, (n_ubatch,))
    graph = draft.graphs[n_ubatch]
    points = _points(request)
    model = TimeModel(profile, graph, request.backends, points)
    of = layers_of(graph, cache_layers(draft.cache, n_layer), n_layer)
    between = traffic(graph, of, n_layer, points)
    latency, per_byte = _links(model, profile)
    last = len(request.backends) - 1
    memories = [d.memory for d in model.of]
    machines = [machine_of(b.name) for b in request.backends]
    before, nbytes = _bytes(request, draft)
    return StageProblem(
        _seconds(model, of, n_layer),
        np.array([model.start(b) for b in range(last + 1)]),
        nbytes,
        _room(request, reserve, before),
        [memories.index(m) for m in memories],
        [machines.index(m) for m in machines],
        last,
        latency,
        per_byte,
        between.inputs,
        between.crossing,
        between.result,
        in_flight(request),
        sum(p.passes for p in points),
    )


def _points(request: Request) -> tuple[Point, ...]:
    """The passes of all sequences: a prompt of an ubatch each, then tokens in groups."""
    n, groups = request.options.n_seq_max, in_flight(request)
    rows = -(-n // groups)
    prompt = request.point(request.options.n_ubatch, n)
    return prompt, request.point(rows, GENERATED * groups, rows)


def _links(model: TimeModel, profile: Profile) -> tuple[np.ndarray, np.ndarray]:
    n = len(model.of)
    latency, per_byte = np.zeros((n, n)), np.zeros((n, n))
    for a in range(n):
        for b in range(n):
            if model.devices.supports_buffer_type(b, model.devices.buffer_types[a]):
                continue
            link = profile.link(model.of[a].memory, model.of[b].memory)
            latency[a, b], per_byte[a, b] = link.latency, 1 / link.bandwidth
    return latency, per_byte


def _seconds(model: TimeModel, of: dict[Tensor, int], n_layer: int) -> np.ndarray:
    """[device, layer]: seconds of the layer's nodes, those that a device refuses on the machine's
    last device; infinite if that refuses them, too."""
    n = model.devices.n
    machines = [machine_of(b.name) for b in model.devices.backends]
    helper = [max(i for i in range(n) if machines[i] == machines[b]) for b in range(n)]
    seconds = np.zeros((n, n_layer + 1))
    for node, layer in of.items():
        if layer == BEFORE:
            continue
        times = [
            model.node(node, b) if model.devices.supports_op(b, node) else np.inf for b in range(n)
        ]
        for b in range(n):
            seconds[b, layer] += times[b] if np.isfinite(times[b]) else times[helper[b]]
    return seconds


def _bytes(request: Request, draft: Draft) -> tuple[int, np.ndarray]:
    """The bytes of weights that stay with the input, and of the layers [device, layer]."""
    n_layer, n = request.model.config.n_layer, len(request.backends)
    before, sizes = 0, np.zeros((n, n_layer + 1), np.int64)
    weights = draft.model.weights
    for name, leaf in weights.items():
        layer = layer_of_weight(name, n_layer)
        if layer is None:
            before += leaf.max_bytes
        else:
            sizes[:, layer] += leaf.max_bytes
    for il in range(n_layer):
        sizes[:, il] += sum(t.max_bytes for t in draft.cache.leaves(il))
    if "output.weight" not in weights and "token_embd.weight" in weights:
        for b, backend in enumerate(request.backends):
            if backend.buffer_type is not request.backends[-1].buffer_type:  # needs a copy
                sizes[b, n_layer] += weights["token_embd.weight"].max_bytes
    return before, sizes


def _room(request: Request, reserve: dict[str, int], before: int) -> np.ndarray:
    """The bytes that each device's memory has for layers."""
    room = np.full(len(request.backends), np.inf)
    host = request.backends[-1].buffer_type
    for b, backend in enumerate(request.backends):
        limit = limit_of(request, backend)
        if limit is not None:
            room[b] = limit - reserve.get(backend.buffer_type.name, 0)
            room[b] -= before if backend.buffer_type is host else 0
    return room


def _no_room(request: Request, problem: StageProblem, plan: ContextPlan | None) -> str:
    """Why no split has room."""
    needed = int(problem.nbytes[-1].sum())
    rooms: dict[str, str] = {}
    total = 0
    for b, backend in enumerate(request.backends):
        name, limit = backend.buffer_type.name, limit_of(request, backend)
        if name not in rooms and limit is not None:
            free = int(max(problem.room[b], 0))
            total += free
            rooms[name] = f"{free} bytes ({size_text(free)}) of {size_text(limit)} in {name}"
    why = "" if needed > total else ", but no border between layers fits"
    beside = "" if plan is None else " beside compute memory"
    return (
        f"not enough memory on these machines: weights and cache of the layers need {needed} bytes "
        f"({size_text(needed)}), and for them there are {total} bytes ({size_text(total)}){beside}"
        f"{why}: {', '.join(rooms.values())}; add a machine, or {ADVICE}"
    )
