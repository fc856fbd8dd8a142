"""The choice of weights that are repacked, over all plans that share them.

It follows placement and memory planning, because it moves constant data only and changes no byte of
the arenas. A weight that something reads as rows stays where it is, used in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

import numpy as np

from weft.backends.base import Backend, Use
from weft.backends.memory import HostMemory, WeightBufferType
from weft.graph.op import NONE, Op
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule import Schedule

T = TypeVar("T")

Layouts = Mapping[Tensor, WeightBufferType]
"""Weight leaf -> the memory that it is repacked into."""


def choose_layouts(schedules: Sequence[Schedule]) -> dict[Tensor, WeightBufferType]:
    """The weights that are repacked, for plans (of the same devices) that share leaves.

    A weight is repacked if it is a whole tensor of the host, used there or sent to a device, if
    every reader is a step of one backend, and if that backend offers a buffer type for these uses
    (`Backend.weight_layout`). Floats that another device reads as rows stay rows, too, as they
    would on one device: products of panels are summed in another order."""
    chosen: dict[Tensor, WeightBufferType] = {}
    usage = _Usage.of(schedules)
    for leaf, backend, uses in usage.of_one_backend():
        buffer_type = backend.weight_layout(leaf, uses)
        if buffer_type is not None and not usage.is_read_elsewhere(leaf):
            chosen[leaf] = buffer_type
    return usage.without_twins(chosen)


def of_one_op(schedules: Sequence[Schedule], op: Op) -> dict[Tensor, tuple[Backend, list[Use]]]:
    """The weights that plans read only as source 0 of this op, each on one backend, and nothing
    else reads."""
    usage = _Usage.of(schedules)
    chosen = {
        leaf: (backend, uses)
        for leaf, backend, uses in usage.of_one_backend()
        if all(use.source == 0 and use.node.op is op for use in uses)
    }
    return usage.without_twins(chosen)


@dataclass(slots=True)
class _Usage:
    uses: dict[Tensor, list[Use]] = field(default_factory=dict)
    backends: dict[Tensor, list[Backend]] = field(default_factory=dict)
    as_rows: dict[Tensor, None] = field(default_factory=dict)
    """Leaves that are copied, viewed, written or outputs."""

    @staticmethod
    def of(schedules: Sequence[Schedule]) -> _Usage:
        usage = _Usage()
        for schedule in schedules:
            _gather(schedule, usage)
        return usage

    def of_one_backend(self) -> Iterator[tuple[Tensor, Backend, list[Use]]]:
        """The whole tensors of the host that only steps of one backend read."""
        for leaf, uses in self.uses.items():
            backends = self.backends[leaf]
            if leaf not in self.as_rows and len(backends) == 1 and _is_whole(leaf, backends[0]):
                yield leaf, backends[0], uses

    def is_read_elsewhere(self, leaf: Tensor) -> bool:
        """Whether another leaf, in other memory, has the same bytes as a leaf of floats: an
        embedding that is also the output, for one."""
        if leaf.dtype.is_quantized or leaf.buffer is None:
            return False
        data = id(leaf.buffer.data)
        return any(
            other is not leaf and other.buffer is not None and id(other.buffer.data) == data
            for other in (*self.uses, *self.as_rows)
        )

    def without_twins(self, chosen: Mapping[Tensor, T]) -> dict[Tensor, T]:
        """`chosen` without leaves over whose bytes there is another leaf, which would keep them in
        memory twice."""
        plain = {_data(leaf) for leaf in (*self.uses, *self.as_rows) if leaf not in chosen}
        return {leaf: value for leaf, value in chosen.items() if _data(leaf) not in plain}


def _gather(schedule: Schedule, usage: _Usage) -> None:
    """Adds the uses that a schedule makes of its weights."""
    for split in schedule.splits:
        backend = schedule.backends[split.backend]
        for copy in split.copies:
            _mark(usage, copy)
        for node in split.nodes:
            if node.op is NONE or node.op.is_view:
                continue  # only readers of a view count
            _mark(usage, (node,))
            for number, source in enumerate(node.src):
                if source is None:
                    continue
                if not _is_weight(source):
                    _mark(usage, (source,))
                    continue
                usage.uses.setdefault(source, []).append(Use(node, number))
                readers = usage.backends.setdefault(source, [])
                if backend not in readers:
                    readers.append(backend)
    graph = schedule.graph
    _mark(usage, (schedule.final_of(t) for t in (*graph.outputs.values(), *graph.inputs.values())))


def _mark(usage: _Usage, tensors: Iterable[Tensor]) -> None:
    """Marks the tensors whose memory these tensors share: they are needed as rows."""
    for tensor in tensors:
        for base in _bases(tensor):
            if _is_weight(base):
                usage.as_rows[base] = None


def _bases(tensor: Tensor) -> Iterator[Tensor]:
    yield tensor
    if tensor.view_src is not None:
        yield tensor.view_src


def _is_weight(tensor: Tensor) -> bool:
    buffer = tensor.buffer
    return tensor.op is NONE and tensor.view_src is None and buffer is not None \
        and buffer.usage == "weights"  # fmt: skip


def _is_whole(leaf: Tensor, backend: Backend) -> bool:
    """Whether the leaf is the whole of a host array, in host memory or to be sent to memory of
    `backend`."""
    buffer = leaf.buffer
    if buffer is None or buffer.offset != 0 or not isinstance(buffer.data, np.ndarray | HostMemory):
        return False
    here = buffer.type is None or buffer.type.is_host or buffer.type is backend.buffer_type
    return here and leaf.is_contiguous and buffer.data.nbytes == leaf.max_bytes


def _data(leaf: Tensor) -> tuple[int, int]:
    """A key for the bytes of a leaf: the data, and the device that they are sent to."""
    buffer = leaf.buffer
    if buffer is None or buffer.data is None:
        return id(leaf), 0
    on_host = buffer.type is None or buffer.type.is_host
    return id(buffer.data), 0 if on_host else id(buffer.type)
