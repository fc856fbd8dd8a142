"""Which weights are worth another layout: a decision over all plans that share them.

It comes after placement and memory: only where constant data lives changes, and no byte of the
arenas. A weight that something reads as rows stays where it is, used in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.backends.base import Backend, Use
from weft.backends.memory import HostMemory, WeightBufferType
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.schedule import Schedule

__all__ = ["Layouts", "choose_layouts"]

Layouts = Mapping[Tensor, WeightBufferType]
"""Weight leaf -> the memory that it is repacked into."""


def choose_layouts(schedules: Sequence[Schedule]) -> dict[Tensor, WeightBufferType]:
    """The weights that are repacked, for plans (of the same devices) that share leaves.

    A weight is repacked if it is a whole tensor of the host, used there or sent to a device, all
    that ever reads it are steps of one backend, and that backend offers a buffer type for these
    uses (`Backend.weight_layout`)."""
    found = _Found()
    for schedule in schedules:
        _gather(schedule, found)
    chosen: dict[Tensor, WeightBufferType] = {}
    for leaf, uses in found.uses.items():
        backends = found.backends[leaf]
        if leaf in found.as_rows or len(backends) != 1 or not _is_whole(leaf, backends[0]):
            continue
        buffer_type = backends[0].weight_layout(leaf, uses)
        if buffer_type is not None:
            chosen[leaf] = buffer_type
    # another leaf over the same bytes would keep them in memory twice
    plain = {_data(leaf) for leaf in (*found.uses, *found.as_rows) if leaf not in chosen}
    return {leaf: t for leaf, t in chosen.items() if _data(leaf) not in plain}


@dataclass(slots=True)
class _Found:
    uses: dict[Tensor, list[Use]] = field(default_factory=dict)
    backends: dict[Tensor, list[Backend]] = field(default_factory=dict)
    as_rows: dict[Tensor, None] = field(default_factory=dict)
    """Leaves that are copied, viewed, written or outputs."""


def _gather(schedule: Schedule, found: _Found) -> None:
    """Adds what a schedule does with its weights."""
    for split in schedule.splits:
        backend = schedule.backends[split.backend]
        for copy in split.copies:
            _mark(found, copy)
        for node in split.nodes:
            if node.op is NONE or node.op.is_view:
                continue  # what reads a view is what counts
            _mark(found, (node,))
            for number, source in enumerate(node.src):
                if source is None:
                    continue
                if not _is_weight(source):
                    _mark(found, (source,))
                    continue
                found.uses.setdefault(source, []).append(Use(node, number))
                readers = found.backends.setdefault(source, [])
                if backend not in readers:
                    readers.append(backend)
    graph = schedule.graph
    _mark(found, (schedule.final_of(t) for t in (*graph.outputs.values(), *graph.inputs.values())))


def _mark(found: _Found, tensors: Iterable[Tensor]) -> None:
    """What these tensors share memory with is needed as rows."""
    for tensor in tensors:
        for base in _bases(tensor):
            if _is_weight(base):
                found.as_rows[base] = None


def _bases(tensor: Tensor) -> Iterator[Tensor]:
    yield tensor
    if tensor.view_src is not None:
        yield tensor.view_src


def _is_weight(tensor: Tensor) -> bool:
    buffer = tensor.buffer
    return tensor.op is NONE and tensor.view_src is None and buffer is not None \
        and buffer.usage == "weights"  # fmt: skip


def _is_whole(leaf: Tensor, backend: Backend) -> bool:
    """Whether the leaf is all of an array that the host has, in memory of the host's or to be sent
    to that of `backend`."""
    buffer = leaf.buffer
    if buffer is None or buffer.offset != 0 or not isinstance(buffer.data, np.ndarray | HostMemory):
        return False
    here = buffer.type is None or buffer.type.is_host or buffer.type is backend.buffer_type
    return here and leaf.is_contiguous and buffer.data.nbytes == leaf.max_bytes


def _data(leaf: Tensor) -> tuple[int, int]:
    """What tells apart the bytes of leaves: the data, and the device that it is sent to."""
    buffer = leaf.buffer
    if buffer is None or buffer.data is None:
        return id(leaf), 0
    on_host = buffer.type is None or buffer.type.is_host
    return id(buffer.data), 0 if on_host else id(buffer.type)
