"""Which way ternary weights are multiplied: the measurement, its cache, the flag, plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft import _native, quants
from weft.backends.base import Use
from weft.backends.cpu import ternary
from weft.backends.cpu.backend import CpuBackend
from weft.backends.cpu.products import Product
from weft.backends.cpu.record import machine_key
from weft.backends.cpu.repack import (
    LookupBufferType,
    LookupMemory,
    PanelBufferType,
    can_look_up,
)
from weft.dtype import DTYPES
from weft.errors import DeviceError
from weft.flags import FLAGS
from weft.graph.node import make_node
from weft.graph.tensor import Buffer, Tensor

SetFlag = Callable[[str], None]
TQ2 = DTYPES["tq2_0"]
POOL = _native.ThreadPool(2)
TARGETS = [name for name, ok in reversed(_native.targets()) if ok]
TARGET = next(name for name in TARGETS if _native.lookup_types(name))


@pytest.fixture
def flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SetFlag]:
    """Sets WEFT_TERNARY, with a cache of its own."""
    ternary.forget()

    def set_flag(value: str) -> None:
        monkeypatch.setattr(ternary, "FLAGS", replace(FLAGS, ternary=value, cache=str(tmp_path)))

    yield set_flag
    ternary.forget()


def leaf(name: str = "tq2_0", rows: int = 64, depth: int = 512) -> Tensor:
    rng = np.random.default_rng(1)
    values = rng.integers(-1, 2, (rows, depth)).astype(np.float32)
    dtype = DTYPES[name]
    data = quants.encode_i2_s(values.reshape(-1)) if dtype.tail else quants.encode(values, dtype)
    t = Tensor(dtype, (depth, rows, 1, 1), name="w")
    t.buffer = Buffer("weights", data=np.array(data).reshape(-1))
    return t


def uses(weights: Tensor, backend: CpuBackend, columns: int = 1) -> list[Use]:
    x = Tensor(DTYPES["f32"], (weights.ne[0], columns, 1, 1), name="x")
    node = make_node("MUL_MAT", DTYPES["f32"], (weights.ne[1], columns, 1, 1), weights, x)
    return [Use(n, 0) for n in backend.optimize([node]) if n.op.name == "MUL_MAT"]


def test_the_flag_pins_it(flag: SetFlag) -> None:
    for method in ("table", "multiply"):
        flag(method)
        assert ternary.choose_method(TARGET, TQ2, 64, 512, POOL) == method
        assert not ternary.method_file().exists()
    flag("fast")
    with pytest.raises(DeviceError, match="WEFT_TERNARY is 'fast'; it may be auto, table or mult"):
        ternary.choose_method(TARGET, TQ2, 64, 512, POOL)


def test_it_is_measured_once_and_kept(flag: SetFlag, monkeypatch: pytest.MonkeyPatch) -> None:
    flag("auto")
    measured = []

    def measure(target: str, product: Product, pool: object) -> str:
        measured.append((product.rows, product.depth))
        return "table" if product.rows == 64 else "multiply"

    monkeypatch.setattr(ternary, "_measure", measure)

    def choose(rows: int) -> str:
        return ternary.choose_method(TARGET, TQ2, rows, 512, POOL)

    assert [choose(64), choose(32), choose(64)] == ["table", "multiply", "table"]
    ternary.forget()  # as another process
    assert [choose(64), choose(32)] == ["table", "multiply"]
    assert measured == [(64, 512), (32, 512)]
    file = ternary.method_file()
    document = json.loads(file.read_text())
    assert list(document) == [machine_key()]
    # another build, and a file that is damaged: measured anew, others' entries stay
    file.write_text(json.dumps({"other": {"a": "table"}, machine_key(): {"x": 1}}))
    ternary.forget()
    assert choose(64) == "table" and len(measured) == 3
    assert json.loads(file.read_text())["other"] == {"a": "table"}
    file.write_text("{")
    ternary.forget()
    assert choose(64) == "table" and len(measured) == 4


def test_a_folder_that_cannot_be_written(
    flag: SetFlag, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    flag("auto")
    nowhere = replace(FLAGS, ternary="", cache=str(tmp_path / "file" / "x"))
    monkeypatch.setattr(ternary, "FLAGS", nowhere)
    monkeypatch.setattr(ternary, "_measure", lambda *_: "table")
    assert ternary.choose_method(TARGET, TQ2, 64, 512, POOL) == "table"


def test_a_real_measurement(flag: SetFlag) -> None:
    flag("")
    for name in ("tq1_0", "tq2_0", "i2_s"):
        assert ternary.choose_method(TARGET, DTYPES[name], 64, 512, POOL) in ("table", "multiply")
    assert len(json.loads(ternary.method_file().read_text())[machine_key()]) == 3


def test_other_formats_and_odd_rows_are_multiplied(flag: SetFlag) -> None:
    flag("table")
    assert ternary.choose_method(TARGET, DTYPES["q4_0"], 64, 512, POOL) == "multiply"
    assert ternary.choose_method(TARGET, TQ2, 48, 512, POOL) == "multiply"


def test_targets_without_lookups_multiply(flag: SetFlag, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured there, and the flag changes nothing."""
    monkeypatch.setattr(ternary, "_measure", None)
    for target in TARGETS:
        if not _native.lookup_types(target):
            for value in ("", "table"):
                flag(value)
                assert ternary.choose_method(target, TQ2, 64, 512, POOL) == "multiply"
            backend, weights = CpuBackend(n_threads=2, target=target), leaf()
            assert isinstance(
                backend.weight_layout(weights, uses(weights, backend)), PanelBufferType
            )


@pytest.mark.parametrize("name", ["tq1_0", "tq2_0", "i2_s"])
def test_the_layout_of_a_plan(flag: SetFlag, name: str) -> None:
    backend, weights = CpuBackend(n_threads=2, target=TARGET), leaf(name)
    flag("table")
    chosen = backend.weight_layout(weights, uses(weights, backend))
    assert isinstance(chosen, LookupBufferType) and chosen.layout == "lookup"
    assert weights.buffer is not None
    assert chosen.alloc_size(weights) <= 1.1 * weights.buffer.data.nbytes
    flag("multiply")
    assert not isinstance(backend.weight_layout(weights, uses(weights, backend)), LookupBufferType)


def test_weights_that_are_not_ternary_are_multiplied(flag: SetFlag) -> None:
    flag("table")
    backend, weights = CpuBackend(n_threads=2, target=TARGET), leaf()
    assert weights.buffer is not None
    weights.buffer.data[3] = 0xFF
    assert not isinstance(backend.weight_layout(weights, uses(weights, backend)), LookupBufferType)


def test_which_matrices_are_looked_up() -> None:
    assert can_look_up(leaf())
    assert not can_look_up(Tensor(TQ2, (512, 64, 2, 1)))
    assert not can_look_up(Tensor(TQ2, (512, 48, 1, 1)))
    assert not can_look_up(Tensor(DTYPES["q4_0"], (512, 64, 1, 1)))


def test_memory_reads_as_rows() -> None:
    weights = leaf("i2_s")
    assert weights.buffer is not None
    data = weights.buffer.data
    kind = LookupBufferType(POOL)
    memory = kind.load(data, weights.dtype, (512, 64, 1, 1))
    assert isinstance(memory, LookupMemory) and memory.nbytes == data.nbytes
    assert kind.load(data, weights.dtype, (512, 64, 1, 1)) is memory
    np.testing.assert_array_equal(memory.read(5, 100), data[5:105])
    with pytest.raises(DeviceError, match="of a block of"):
        memory.read(data.nbytes - 1, 2)
    with pytest.raises(DeviceError, match="cannot be written"):
        memory.write(0, data[:4])
