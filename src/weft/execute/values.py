"""NumPy arrays to tensors of a program and back: shapes, symbol values, bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import Memory, ReadsLater
from weft.dtype import DType
from weft.errors import GraphError, ProgramError
from weft.graph.size import Expr, Size, Sym, evaluate, upper
from weft.graph.tensor import n_shown
from weft.program import Program, TensorSpec


def tensor_bytes(dtype: DType, ne: Sequence[int], nb: Sequence[int]) -> int:
    """The bytes from the first to the last element, and the tail in types that have one."""
    if 0 in ne:
        return 0
    steps = (ne[0] // dtype.block - 1, ne[1] - 1, ne[2] - 1, ne[3] - 1)
    return dtype.bytes + sum(n * b for n, b in zip(steps, nb, strict=True)) + dtype.tail


def max_bytes(spec: TensorSpec) -> int:
    """`tensor_bytes` at the symbols' maxima."""
    return tensor_bytes(spec.dtype, [upper(n) for n in spec.ne], [upper(n) for n in spec.nb])


def read_array(spec: TensorSpec, memory: Memory, values: Mapping[str, int]) -> NDArray[Any]:
    """A fresh array of a tensor's elements in PyTorch order, block types as uint8 rows.

    Leading sizes that are 1 by declaration are left out, but those that were given."""
    return array_reader(spec, memory, values)()


def array_reader(
    spec: TensorSpec, memory: Memory, values: Mapping[str, int]
) -> Callable[[], NDArray[Any]]:
    """A function that reads the array of `read_array`, for callers that do so often."""
    where, arranged = _arrangement(spec, values)
    return lambda: arranged(None if where is None else memory.read(*where))


def array_in_place(
    spec: TensorSpec, memory: Memory, values: Mapping[str, int]
) -> NDArray[Any] | None:
    """The array of `read_array` in the memory itself; None where that is not in this process, or
    the elements do not lie in order."""
    data = memory.host()
    where, arranged = _arrangement(spec, values)
    if data is None or where is None:
        return None
    first, nbytes = where
    array = arranged(data[first : first + nbytes])
    return array if np.may_share_memory(array, data) else None


def read_array_later(
    spec: TensorSpec, memory: ReadsLater, values: Mapping[str, int]
) -> Callable[[], NDArray[Any]]:
    """A function that waits for the array of `read_array` as the work so far leaves it."""
    where, arranged = _arrangement(spec, values)
    raw = None if where is None else memory.read_later(*where)
    return lambda: arranged(None if raw is None else raw())


def _arrangement(
    spec: TensorSpec, values: Mapping[str, int]
) -> tuple[tuple[int, int] | None, Callable[[NDArray[np.uint8] | None], NDArray[Any]]]:
    """The first byte of a tensor and the number of its bytes (None: it has no elements), and a
    function that makes these bytes the array of the tensor."""
    ne, nb, offset = spec.at(values)
    storage = spec.dtype.storage
    blocks = ne[0] // spec.dtype.block
    per_block = spec.dtype.bytes // storage.itemsize
    full = (ne[3], ne[2], ne[1], blocks * per_block)
    shape = full[4 - n_shown(spec.ne, spec.rank) :]
    split = (ne[3], ne[2], ne[1], blocks, per_block)
    strides = (nb[3], nb[2], nb[1], nb[0], storage.itemsize)

    def arranged(raw: NDArray[np.uint8] | None) -> NDArray[Any]:
        if raw is None:
            return np.empty(shape, storage)
        array = np.ndarray(split, storage, raw.data, 0, strides)
        return np.ascontiguousarray(array).reshape(shape)

    return None if 0 in ne else (offset, tensor_bytes(spec.dtype, ne, nb)), arranged


def checked(
    name: str, array: NDArray[Any], spec: TensorSpec, values: Mapping[str, int], what: str = "input"
) -> NDArray[np.uint8]:
    """The bytes of `array`, which must have the tensor's shape and element type.

    Leading ones may be left out; bf16 are uint16 bits, block types uint8 rows. Raises ProgramError
    naming the input, its shape and the expected shape."""
    try:
        want = tuple(evaluate(n, values) for n in spec.ne)
    except GraphError as error:
        raise ProgramError(f"{what} {name!r}: {error}; pass symbols=") from error
    actual = ne_of(array, spec.dtype)
    if actual != want:
        shape = _shape(want, spec.rank)
        raise ProgramError(
            f"{what} {name!r} has shape {array.shape}, wants {shape} of {spec.dtype.name}"
        )
    if array.dtype != spec.dtype.storage:
        raise ProgramError(
            f"{what} {name!r} has element type {array.dtype}, wants {spec.dtype.storage} "
            f"({spec.dtype.name}); convert it first, e.g. array.astype('{spec.dtype.storage}')"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def checked_inputs(
    program: Program,
    arrays: Mapping[str, Any],
    symbols: Mapping[str, int],
    before: Mapping[str, int] | None = None,
    *,
    some: bool = False,
) -> tuple[dict[str, int], dict[str, NDArray[np.uint8]]]:
    """The values of symbols, and the bytes of inputs by name.

    Symbols are read from the shapes of the arrays unless `symbols` has them; `before` has values
    for the rest, and `some` allows symbols without a value. Raises ProgramError for a wrong array
    or symbol."""
    inputs = {name: np.asarray(array) for name, array in arrays.items()}
    values = dict(symbols)
    for name, array in inputs.items():
        spec = program.tensors[program.inputs[name]]
        for size, actual in zip(spec.ne, ne_of(array, spec.dtype), strict=True):
            solved = solve_size(size, actual)
            if solved is not None:
                sym, value = solved
                values.setdefault(sym.name, value)
    values = {**(before or {}), **values}
    check_values(program, values, some=some)
    specs = {name: program.tensors[program.inputs[name]] for name in inputs}
    return values, {n: checked(n, array, specs[n], values) for n, array in inputs.items()}


def check_values(program: Program, values: Mapping[str, int], *, some: bool = False) -> None:
    """Raises ProgramError for a symbol outside the plan, and unless `some` for a symbol without a
    value."""
    for sym in program.symbols.values():
        if sym.name not in values:
            if some:
                continue
            raise ProgramError(f"no input determines symbol {sym.name}; pass its value in symbols=")
        if not sym.min <= values[sym.name] <= sym.max:
            raise ProgramError(
                f"symbol {sym.name} is {values[sym.name]}; the program was planned for "
                f"{sym.min}..{sym.max}"
            )


def ne_of(array: NDArray[Any], dtype: DType) -> tuple[int, int, int, int]:
    """Sizes of an input array, innermost first; rows of blocks count elements."""
    shape = list(array.shape[::-1]) or [1]
    if dtype.is_quantized:
        shape[0] = shape[0] // dtype.bytes * dtype.block
    shape += [1] * (4 - len(shape))
    if len(shape) > 4:
        # leading ones do not matter
        if any(n != 1 for n in shape[4:]):
            raise ProgramError(f"an input has at most 4 dimensions, got shape {array.shape}")
        shape = shape[:4]
    return (shape[0], shape[1], shape[2], shape[3])


def solve_size(size: Size, actual: int) -> tuple[Sym, int] | None:
    """The symbol and the value with which a size `coefficient * symbol + constant` is `actual`.

    None for a size of another form."""
    if not isinstance(size, Expr):
        return None
    constant = size.terms.get((), 0)
    symbolic = [(mono, c) for mono, c in size.terms.items() if mono]
    if len(symbolic) != 1:
        return None
    (mono, coefficient) = symbolic[0]
    if len(mono) != 1 or not isinstance(mono[0], Sym) or (actual - constant) % coefficient:
        return None
    return mono[0], (actual - constant) // coefficient


def _shape(ne: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return tuple(reversed(ne[: n_shown(ne, rank)]))
