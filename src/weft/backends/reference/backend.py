"""The reference backend as planner and executor see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft import quants
from weft.backends.base import YES, BackendBase, DeviceKind, Support
from weft.backends.memory import BufferType, Memory
from weft.backends.reference.kernel import Call, Kernel, find_kernel, needs_kernel
from weft.backends.reference.memory import REFERENCE, ReferenceMemory
from weft.backends.reference.view import ArrayView
from weft.errors import DeviceError
from weft.graph.ops import ConvTranspose1dParams, SolveTriParams
from weft.graph.size import evaluate, symbols
from weft.graph.tensor import Ne, Tensor
from weft.program import Program, StepSpec, TensorSpec

_MAX_BOUND = 8
"""The number of sets of symbol values whose views are kept."""


class ReferenceExecutable:
    """Runs one split of a program; views are built once for each set of sizes, then each step is
    one kernel call. Raises DeviceError for memory that is not the backend's own."""

    def __init__(self, program: Program, split: int, memories: Sequence[Memory]) -> None:
        self._tensors = program.tensors
        self._memories = memories
        self._steps: list[tuple[StepSpec, Kernel]] = []
        for step in program.splits[split].steps:
            kernel = find_kernel(step.op)
            if kernel is not None:
                self._steps.append((step, kernel))
            elif needs_kernel(step.op):
                raise DeviceError(f"reference has no kernel for {step.op}; give it another device")
        used = {i for step, _ in self._steps for i in (step.dst, *step.src) if i >= 0}
        self._names = {i: _symbol_names(self._tensors[i]) for i in used}
        self._symbols = sorted({name for names in self._names.values() for name in names})
        self._views: dict[int, tuple[tuple[int, ...], ArrayView]] = {}
        """By tensor: the values of its symbols, and the view that was made for them last."""
        for i in used:
            if not self._names[i]:
                self._view_for(i, {})
        self._bound: dict[tuple[int, ...], list[tuple[Kernel, Call, StepSpec]]] = {}

    def run(self, values: Mapping[str, int]) -> None:
        """Runs every step in order; raises DeviceError naming the step that failed."""
        with np.errstate(all="ignore"):
            for kernel, call, step in self._bind(values):
                try:
                    kernel(call)
                except Exception as error:
                    why = str(error) or type(error).__name__
                    raise DeviceError(f"reference: {self._describe(step, call)}: {why}") from error

    def _bind(self, values: Mapping[str, int]) -> list[tuple[Kernel, Call, StepSpec]]:
        missing = [name for name in self._symbols if name not in values]
        if missing:
            raise DeviceError(f"reference: no value for symbol {', '.join(missing)}")
        key = tuple(values[name] for name in self._symbols)
        bound = self._bound.get(key)
        if bound is None:
            views = {i: self._view_for(i, values) for i in self._names}
            bound = [
                (
                    kernel,
                    Call(
                        views[step.dst],
                        tuple(views[i] if i >= 0 else None for i in step.src),
                        step.params,
                    ),
                    step,
                )
                for step, kernel in self._steps
                if 0 not in views[step.dst].ne
            ]
            if len(self._bound) == _MAX_BOUND:
                del self._bound[next(iter(self._bound))]
            self._bound[key] = bound
        return bound

    def _view_for(self, i: int, values: Mapping[str, int]) -> ArrayView:
        """The last view of a tensor where its symbols have the same values, else a new one."""
        key = tuple([values[name] for name in self._names[i]])
        last = self._views.get(i)
        if last is None or last[0] != key:
            last = self._views[i] = key, self._view(i, values)
        return last[1]

    def _view(self, i: int, values: Mapping[str, int]) -> ArrayView:
        spec = self._tensors[i]
        memory = self._memories[spec.buffer]
        if not isinstance(memory, ReferenceMemory):
            raise DeviceError(
                f"tensor {spec.name or i} is in {type(memory).__name__}; the reference backend "
                "only reaches its own memory: copy it to buffer type Reference first"
            )
        return ArrayView(
            spec.dtype,
            _numbers(spec.ne, values),
            _numbers(spec.nb, values),
            memory.private(),
            evaluate(spec.offset, values),
            spec.name,
        )

    def _describe(self, step: StepSpec, call: Call) -> str:
        """A step as text, such as `MUL_MAT -> ffn_out f32[64, 3]`."""
        name = self._tensors[step.dst].name or f"tensor {step.dst}"
        sources = ", ".join(
            "-" if v is None else f"{v.name or '?'} {v.dtype.name}{list(v.ne)}" for v in call.src
        )
        return f"{step.op}({sources}) -> {name} {call.dst.dtype.name}{list(call.dst.ne)}"


def _symbol_names(spec: TensorSpec) -> tuple[str, ...]:
    """Names of the symbols in a tensor's sizes."""
    sizes = (*spec.ne, *spec.nb, spec.offset)
    return tuple(sorted({symbol.name for size in sizes for symbol in symbols(size)}))


def _numbers(sizes: Ne, values: Mapping[str, int]) -> tuple[int, int, int, int]:
    a, b, c, d = (evaluate(size, values) for size in sizes)
    return a, b, c, d


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
