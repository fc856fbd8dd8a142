"""`Session`: memory for a program, its executables, and the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Executable, HostMemory, Memory
from weft.dtype import DType
from weft.errors import DeviceError, ProgramError, WeftError
from weft.execute.arena import ArenaPool
from weft.graph.size import Compound, Expr, Size, Sym, evaluate, upper
from weft.program import CopySpec, Program, TensorSpec

__all__ = ["Session"]


class Session:
    """Owns the arenas of a program (or shares a pool's), uploads weights, and runs.

    `run` is the simple way in: NumPy in, NumPy out. A caller that runs the same program many times
    writes straight into `input_view`, calls `execute`, and reads `output_view`."""

    def __init__(self, program: Program, arenas: ArenaPool | None = None) -> None:
        """Raises OutOfMemoryError when an arena cannot be had, ProgramError on a bad program."""
        self.program = program
        self.arenas = arenas if arenas is not None else ArenaPool()
        numbers: dict[int, int] = {}
        self._memories: list[Memory] = []
        for spec in program.buffers:
            if spec.kind == "arena":
                number = numbers.get(id(spec.buffer_type), 0)
                numbers[id(spec.buffer_type)] = number + 1
                self._memories.append(self.arenas.block(spec.buffer_type, number, spec.size))
            else:
                self._memories.append(_bound_memory(spec.data, spec.buffer_type))
        backends = {b.name: b for b in program.devices}
        self._executables: list[Executable] = [
            backends[split.device].lower(program, i, self._memories)
            for i, split in enumerate(program.splits)
        ]
        self._plan: list[tuple[int, tuple[CopySpec, ...], Executable]] = [
            (i, split.copies, self._executables[i]) for i, split in enumerate(program.splits)
        ]
        self._staging: dict[int, NDArray[np.uint8]] = {}
        self.copied_bytes = 0
        """Bytes copied between memories so far."""
        self._single: Any = None
        if len(self._plan) == 1 and not self._plan[0][1]:
            # a native executable takes plain numbers, so that a run costs one call
            run_values = getattr(self._plan[0][2], "run_values", None)
            if run_values is not None:
                self._single = (run_values, tuple(program.symbols))

    # ---- the simple way --------------------------------------------------------------------------

    def run(
        self, inputs: Mapping[str, Any], symbols: Mapping[str, int] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Runs once; returns the outputs by name, in PyTorch order of sizes, as fresh arrays.

        `inputs` must name every input; each array must have the input's shape (leading ones may be
        left out) and element type (bf16 as uint16 bits, block types as uint8 rows). Symbols are
        read from the shapes unless given. Raises ProgramError naming the input and its shape."""
        program = self.program
        unknown = sorted(set(inputs) - set(program.inputs))
        missing = sorted(set(program.inputs) - set(inputs))
        if unknown or missing:
            raise ProgramError(
                f"inputs do not match the program: missing {missing or 'none'}, unknown "
                f"{unknown or 'none'}; it takes {sorted(program.inputs)}"
            )
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        values = self._symbol_values(arrays, dict(symbols or {}))
        for name, array in arrays.items():
            spec = program.tensors[program.inputs[name]]
            self._write(program.inputs[name], _checked(name, array, spec, values))
        self.execute(values)
        return {name: self.output(name, values) for name in program.outputs}

    def output(self, name: str, values: Mapping[str, int]) -> NDArray[Any]:
        """A copy of an output after a run with these symbol values."""
        index = self.program.outputs.get(name)
        if index is None:
            raise ProgramError(
                f"no output {name!r}; the program has {sorted(self.program.outputs)}"
            )
        spec = self.program.tensors[index]
        ne = [evaluate(n, values) for n in spec.ne]
        nb = [evaluate(n, values) for n in spec.nb]
        nbytes = _extent(spec.dtype, ne, nb)
        raw = self._memories[spec.buffer].read(evaluate(spec.offset, values), nbytes)
        blocks = ne[0] // spec.dtype.block
        item = spec.dtype.storage.itemsize
        per_block = spec.dtype.bytes // item
        shape = (ne[3], ne[2], ne[1], blocks, per_block)
        strides = (nb[3], nb[2], nb[1], nb[0], item)
        array = np.ndarray(shape, spec.dtype.storage, raw.data, 0, strides)
        full = np.ascontiguousarray(array).reshape(ne[3], ne[2], ne[1], blocks * per_block)
        dims = max((d + 1 for d in range(4) if ne[d] != 1), default=1)
        declared = max((d + 1 for d in range(4) if spec.ne[d] != 1), default=1)
        return full.reshape(full.shape[4 - max(dims, declared) :])

    # ---- the fast way ----------------------------------------------------------------------------

    def input_view(self, name: str) -> NDArray[Any]:
        """A flat array of an input's storage at the symbols' maxima. With smaller symbols the input
        is contiguous at its start. Call `upload(name)` after writing, before `execute`."""
        index = _find(self.program.inputs, name, "input")
        return self._flat(index)

    def upload(self, name: str) -> None:
        """Sends a written `input_view` to a device whose memory the host cannot address; nothing to
        do for host memory."""
        index = self.program.inputs[name]
        if index in self._staging:
            spec = self.program.tensors[index]
            self._memories[spec.buffer].write(upper(spec.offset), self._staging[index])

    def output_view(self, name: str) -> NDArray[Any]:
        """A flat array of an output's storage at the symbols' maxima, in place for host memory.

        Valid until the next run. For other memory it is a copy made at the call."""
        index = self.program.outputs.get(name)
        if index is None:
            raise ProgramError(
                f"no output {name!r}; the program has {sorted(self.program.outputs)}"
            )
        view = self._flat(index)
        if index in self._staging:
            spec = self.program.tensors[index]
            raw = self._memories[spec.buffer].read(upper(spec.offset), self._staging[index].nbytes)
            self._staging[index][:] = raw
        return view

    def execute(self, values: Mapping[str, int]) -> None:
        """Runs every split with these symbol values over whatever the inputs hold.

        Raises ProgramError on a value outside the plan, DeviceError naming device and split when a
        device fails, KeyboardInterrupt when interrupted; the session can run again after each."""
        if self._single is not None:
            run_values, names = self._single
            try:
                run_values([values[s] for s in names])
            except (ValueError, KeyError) as error:
                raise ProgramError(f"cannot run: {error}") from error
            return
        for number, copies, executable in self._plan:
            device = self.program.splits[number].device
            try:
                for copy in copies:
                    self._copy(copy, values)
                executable.run(values)
            except WeftError as error:
                raise type(error)(f"split {number} on {device}: {error}") from error
            except (MemoryError, OSError, ValueError, ArithmeticError) as error:
                raise DeviceError(f"split {number} on {device}: {error!r}") from error

    @property
    def executables(self) -> list[Executable]:
        """The executables, one per split."""
        return self._executables

    def read_buffer(self, buffer: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of one of the program's buffers, for tests and tools."""
        return self._memories[buffer].read(offset, nbytes)

    # ---- memory ----------------------------------------------------------------------------------

    def _flat(self, index: int) -> NDArray[Any]:
        spec = self.program.tensors[index]
        nbytes = _max_bytes(spec)
        host = self._memories[spec.buffer].host()
        if host is None:
            if index not in self._staging:
                self._staging[index] = np.zeros(nbytes, np.uint8)
            return self._staging[index].view(spec.dtype.storage)
        start = upper(spec.offset)
        return host[start : start + nbytes].view(spec.dtype.storage)

    def _write(self, index: int, array: NDArray[Any]) -> None:
        spec = self.program.tensors[index]
        raw = array.reshape(-1).view(np.uint8)
        self._memories[spec.buffer].write(upper(spec.offset), raw)

    def _copy(self, copy: CopySpec, values: Mapping[str, int]) -> None:
        src, dst = self.program.tensors[copy.src], self.program.tensors[copy.dst]
        ne = [evaluate(n, values) for n in src.ne]
        nb = [evaluate(n, values) for n in src.nb]
        nbytes = _extent(src.dtype, ne, nb)
        data = self._memories[src.buffer].read(evaluate(src.offset, values), nbytes)
        self._memories[dst.buffer].write(evaluate(dst.offset, values), data)
        self.copied_bytes += nbytes

    def _symbol_values(
        self, arrays: dict[str, NDArray[Any]], given: dict[str, int]
    ) -> dict[str, int]:
        """Symbol values from the shapes of the inputs, where they are not given."""
        values = dict(given)
        for name, array in arrays.items():
            spec = self.program.tensors[self.program.inputs[name]]
            shape = _ne_of(array, spec.dtype)
            for size, actual in zip(spec.ne, shape, strict=True):
                solved = _solve(size, actual)
                if solved is not None:
                    sym, value = solved
                    values.setdefault(sym.name, value)
        for sym in self.program.symbols.values():
            if sym.name not in values:
                raise ProgramError(f"no input tells the value of symbol {sym.name}; pass symbols=")
            if not sym.min <= values[sym.name] <= sym.max:
                raise ProgramError(
                    f"symbol {sym.name} is {values[sym.name]}; the program was planned for "
                    f"{sym.min}..{sym.max}"
                )
        return values


def _find(names: Mapping[str, int], name: str, what: str) -> int:
    if name not in names:
        raise ProgramError(f"no {what} {name!r}; the program has {sorted(names)}")
    return names[name]


def _bound_memory(data: Any, buffer_type: Any) -> Memory:
    """Memory that exists already: a NumPy array is host memory, used in place where the buffer type
    is the host's and uploaded where it is not."""
    if not isinstance(data, np.ndarray):
        memory: Memory = data
        return memory
    host = HostMemory(data)
    if buffer_type.is_host:
        return host
    uploaded: Memory = buffer_type.allocate(host.nbytes)
    uploaded.write(0, host.host())
    return uploaded


def _extent(dtype: DType, ne: list[int], nb: list[int]) -> int:
    if 0 in ne:
        return 0
    steps = (ne[0] // dtype.block - 1, ne[1] - 1, ne[2] - 1, ne[3] - 1)
    return dtype.bytes + sum(n * b for n, b in zip(steps, nb, strict=True))


def _max_bytes(spec: TensorSpec) -> int:
    return _extent(spec.dtype, [upper(n) for n in spec.ne], [upper(n) for n in spec.nb])


def _ne_of(array: NDArray[Any], dtype: DType) -> tuple[int, int, int, int]:
    """Sizes of an input array, innermost first; rows of blocks count elements."""
    shape = list(array.shape[::-1]) or [1]
    if dtype.is_quantized:
        shape[0] = shape[0] // dtype.bytes * dtype.block
    shape += [1] * (4 - len(shape))
    if len(shape) > 4:
        # leading ones are harmless
        if any(n != 1 for n in shape[4:]):
            raise ProgramError(f"an input has at most 4 dimensions, got shape {array.shape}")
        shape = shape[:4]
    return (shape[0], shape[1], shape[2], shape[3])


def _solve(size: Size, actual: int) -> tuple[Sym, int] | None:
    """The symbol in `coefficient * symbol + constant` that makes it `actual`, if it is of that
    form."""
    if not isinstance(size, Expr):
        return None
    constant = size.terms.get((), 0)
    rest = [(mono, c) for mono, c in size.terms.items() if mono]
    if len(rest) != 1:
        return None
    (mono, coefficient) = rest[0]
    if len(mono) != 1 or isinstance(mono[0], Compound) or (actual - constant) % coefficient:
        return None
    return mono[0], (actual - constant) // coefficient


def _checked(
    name: str, array: NDArray[Any], spec: TensorSpec, values: Mapping[str, int]
) -> NDArray[Any]:
    want = tuple(evaluate(n, values) for n in spec.ne)
    got = _ne_of(array, spec.dtype)
    if got != want:
        raise ProgramError(
            f"input {name!r} has shape {array.shape}, wants {_shape(want)} of {spec.dtype.name}"
        )
    if array.dtype != spec.dtype.storage:
        raise ProgramError(
            f"input {name!r} has element type {array.dtype}, wants {spec.dtype.storage} "
            f"({spec.dtype.name}); convert it first, e.g. array.astype('{spec.dtype.storage}')"
        )
    return np.ascontiguousarray(array)


def _shape(ne: tuple[int, ...]) -> tuple[int, ...]:
    dims = max((d + 1 for d in range(4) if ne[d] != 1), default=1)
    return tuple(reversed(ne[:dims]))
