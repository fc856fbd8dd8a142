"""The reference backend as the planner sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import quants
from weft.backends.base import YES, BackendBase, DeviceKind, Support
from weft.backends.memory import BufferType, Memory
from weft.backends.reference.executable import ReferenceExecutable
from weft.backends.reference.kernel import find_kernel, needs_kernel
from weft.backends.reference.memory import REFERENCE
from weft.graph.ops import ConvTranspose1dParams, SolveTriParams
from weft.graph.tensor import Tensor


class ReferenceBackend(BackendBase):
    """NumPy for every op: the definition that other devices are tested against."""

    name: str = "reference"
    kind: DeviceKind = "CPU"
    buffer_type: BufferType = REFERENCE

    def supports_op(self, node: Tensor) -> Support:
        """Supports every op, except results of a type that cannot be encoded at run time."""
        if not needs_kernel(node.op):
            return YES
        if find_kernel(node.op) is None:
            return Support(False, f"{node.op} has no reference kernel")
        target = node.dtype.name
        if node.op.name in _ACTIVATIONS and target != "f32":
            if target not in ("q8_0", "q8_1", "q8_K", "f16", "bf16"):
                return Support(False, f"activations cannot be quantized to {target}")
        elif not quants.can_encode(node.dtype) and not _moves(node):
            return Support(False, f"results cannot be written as {target}")
        return _supports_params(node)

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> ReferenceExecutable:
        """An executable for one split; raises DeviceError for memory of another device."""
        return ReferenceExecutable(program, split, memories)

    def __repr__(self) -> str:
        return self.name


_ACTIVATIONS = ("QUANTIZE", "GLU_QUANTIZE", "NORM_SCALE")
"""Ops that write blocks with the rounding of a matmul's activations."""

_MOVES = frozenset(
    {"DUP", "CPY", "CONT", "CONCAT", "REPEAT", "GET_ROWS", "SET_ROWS", "ROLL", "GET_REL_POS"}
)


def _moves(node: Tensor) -> bool:
    """Whether the result's blocks come from a source of the same type, unread."""
    source = node.src[0]
    return node.op.name in _MOVES and source is not None and source.dtype is node.dtype


def _supports_params(node: Tensor) -> Support:
    p = node.params
    if isinstance(p, SolveTriParams) and (p.uni or not (p.left and p.lower)):
        return Support(False, "SOLVE_TRI is only defined for left, lower, non-unit systems")
    if isinstance(p, ConvTranspose1dParams) and (p.padding != 0 or p.dilation != 1):
        return Support(False, "CONV_TRANSPOSE_1D is only defined for padding 0 and dilation 1")
    return YES
