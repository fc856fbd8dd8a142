"""What the cpu backend makes of activations, by mode."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import _native, dtype, quants
from weft.backends.cpu import CpuBackend
from weft.dtype import DTYPES, DType
from weft.errors import DeviceError, UnsupportedOpError
from weft.graph import mul_mat

BF16 = DTYPES["bf16"].id
HAS_BF16 = _native.activation_type(_native.best_target(), BF16) == BF16


def product(
    weights: str, rows: int, mode: str, columns: str = "f32"
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The ops of x W^T on cpu, its result, and the exact one."""
    rng = np.random.default_rng(rows)
    values = rng.standard_normal((40, 96)).astype(np.float32)
    stored = quants.to_storage(values, DTYPES[weights])
    exact = quants.from_storage(stored, DTYPES[weights]).astype(np.float64)
    x = rng.standard_normal((rows, 96)).astype(np.float32)
    columns_as_stored = quants.to_storage(x, DTYPES[columns])
    if columns == "bf16":
        x = quants.from_storage(columns_as_stored, DTYPES[columns])
    graph = weft.Graph(
        mul_mat(
            weft.constant(stored, "w", weights), weft.input("x", (rows, 96), columns)
        ).as_output("y")
    )
    session = weft.Session(weft.compile(graph, [CpuBackend(1, activations=mode)]))
    got = session.run({"x": columns_as_stored})["y"]
    return [s.op.name for s in session.program.splits[0].steps], got, x @ exact.T


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sum((got - want) ** 2) / np.sum(want**2))


@pytest.mark.parametrize("weights", ["f16", "f32"])
def test_bf16_is_a_choice_and_for_many_columns(weights: str) -> None:
    for rows in (1, 8, 9, 40):
        steps, got, want = product(weights, rows, "native")
        assert steps == ["MUL_MAT"] and error(got, want) < 1e-12
        steps, got, want = product(weights, rows, "bf16")
        rounds = HAS_BF16 and rows > 8
        assert steps == (["QUANTIZE"] if rounds else []) + ["MUL_MAT"]
        # 2^-9 off at most, on either side
        assert error(got, want) < (2**-17 if rounds else 1e-12)


def test_bf16_weights_round_activations_where_the_processor_multiplies_bf16() -> None:
    for mode in ("native", "bf16", "f32"):
        steps, got, want = product("bf16", 12, mode)
        rounds = HAS_BF16 and mode != "f32"
        assert steps == (["QUANTIZE"] if rounds else []) + ["MUL_MAT"]
        assert error(got, want) < (2**-18 if rounds else 1e-12)


@pytest.mark.parametrize("weights", ["f16", "f32", "bf16"])
def test_given_bf16_activations_do_not_round_weights(weights: str) -> None:
    _, got, want = product(weights, 12, "native", "bf16")
    assert error(got, want) < 1e-12


def test_unknown_mode() -> None:
    with pytest.raises(DeviceError, match="'native', 'f32' or 'bf16', got 'f16'"):
        CpuBackend(1, activations="f16")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [210, 100_000])
def test_a_type_that_native_code_lacks(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format begins as a row of the table in Python: another device computes with it."""
    toy = DType("toy8", number, 32, 34)
    monkeypatch.setitem(DTYPES, "toy8", toy)
    monkeypatch.setitem(dtype._BY_ID, number, toy)
    monkeypatch.setitem(dtype._BY_FOLDED_NAME, "toy8", toy)
    monkeypatch.setitem(quants._DECODERS, "toy8", quants._DECODERS["q8_0"])
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    weights = weft.constant(quants.encode(values, "q8_0"), "w", "toy8")
    graph = weft.Graph(mul_mat(weights, weft.input("x", (2, 64))).as_output("y"))
    with pytest.raises(UnsupportedOpError, match=r"MUL_MAT.*no type toy8.*docs/add-a-format\.md"):
        weft.compile(graph, "cpu")
    x = np.eye(2, 64, dtype=np.float32)
    got = weft.Session(weft.compile(graph, "cpu,reference")).run({"x": x})["y"]
    np.testing.assert_allclose(got, values[:, :2].T, atol=0.02)
