"""A split of products, bound to host memory: one list of library calls per set of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.backends.blas.library import OPENBLAS
from weft.backends.blas.weights import DecodedWeights, decode_into, floats
from weft.backends.memory import Memory
from weft.errors import DeviceError, ProgramError
from weft.graph.size import Size, evaluate, symbols, upper
from weft.program import Program, StepSpec
from weft.records import dataclass

_MAX_BOUND = 8
"""The number of sets of symbol values whose calls are kept."""

Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A tensor at run time: sizes and byte strides innermost first, and its address."""

    ne: tuple[int, ...]
    nb: tuple[int, ...]
    address: int

    def plane(self, i2: int, i3: int) -> int:
        """The address of a plane; dimensions 2 and 3 are broadcast."""
        return self.address + i2 * self.nb[2] + i3 * self.nb[3]


class BlasExecutable:
    """Runs the products of one split."""

    def __init__(
        self,
        program: Program,
        split: int,
        memories: Sequence[Memory],
        *,
        device: str,
        n_threads: int,
        decoded: DecodedWeights,
    ) -> None:
        """`device` is its name, for errors; `decoded` are weights that programs share."""
        self._device = device
        self._n_threads = n_threads
        self._decoded = decoded
        self._program = program
        self._memories = memories
        self._steps = program.splits[split].steps
        self._hosts: dict[int, NDArray[np.uint8]] = {}
        used = {i for step in self._steps for i in (step.dst, *step.src) if i >= 0}
        for index in sorted({program.tensors[i].buffer for i in used}):
            host = memories[index].host()
            if host is None:
                name = program.buffers[index].buffer_type.name
                raise ProgramError(f"{device} cannot address {name} memory")
            self._hosts[index] = host
        names = {s.name for i in used for size in self._sizes(i) for s in symbols(size)}
        self._symbols = sorted(names)
        self._weights: dict[int, NDArray[np.float32]] = {}
        self._scratch: NDArray[np.float32] = np.empty(0, np.float32)
        self._prepare()
        self._bound: dict[tuple[int, ...], list[tuple[StepSpec, list[Call]]]] = {}

    def run(self, values: Mapping[str, int]) -> None:
        """Runs every product; raises DeviceError naming the one that failed."""
        OPENBLAS.use_threads(self._n_threads)
        for step, calls in self._bind(values):
            try:
                for call in calls:
                    call()
            except Exception as error:
                name = self._program.tensors[step.dst].name
                raise DeviceError(f"{self._device}: {step.op} -> {name}: {error}") from error

    # ---- weights ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Decodes constant weights while there is room, and makes room to decode the others."""
        room = 0
        for step in self._steps:
            spec = self._program.tensors[step.src[0]]
            if spec.dtype.name == "f32" or step.src[0] in self._weights:
                continue
            matrix = None
            if self._program.buffers[spec.buffer].usage == "weights":
                matrix = self._kept(step.src[0])
            if matrix is not None:
                self._weights[step.src[0]] = matrix
            else:
                room = max(room, upper(spec.ne[0]) * upper(spec.ne[1]))
        self._scratch = floats(room)

    def _kept(self, index: int) -> NDArray[np.float32] | None:
        """A constant matrix in float32; None where it is not constant, or exceeds the bytes that
        the backend may keep."""
        spec = self._program.tensors[index]
        sizes = [n for n in spec.ne if isinstance(n, int)]
        if len(sizes) < 4 or not isinstance(spec.offset, int):
            return None
        nbytes = math.prod(sizes) // spec.dtype.block * spec.dtype.bytes
        raw = self._hosts[spec.buffer][spec.offset : spec.offset + nbytes]
        return self._decoded.get(raw, spec.dtype, self._memories[spec.buffer])

    # ---- calls -----------------------------------------------------------------------------------

    def _sizes(self, index: int) -> tuple[Size, ...]:
        spec = self._program.tensors[index]
        return (*spec.ne, *spec.nb, spec.offset)

    def _bind(self, values: Mapping[str, int]) -> list[tuple[StepSpec, list[Call]]]:
        missing = [name for name in self._symbols if name not in values]
        if missing:
            raise ProgramError(f"no value for symbol {', '.join(missing)}")
        key = tuple(values[name] for name in self._symbols)
        calls = self._bound.get(key)
        if calls is None:
            if len(self._bound) == _MAX_BOUND:
                del self._bound[next(iter(self._bound))]
            calls = self._bound[key] = [(s, self._calls(s, values)) for s in self._steps]
        return calls

    def _matrix(self, index: int, values: Mapping[str, int]) -> _Matrix:
        spec = self._program.tensors[index]
        ne = tuple(evaluate(n, values) for n in spec.ne)
        decoded = self._weights.get(index)
        if decoded is not None:
            row, plane = 4 * ne[0], 4 * ne[0] * ne[1]
            return _Matrix(ne, (4, row, plane, plane * ne[2]), decoded.ctypes.data)
        nb = tuple(evaluate(n, values) for n in spec.nb)
        address = self._hosts[spec.buffer].ctypes.data + evaluate(spec.offset, values)
        return _Matrix(ne, nb, address)

    def _calls(self, step: StepSpec, values: Mapping[str, int]) -> list[Call]:
        a, b, dst = (self._matrix(i, values) for i in (*step.src[:2], step.dst))
        if 0 in dst.ne:
            return []
        calls: list[Call] = []
        decoded = -1
        for i3 in range(dst.ne[3]):
            for i2 in range(dst.ne[2]):
                a2, a3 = i2 * a.ne[2] // dst.ne[2], i3 * a.ne[3] // dst.ne[3]
                at = a.plane(a2, a3)
                if self._needs_decoding(step.src[0]):
                    if at != decoded:
                        calls.append(self._decode_plane(step.src[0], at, a))
                        decoded = at
                    plane = _Matrix(a.ne, (4, 4 * a.ne[0]), self._scratch.ctypes.data)
                    calls.append(_product(step.op.name, plane, plane.address, b, dst, i2, i3))
                else:
                    calls.append(_product(step.op.name, a, at, b, dst, i2, i3))
        return calls

    def _needs_decoding(self, index: int) -> bool:
        return self._program.tensors[index].dtype.name != "f32" and index not in self._weights

    def _decode_plane(self, index: int, address: int, a: _Matrix) -> Call:
        spec = self._program.tensors[index]
        host = self._hosts[spec.buffer]
        start = address - host.ctypes.data
        n = a.ne[0] * a.ne[1]
        raw = host[start : start + n // spec.dtype.block * spec.dtype.bytes]
        out = self._scratch[:n]
        return lambda: decode_into(raw, spec.dtype, out)


def _product(op: str, a: _Matrix, at: int, b: _Matrix, dst: _Matrix, i2: int, i3: int) -> Call:
    """One call: plane (i2, i3) of the result; `at` is the plane of `a` that belongs to it."""
    m, n = dst.ne[1], dst.ne[0]
    to, ldc = dst.plane(i2, i3), dst.nb[1] // 4
    if op == "MUL_MAT":
        # x [m, k] times the weights [n, k] transposed
        shape, lda, ldb = (m, n, a.ne[0]), b.nb[1] // 4, a.nb[1] // 4
        x = b.plane(i2, i3)
        return lambda: OPENBLAS.multiply(shape, (x, lda, False), (at, ldb, True), (to, ldc))
    # b [k, m] transposed times a [k, n]; b may lie as [m, k]
    shape, ldb = (m, n, a.ne[1]), a.nb[1] // 4
    by_rows = b.nb[0] == 4 and b.nb[1] >= 4 * b.ne[0]
    lda = b.nb[1] // 4 if by_rows else b.nb[0] // 4
    source = b.plane(i2, i3)
    return lambda: OPENBLAS.multiply(shape, (source, lda, by_rows), (at, ldb, False), (to, ldc))
