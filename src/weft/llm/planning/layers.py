"""Which layer of the model each node of a graph belongs to, and what goes from layer to layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache
from weft.llm.planning.offload import SHARED, layer_of_weight
from weft.records import dataclass
from weft.schedule.machines import machine_of
from weft.schedule.timing import Point, nbytes_at

BEFORE = -1
"""The layer of nodes that make the input of the first one."""


def layers_of(graph: Graph, cache_layer: Mapping[Tensor, int], n_layer: int) -> dict[Tensor, int]:
    """Node that does work -> its layer: `BEFORE`, 0 to `n_layer` - 1, or `n_layer` for the output.

    `cache_layer` has the layer of each leaf of the cache. A node with a weight or a cache is in
    their layer, another in the last layer of its sources, or in that of its readers where it would
    have to be copied to them and its sources are there anyway."""
    work = [node for node in graph.nodes if not node.op.is_view]
    of: dict[Tensor, int] = {}
    own: set[Tensor] = set()
    readers: dict[Tensor, list[Tensor]] = {}
    for node in work:
        known = [n for n in (_by_leaf(node, s, cache_layer, n_layer) for s in (*node.src, node))
                 if n is not None]  # fmt: skip
        if known:
            own.add(node)
            of[node] = min(max(known), n_layer)
        else:
            of[node] = max((of.get(s.base, BEFORE) for s in node.src if s), default=BEFORE)
        for src in node.src:
            if src is not None and src is not node:
                readers.setdefault(src.base, []).append(node)
    for node in reversed(work):
        if node in own or not readers.get(node):
            continue
        target = min(of[r] for r in readers[node])
        sources = [s.base for s in node.src if s is not None]
        made = [s for s in sources if s in of and of[s] < target]
        there = (any(of[r] == target and r is not node for r in readers[s]) for s in made)
        if target > of[node] and all(there):
            of[node] = target
    return of


def _by_leaf(
    node: Tensor, src: Tensor | None, cache_layer: Mapping[Tensor, int], n_layer: int
) -> int | None:
    """The layer that a source, or the memory of a result, says a node is in."""
    if src is None:
        return None
    leaf = src.base
    if leaf in cache_layer:
        return cache_layer[leaf]
    if leaf.buffer is None or leaf.name.startswith(SHARED):
        return None
    layer = layer_of_weight(leaf.name, n_layer)
    if layer is not None:
        return layer
    return BEFORE if node.op.name == "GET_ROWS" else n_layer  # an embedding that is the output, too


@dataclass(slots=True)
class Traffic:
    """The copies that layers `first` to `end` - 1 need, [first, end], and their bytes, over all
    passes."""

    inputs: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Number and bytes of copies of tensors that exist before the first layer."""
    crossing: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Number and bytes of copies of the results of layers before `first`."""
    result: tuple[float, float]
    """Number and bytes of copies of the outputs of the graph."""
    values: list[Tensor] = field(default_factory=list)


def traffic(
    graph: Graph, of: Mapping[Tensor, int], n_layer: int, points: Sequence[Point]
) -> Traffic:
    """The copies that are needed if layers are on different devices."""
    size = n_layer + 2
    tables = [np.zeros((size, size)) for _ in range(4)]
    read_in: dict[Tensor, set[int]] = {}
    for node, layer in of.items():
        for src in node.src:
            if src is not None and src is not node:
                read_in.setdefault(src, set()).add(layer)
    found = []
    for value, layers in read_in.items():
        base = value.base
        if base.buffer is not None and not base.name.startswith(SHARED):
            continue
        made = of.get(base, BEFORE) if base.buffer is None else 0
        later = sorted(n for n in layers if n > made)
        if not later:
            continue
        if made >= 0:
            found.append(value)
        copies, nbytes = tables[2:] if made >= 0 else tables[:2]
        count = sum(p.passes for p in points)
        moved = sum(p.passes * nbytes_at(value, p.values) for p in points)
        for first in range(made + 1, later[-1] + 1):
            following = next(n for n in later if n >= first)
            copies[first, following + 1 :] += count
            nbytes[first, following + 1 :] += moved
    return Traffic(
        (tables[0], tables[1]),
        (tables[2], tables[3]),
        _result(graph.outputs.values(), points),
        found,
    )


def _result(outputs: Collection[Tensor], points: Sequence[Point]) -> tuple[float, float]:
    count = sum(p.passes for p in points) * len(outputs)
    moved = sum(p.passes * nbytes_at(t, p.values) for p in points for t in outputs)
    return count, moved


def cache_layers(cache: KVCache, n_layer: int) -> dict[Tensor, int]:
    """Leaf of a cache -> its layer."""
    return {leaf: il for il in range(n_layer) for leaf in cache.leaves(il)}


def devices_by_layer(
    graph: Graph, cache: KVCache, of_layer: Sequence[int], backends: Sequence[Backend]
) -> dict[Tensor, int]:
    """Node that does work -> the device of its layer, or another of the same machine if that one
    refuses the node or cannot use the memory of its weights.

    Nodes before the first layer run on the last device. `of_layer` has the device of the output
    behind those of the layers."""
    n_layer, last = len(of_layer) - 1, len(backends) - 1
    of = layers_of(graph, cache_layers(cache, n_layer), n_layer)
    machines = [machine_of(b.name) for b in backends]
    found = {}
    for node, layer in of.items():
        wanted = last if layer == BEFORE else of_layer[layer]
        same = [b for b in range(len(backends)) if machines[b] == machines[wanted]]
        order = [wanted, *(b for b in (*same, *range(len(backends))) if b != wanted)]
        homes = [leaf.buffer.type for leaf in _leaves(node) if leaf.buffer and leaf.buffer.type]
        able = [b for b in order if backends[b].supports_op(node).ok]
        best = [b for b in able if all(backends[b].supports_buffer_type(t) for t in homes)]
        found[node] = (best or able or [wanted])[0]
    return found


def _leaves(node: Tensor) -> list[Tensor]:
    return [t.base for t in (*node.src, node) if t is not None and t.base.buffer is not None]
