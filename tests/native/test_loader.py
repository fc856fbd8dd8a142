"""The native loader refuses whatever breaks a rule, and never crashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from weft import _native
from weft.dtype import DTYPES
from weft.graph.op import OPS

ADD = OPS["ADD"].number
POOL = _native.ThreadPool(2)


def _tensor(buffer: int, ne0: int = 8, offset: int = 0, dtype: int = 0) -> list[int]:
    row = [dtype, buffer, 0]
    for size in (ne0, 1, 1, 1, 4, 4 * ne0, 4 * ne0, 4 * ne0, offset):
        row += [size, -1]
    return row


def _tables() -> dict[str, Any]:
    return {
        "symbols": [("n", 1, 8)],
        "exprs": np.array([[1, 0, 0]], np.int64),
        "buffers": [32, 32, 32],
        "names": ["x", "y", "z"],
        "tensors": np.array([_tensor(0), _tensor(1), _tensor(2)], np.int64),
        "steps": np.array([[ADD, 2, 0, 0, 0, 1] + [-1] * 8], np.int64),
        "stages": np.array([[0, 1]], np.int64),
        "params": [],
    }


def _execute(tables: dict[str, Any], memory: list[np.ndarray]) -> None:
    program = _native.Program.from_tables(**tables)
    blocks = [(m.ctypes.data, m.nbytes) for m in memory]
    executor = _native.Executor.create(program, blocks, _native.best_target(), POOL)
    executor.run([8])


def _run(tables: dict[str, Any]) -> np.ndarray:
    memory = [np.arange(8, dtype=np.float32) for _ in range(3)]
    _execute(tables, memory)
    return memory[2]


def test_a_legal_program_runs() -> None:
    np.testing.assert_array_equal(_run(_tables()), 2 * np.arange(8))


def _edit(name: str, row: int, column: int, value: int) -> dict[str, Any]:
    tables = _tables()
    tables[name] = tables[name].copy()
    tables[name][row, column] = value
    return tables


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (_edit("steps", 0, 0, 9999), "unknown op"),
        (_edit("steps", 0, 0, -1), "unknown op"),
        (_edit("steps", 0, 1, 3), "does not exist"),
        (_edit("steps", 0, 5, 77), "does not exist"),
        (_edit("steps", 0, 5, -1), "sources"),
        (_edit("steps", 0, 3, 5), "parameters outside"),
        (_edit("stages", 0, 1, 2), "stages do not cover"),
        (_edit("stages", 0, 0, 1), "stages do not cover"),
        (_edit("tensors", 0, 0, 4), "unknown type"),
        (_edit("tensors", 0, 1, 3), "is in buffer 3"),
        (_edit("tensors", 0, 3, 9), "leaves its buffer"),
        (_edit("tensors", 0, 3, 2**40), "leaves its buffer"),
        (_edit("tensors", 0, 3, -1), "negative"),
        (_edit("tensors", 0, 11, 2**62), "leaves its buffer"),
        (_edit("tensors", 0, 19, -4), "leaves its buffer"),
        (_edit("tensors", 0, 4, 5), "uses expression 5"),
        (_edit("tensors", 0, 2, 9), "unknown layout"),
        (_edit("tensors", 0, 2, 2), "its type does not have that layout"),
        (_edit("tensors", 0, 2, 1), "its number of rows is not a multiple of 32"),
        (_edit("exprs", 0, 1, 4), "names symbol 4"),
        (_edit("exprs", 0, 0, 99), "unknown kind"),
        (_edit("exprs", 0, 0, 2), "not before it"),
        (_edit("tensors", 0, 0, DTYPES["q4_0"].id), "partial blocks"),
        (_edit("tensors", 2, 3, 4), "shape"),
        (_edit("tensors", 2, 0, DTYPES["i32"].id), "f32"),
    ],
)
def test_illegal_programs_are_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _run(tables)


def _add(dst: int, a: int, b: int) -> list[int]:
    return [ADD, dst, 0, 0, a, b] + [-1] * 8


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(_add(3, 2, 1), id="reads what the first writes"),
        pytest.param(_add(0, 1, 1), id="overwrites what the first reads"),
        pytest.param(_add(2, 3, 1), id="writes where the first writes"),
        pytest.param(_add(4, 1, 1), id="writes a part of what the first reads"),
        pytest.param(_add(5, 6, 6), id="writes around what the first reads"),
        pytest.param(_add(0, 2, 1), id="overwrites a source and reads the result"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_clashing_steps_may_not_share_a_stage(second: list[int], turned: bool) -> None:
    """Tensors 0 to 3 are apart; 4 begins within 0, and 5 and 6 have twice their elements."""
    steps = [_add(2, 0, 1), second]
    tensors = [_tensor(0, offset=at) for at in (64, 160, 224, 288, 80)]
    tensors += [_tensor(0, ne0=16, offset=48), _tensor(0, ne0=16, offset=320)]
    tables = _tables() | {
        "buffers": [400],
        "names": [f"t{i}" for i in range(len(tensors))],
        "tensors": np.array(tensors, np.int64),
        "steps": np.array(steps[::-1] if turned else steps, np.int64),
        "stages": np.array([[0, 2]], np.int64),
    }
    memory = np.zeros(100, np.float32)
    with pytest.raises(ValueError, match="share a stage"):
        _execute(tables, [memory])
    apart = tables | {"stages": np.array([[0, 1], [1, 2]], np.int64)}
    _execute(apart, [memory])


def test_steps_that_share_only_what_they_read_may_share_a_stage() -> None:
    tables = _tables() | {
        "buffers": [32, 32, 32, 32],
        "names": ["x", "y", "z", "w"],
        "tensors": np.array([_tensor(i) for i in range(4)], np.int64),
        "steps": np.array([_add(2, 0, 1), _add(3, 1, 0)], np.int64),
        "stages": np.array([[0, 2]], np.int64),
    }
    memory = [np.arange(8, dtype=np.float32) for _ in range(4)]
    _execute(tables, memory)
    np.testing.assert_array_equal(memory[2:], 2 * np.arange(8.0)[None].repeat(2, 0))


@pytest.mark.parametrize("reader_first", [False, True])
def test_a_step_does_not_overtake_the_reader_of_what_it_overwrites(reader_first: bool) -> None:
    """Stages are joined where each step continues one chain of rows; a chain runs as a whole."""
    x, u, y, z, w = range(5)
    first = [_add(y, u, u), _add(z, x, x)]  # the second reads x
    second = [_add(x, y, y), _add(w, z, z)]  # the first continues the row of y, and overwrites x
    if reader_first:
        first, second = first[::-1], second[::-1]
    tables = _tables() | {
        "buffers": [32] * 5,
        "names": ["x", "u", "y", "z", "w"],
        "tensors": np.array([_tensor(i) for i in range(5)], np.int64),
        "steps": np.array([*first, *second], np.int64),
        "stages": np.array([[0, 2], [2, 4]], np.int64),
    }
    memory = [np.full(8, n, np.float32) for n in (1, 10, 0, 0, 0)]
    _execute(tables, memory)
    assert [m[0] for m in memory] == [40, 10, 20, 2, 4]


NUMBERS = (-7, -6, -1, 0, 1, 6, 7)
COMPUTED = {
    "sum": (2, lambda a, b: a + b, NUMBERS),
    "product": (3, lambda a, b: a * b, NUMBERS),
    "quotient": (4, lambda a, b: a // b, (1, 2, 3)),
    "remainder": (5, lambda a, b: a % b, (1, 2, 3)),
    "minimum": (6, min, NUMBERS),
    "maximum": (7, max, NUMBERS),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_sizes_are_computed_as_in_python(name: str) -> None:
    """The result is the place at which the sum of two numbers is written."""
    kind, function, rights = COMPUTED[name]
    for a in NUMBERS:
        for b in rights:
            size = [[0, a, 0], [0, b, 0], [kind, 0, 1], [0, 4, 0], [3, 2, 3], [0, 200, 0]]
            place = _tensor(2, ne0=1)
            place[-2:] = [0, len(size)]
            tables = _tables() | {
                "exprs": np.array([*size, [2, 4, 5]], np.int64),
                "buffers": [4, 4, 400],
                "tensors": np.array([_tensor(0, 1), _tensor(1, 1), place], np.int64),
            }
            memory = [np.ones(1, np.float32), np.ones(1, np.float32), np.zeros(100, np.float32)]
            _execute(tables, memory)
            assert np.flatnonzero(memory[2]).tolist() == [50 + function(a, b)], (a, b)


@pytest.mark.parametrize("b", [0, -1])
def test_sizes_are_divided_by_positive_numbers_only(b: int) -> None:
    for kind in (4, 5):
        tables = _edit("exprs", 0, 0, 1)
        tables["exprs"] = np.array([[0, 6, 0], [0, b, 0], [kind, 0, 1]], np.int64)
        with pytest.raises(ValueError, match="divides by zero"):
            _run(tables)


def test_a_symbol_outside_its_bounds_is_refused() -> None:
    memory = [np.zeros(8, np.float32) for _ in range(3)]
    blocks = [(m.ctypes.data, m.nbytes) for m in memory]
    program = _native.Program.from_tables(**_tables())
    executor = _native.Executor.create(program, blocks, _native.best_target(), POOL)
    with pytest.raises(ValueError, match="symbol n is 9"):
        executor.run([9])
    with pytest.raises(ValueError, match="1 symbols, got 2"):
        executor.run([1, 2])
    executor.run([3])


numbers = st.one_of(
    st.integers(-4, 40), st.sampled_from([2**31 - 1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1])
)


@settings(max_examples=examples(10))
@given(st.data())
def test_random_damage_never_crashes(data: st.DataObject) -> None:
    tables = _tables()
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(["tensors", "steps", "stages", "exprs"]))
        table = tables[name] = tables[name].copy()
        row = data.draw(st.integers(0, len(table) - 1))
        column = data.draw(st.integers(0, table.shape[1] - 1))
        table[row, column] = data.draw(numbers)
    try:
        _run(tables)
    except ValueError:
        pass
