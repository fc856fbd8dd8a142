"""Puts nodes that do not depend on each other side by side, so that they can share a stage.

A graph is written branch after branch: the queries' product, their rotation, the keys' product.
Here each node moves up towards the first place where its sources are computed, but not far, because
a result computed long before its use takes memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from weft.graph.op import NONE
from weft.graph.tensor import Tensor

_REACH = 8
"""The largest number of stages that a node may move up."""


def side_by_side(nodes: Sequence[Tensor]) -> list[Tensor]:
    """The nodes sorted by stage.

    The stage of a node is one later than the last of those it reads. Where it writes memory that
    exists already (a cache), it is also later than all nodes that touched it before."""
    shared = _Overwritten(nodes)
    level: dict[Tensor, int] = {}
    placed = []
    last = 0
    for number, node in enumerate(nodes):
        if node.op.is_view or node.op is NONE:
            stage = max((level.get(src, 0) for src in node.src if src is not None), default=0)
        else:
            stage = max(0, last - _REACH)
            for src in node.src:
                if src in level and level[src] >= stage:
                    stage = level[src] + 1
            stage = shared.touch(node, stage)
            last = max(last, stage)
        level[node] = stage
        placed.append((stage, number, node))
    placed.sort(key=itemgetter(0, 1))
    return [node for _, _, node in placed]


class _Overwritten:
    """Memory that nodes write although it holds a value already: caches, results taken over."""

    def __init__(self, nodes: Sequence[Tensor]) -> None:
        targets = (n.view_src for n in nodes if not n.op.is_view and n.op is not NONE)
        self._memories = {_memory(t) for t in targets if t is not None}
        self._written: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._known: dict[Tensor, int] = {}

    def touch(self, node: Tensor, stage: int) -> int:
        """The first stage from `stage` on that keeps `node` in order with earlier users of the same
        memory."""
        if not self._memories:
            return stage
        read = {self._of(src) for src in node.src if src is not None} & self._memories
        own = self._of(node)
        for memory in read:
            stage = max(stage, self._written.get(memory, -1) + 1)
        if own in self._memories:
            stage = max(stage, self._used.get(own, -1) + 1)
            self._written[own] = self._used[own] = stage
        for memory in read:
            self._used[memory] = max(self._used.get(memory, -1), stage)
        return stage

    def _of(self, tensor: Tensor) -> int:
        base = tensor if tensor.view_src is None else tensor.view_src
        memory = self._known.get(base)
        if memory is None:
            memory = self._known[base] = _memory(base)
        return memory


def _memory(base: Tensor) -> int:
    """A number that tensors in the same memory share."""
    if base.buffer is None or base.buffer.data is None:
        return id(base)
    data = base.buffer.data
    # arrays may be views of each other
    while isinstance(data, np.ndarray) and isinstance(data.base, np.ndarray):
        data = data.base
    return id(data)
