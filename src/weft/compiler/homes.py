"""Weights of the host moved to the memory of the device that will use them.

A graph that was built by hand, or converted, has all its constants in host memory, and the rules of
placement run an op where its weights are. So these weights get another home before placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from weft.backends.base import Backend
from weft.backends.memory import BufferType, HostMemory
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.schedule.finalize import clone


def first_with_own_memory(backends: Sequence[Backend]) -> int:
    """The first device with memory of its own; -1 where all share the memory of the last."""
    host = backends[-1].buffer_type
    return next((i for i, b in enumerate(backends[:-1]) if b.buffer_type is not host), -1)


def why_not_in(buffer_type: BufferType, node: Tensor, backends: Sequence[Backend]) -> str | None:
    """The reason why no device that uses a memory runs `node`; None where one does."""
    reason = ""
    for backend in backends:
        if backend.supports_buffer_type(buffer_type):
            support = backend.supports_op(node)
            if support.ok:
                return None
            reason = reason or support.why or f"{backend.name} does not run {node.op.name}"
    return reason or "no device uses its memory"


def too_large(leaf: Tensor, buffer_type: BufferType) -> str | None:
    """The reason why a memory cannot hold a tensor in one block; None where it can."""
    most, size = buffer_type.max_size, buffer_type.alloc_size(leaf)
    if most is None or size <= most:
        return None
    return f"{leaf.name} has {size} bytes, and {buffer_type.device} makes blocks of at most {most}"


def with_weights_on_device(
    graph: Graph, backends: Sequence[Backend]
) -> tuple[Graph, dict[Tensor, Tensor]]:
    """A copy of `graph` with weights in device memory, and the new tensor of each old one.

    Constants and states go to the first device that has memory of its own, if all nodes that touch
    them run there. Returns the graph itself where there is no such device, or nothing to move."""
    number = first_with_own_memory(backends)
    if number < 0:
        return graph, {}
    home = backends[number].buffer_type
    used: dict[Tensor, bool] = {}
    for node in graph.nodes:
        if node.op.is_view:
            continue
        bases = list(_bases_at_host(node))
        ok = not bases or why_not_in(home, node, backends) is None
        for base in bases:
            used[base] = used.get(base, True) and ok
    moved = {leaf for leaf, ok in used.items() if ok and too_large(leaf, home) is None}
    if not moved:
        return graph, {}
    copies = {tensor: clone(tensor) for tensor in graph.tensors}
    for new in copies.values():
        new.src = tuple(None if s is None else copies.get(s, s) for s in new.src)
        if new.view_src is not None:
            new.view_src = copies.get(new.view_src, new.view_src)
    for leaf in moved:
        assert leaf.buffer is not None
        copies[leaf].buffer = replace(leaf.buffer, type=home)
    leaves = [copies[leaf] for leaf in graph.leaves]
    return Graph.of(leaves, (copies[node] for node in graph.nodes)), copies


def _bases_at_host(node: Tensor) -> Iterator[Tensor]:
    """The tensors in host memory that a node reads or writes."""
    for tensor in (*node.src, node):
        base = None if tensor is None else tensor.view_src or tensor
        if base is None or base.buffer is None or base.buffer.type is not None:
            continue
        if isinstance(base.buffer.data, np.ndarray | HostMemory):
            yield base
