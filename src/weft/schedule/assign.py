"""Passes 1 to 4: which backend runs each node, as ggml's scheduler decides it.

The behaviour is that of ggml_backend_sched_split_graph (ggml 0.25), implemented from the published
description of its passes. The docstring of every function states its rule. `where` maps a tensor to
a backend number (-1 or absent: not assigned yet), `why` maps it to the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from weft.errors import ScheduleError, UnsupportedOpError
from weft.graph.graph import Graph
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.schedule.cause import (
    BEST,
    DESTINATION,
    INPUT,
    NEIGHBOUR,
    OFFLOADED,
    READER,
    UPGRADED,
    USER,
    VIEWED,
    WEIGHT,
    Cause,
)
from weft.schedule.devices import Devices

# Their weights (rope frequencies, attention sinks) are too small to decide where the op runs.
_SMALL_WEIGHT_OPS = frozenset({"ROPE", "FLASH_ATTN_EXT"})

Where = dict[Tensor, int]
Why = dict[Tensor, Cause]


class Sweep(NamedTuple):
    """One walk of a pass along tensors."""

    number: str
    """The pass: `1` to `4`, or `plan`."""
    name: str
    """The name of the walk within its pass."""
    order: Iterable[Tensor]
    walk: Callable[[Iterable[Tensor], Devices, Where, Why], None]


def sweeps(graph: Graph, last: int, op_offload: bool) -> list[Sweep]:
    """The walks of passes 1 to 4, in order; `last` is the number of the last device."""
    work = [node for node in graph.nodes if not node.op.is_view]
    weights = partial(from_memory_and_weights, op_offload=op_offload)
    # Pass 2 first spreads all devices except the last, so that the last gets only what is left.
    most, rest = partial(sweep, skip=last), partial(sweep, skip=-1)
    return [
        Sweep("1", "leaves", graph.leaves, weights),
        Sweep("1", "nodes", graph.nodes, weights),
        Sweep("2", "down", work, most),
        Sweep("2", "up", work[::-1], most),
        Sweep("2", "rest down", work, rest),
        Sweep("2", "rest up", work[::-1], rest),
        Sweep("3", "nodes", work, prefer_and_upgrade),
        Sweep("4", "nodes", graph.nodes, inherit),
    ]


def assign(
    graph: Graph, devices: Devices, user: Mapping[Tensor, int], op_offload: bool
) -> tuple[Where, Why]:
    """The backend and the cause of every tensor. Passes 1 and 2 never overwrite user assignments.

    Raises UnsupportedOpError where no device takes a node, ScheduleError where no device can use
    memory that exists."""
    where: Where = dict(user)
    why: Why = dict.fromkeys(user, USER)
    for one in sweeps(graph, devices.last, op_offload):
        one.walk(one.order, devices, where, why)
    return where, why


def assign_as_chosen(
    graph: Graph, devices: Devices, chosen: Mapping[Tensor, int], cause: Cause
) -> tuple[Where, Why]:
    """The backend and the cause of every tensor, where all nodes except views have a device
    already.

    `chosen` holds these devices, `cause` is their cause. Leaves follow pass 1, views and loose
    leaves pass 4. Raises ScheduleError for a node without a device, or with one that does not run
    it or cannot use its memory."""
    where: Where = {}
    why: Why = {}
    for one in sweeps_as_chosen(graph, chosen, cause):
        one.walk(one.order, devices, where, why)
    return where, why


def sweeps_as_chosen(graph: Graph, chosen: Mapping[Tensor, int], cause: Cause) -> list[Sweep]:
    """The walks of `assign_as_chosen`, in order."""
    return [
        Sweep("plan", "leaves", graph.leaves, partial(_leaves_as_chosen, chosen, cause)),
        Sweep("plan", "nodes", graph.nodes, partial(_nodes_as_chosen, chosen, cause)),
        Sweep("4", "nodes", graph.nodes, inherit),
    ]


def _leaves_as_chosen(
    chosen: Mapping[Tensor, int],
    cause: Cause,
    leaves: Iterable[Tensor],
    devices: Devices,
    where: Where,
    why: Why,
) -> None:
    for leaf in leaves:
        if leaf in chosen and devices.type_of(leaf) is None:
            where[leaf], why[leaf] = chosen[leaf], cause
        else:
            where[leaf] = _from_current(leaf, devices, why, op_offload=False)


def _nodes_as_chosen(
    chosen: Mapping[Tensor, int],
    cause: Cause,
    nodes: Iterable[Tensor],
    devices: Devices,
    where: Where,
    why: Why,
) -> None:
    for node in nodes:
        own = devices.type_of(node)
        if node.op.is_view:
            if own is not None:
                where[node] = _from_current(node, devices, why, op_offload=False)
            continue
        b = chosen.get(node, -1)
        if b == -1:
            raise ScheduleError(f"the plan has no device for {describe(node)}; save it again")
        name = devices.backends[b].name
        if not devices.supports_op(b, node):
            refusal = devices.refusals[(node, b)]
            raise ScheduleError(f"{describe(node)} is to run on {name}, which refuses: {refusal}")
        if own is not None and not devices.supports_buffer_type(b, own):
            raise ScheduleError(
                f"{describe(node)} is to run on {name}, but its result lives in {own.name} memory"
            )
        where[node], why[node] = b, cause


def from_memory_and_weights(
    tensors: Iterable[Tensor], devices: Devices, where: Where, why: Why, op_offload: bool
) -> None:
    """Pass 1, for the leaves and then for the nodes: memory and weights decide.

    A tensor with memory runs where its memory is, an input on the last device, an op with a weight
    where the weight is, unless a device asks for the op because the batch is big."""
    for tensor in tensors:
        if where.get(tensor, -1) == -1:
            where[tensor] = _from_current(tensor, devices, why, op_offload)


def _from_current(tensor: Tensor, devices: Devices, why: Why, op_offload: bool) -> int:
    own = devices.type_of(tensor)
    if own is not None:
        device = _first_with(own, tensor, devices)
        if device != -1:
            why[tensor] = DESTINATION
            return device
        raise ScheduleError(
            f"{describe(tensor)} has memory of type {own.name}, and no device both uses that "
            f"memory and runs {tensor.op.name}: {_refusals(tensor, devices)}"
        )
    if "input" in tensor.flags:
        why[tensor] = INPUT
        return devices.last
    if tensor.op.name in _SMALL_WEIGHT_OPS:
        return -1
    for i, src in enumerate(tensor.src):
        # Only the first weight decides, and only by its own buffer, not by the buffer of its base.
        if src is None or src.buffer is None or src.buffer.usage != "weights":
            continue
        weight = devices.type_of(src)
        device = _first_with(weight, tensor, devices)
        if op_offload and device == devices.last and weight.is_host:
            for b in range(devices.last):
                if devices.offloads(b, tensor):
                    why[tensor] = OFFLOADED.by_source(i)
                    return b
        why[tensor] = WEIGHT.by_source(i)
        return device
    return -1


def _first_with(buffer_type: object, node: Tensor, devices: Devices) -> int:
    """The first device that uses the memory type and runs the node, else -1."""
    for b in range(devices.n):
        if devices.supports_buffer_type(b, buffer_type) and devices.supports_op(b, node):
            return b
    return -1


def sweep(order: Iterable[Tensor], devices: Devices, where: Where, why: Why, skip: int) -> None:
    """One sweep of pass 2: an unassigned node joins the node before it in `order`, if the device of
    that node runs it. Device `skip` (-1: none) spreads to no node.

    The sweeps go down and up, first with all devices except the last, then with all."""
    current = -1
    for node in order:
        b = where.get(node, -1)
        if b != -1:
            current = -1 if b == skip else b
        elif current != -1 and devices.supports_op(current, node):
            where[node] = current
            why[node] = NEIGHBOUR


def prefer_and_upgrade(order: Iterable[Tensor], devices: Devices, where: Where, why: Why) -> None:
    """Pass 3: a node still unassigned goes where most of its sources can be read.

    An assigned node moves to a higher device with the same buffer type if that device reads all its
    sources."""
    types = devices.buffer_types
    for node in order:
        assigned = where.get(node, -1)
        if assigned == -1:
            _take_best(node, devices, where, why)
            continue
        for b in range(assigned):
            if types[b] is not types[assigned] or not devices.supports_op(b, node):
                continue
            if all(s is None or buffer_supported(s, b, devices, where) for s in node.src):
                where[node] = b
                why[node] = UPGRADED
                break


def _take_best(node: Tensor, devices: Devices, where: Where, why: Why) -> None:
    best = -1
    for b in range(devices.n):
        if not devices.supports_op(b, node):
            continue
        n_supported = 0
        for src in node.src:
            if src is None:
                continue
            assigned = where.get(src, -1) != -1
            if not assigned and src.view_src is not None:
                assigned = where.get(src.view_src, -1) != -1
            if assigned and buffer_supported(src, b, devices, where):
                n_supported += 1
        if n_supported > best:
            best = n_supported
            # assigned at once, because a node that is its own source counts from now on
            where[node] = b
            why[node] = BEST


def inherit(nodes: Iterable[Tensor], devices: Devices, where: Where, why: Why) -> None:
    """Pass 4: views follow their base, unassigned sources follow the node that reads them, and a
    node that is still unassigned takes the first device that runs it."""
    for node in nodes:
        current = where.get(node, -1)
        if current == -1 and node.view_src is not None:
            current = where[node] = where.get(node.view_src, -1)
            why[node] = VIEWED
        for src in node.src:
            if src is None or where.get(src, -1) != -1:
                continue
            if src.view_src is not None:
                where[src] = where.get(src.view_src, -1)
                why[src] = VIEWED
            else:
                where[src] = current
                why[src] = READER
        if current == -1:
            _take_first(node, devices, where, why)


def _take_first(node: Tensor, devices: Devices, where: Where, why: Why) -> None:
    for b in range(devices.n):
        if devices.supports_op(b, node):
            where[node] = b
            why[node] = NEIGHBOUR
            return
    raise UnsupportedOpError(
        f"no device runs {node.op.name} {describe(node)}: {_refusals(node, devices)}"
    )


def buffer_supported(tensor: Tensor, backend: int, devices: Devices, where: Where) -> bool:
    """Whether `backend` reads `tensor` where it is (or will be) without a copy."""
    buffer_type = devices.type_of(tensor)
    if buffer_type is None:
        b = where.get(tensor, -1)
        if b == -1 and tensor.view_src is not None:
            b = where.get(tensor.view_src, -1)
        if b == -1:
            return False
        buffer_type = devices.buffer_types[b]
    return devices.supports_buffer_type(backend, buffer_type)


def _refusals(node: Tensor, devices: Devices) -> str:
    reasons = []
    for b, backend in enumerate(devices.backends):
        devices.supports_op(b, node)
        reasons.append(
            f"{backend.name}: {devices.refusals.get((node, b), 'cannot use the memory')}"
        )
    return "; ".join(reasons)
