"""The questions of the passes to the backends; each answer is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.backends.base import Backend
from weft.errors import ScheduleError
from weft.graph.tensor import Tensor
from weft.schedule.offload import OpOffload, OpOffloadLike, read_op_offload


class Devices:
    """The backends of one `schedule` call, highest priority first."""

    __slots__ = (
        *("_buffer_types", "_ops", "backends", "buffer_types", "last", "n", "op_offload"),
        "refusals",
    )

    def __init__(self, backends: Sequence[Backend], op_offload: OpOffloadLike = None) -> None:
        if not backends:
            raise ScheduleError("no devices to schedule on; give at least a CPU-type one")
        if backends[-1].kind != "CPU":
            names = ", ".join(b.name for b in backends)
            raise ScheduleError(
                f"the last device must be of kind CPU, it runs what no other can; "
                f"{backends[-1].name} is {backends[-1].kind} (devices: {names})"
            )
        self.backends = tuple(backends)
        self.n = len(self.backends)
        self.last = self.n - 1
        self.op_offload: OpOffload = read_op_offload(op_offload)
        self.buffer_types: list[Any] = [b.buffer_type for b in self.backends]
        self.refusals: dict[tuple[Tensor, int], str] = {}
        self._ops: list[dict[Tensor, bool]] = [{} for _ in self.backends]
        self._buffer_types: list[dict[int, bool]] = [{} for _ in self.backends]

    def supports_op(self, backend: int, node: Tensor) -> bool:
        """Whether the backend runs `node`; the reason of a refusal is kept in `refusals`."""
        answers = self._ops[backend]
        ok = answers.get(node)
        if ok is None:
            support = self.backends[backend].supports_op(node)
            ok = answers[node] = support.ok
            if not ok:
                why = support.why or f"does not run {node.op.name}"
                self.refusals[(node, backend)] = why
        return ok

    def supports_buffer_type(self, backend: int, buffer_type: Any) -> bool:
        """Whether the backend's kernels read `buffer_type` without a copy."""
        answers = self._buffer_types[backend]
        ok = answers.get(id(buffer_type))
        if ok is None:
            ok = answers[id(buffer_type)] = self.backends[backend].supports_buffer_type(buffer_type)
        return ok

    def type_of(self, tensor: Tensor) -> Any:
        """The buffer type of the memory that `tensor` (or its base) already has, else None.

        A buffer without a type is plain host memory, which belongs to the last device."""
        base = tensor if tensor.view_src is None else tensor.view_src
        if base.buffer is None:
            return None
        return self.buffer_types[self.last] if base.buffer.type is None else base.buffer.type

    def offloads(self, backend: int, node: Tensor) -> bool:
        """Whether the backend takes `node` although its weights are on the host."""
        takes = self.op_offload.asks
        return self.supports_op(backend, node) and takes(self.backends[backend], node)
