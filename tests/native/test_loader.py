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


def _run(tables: dict[str, Any]) -> np.ndarray:
    memory = [np.arange(8, dtype=np.float32) for _ in range(3)]
    program = _native.Program.from_tables(**tables)
    blocks = [(m.ctypes.data, m.nbytes) for m in memory]
    executor = _native.Executor.create(program, blocks, _native.best_target(), POOL)
    executor.run([8])
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


def test_clashing_steps_may_not_share_a_stage() -> None:
    tables = _tables()
    tables["steps"] = np.array(
        [[ADD, 2, 0, 0, 0, 1] + [-1] * 8, [ADD, 0, 0, 0, 2, 1] + [-1] * 8], np.int64
    )
    tables["stages"] = np.array([[0, 2]], np.int64)
    with pytest.raises(ValueError, match="share a stage"):
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
