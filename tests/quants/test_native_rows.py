"""Native encoders of files: the reference's bytes, on every target, without and with weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.quants.encoded_input import COLUMNS, TYPES, checksum, rows, weights
from weft import quants
from weft.dtype import DTYPES
from weft.native import _native
from weft.quants.native_rows import NotFiniteError, can_convert, convert_rows

EXPECTED = json.loads((ROOT / "tests/data/encoded.json").read_text())
F32 = DTYPES["f32"]


def targets() -> list[str]:
    found = []
    for name in ("baseline", "avx2", "avx512", "neon"):
        try:
            _native.RowConverter(1, name)
        except ValueError:
            continue
        found.append(name)
    return found


def encoded(name: str, weighted: bool, target: str = "", n_threads: int = 1) -> np.ndarray:
    x = rows()
    w = weights() if weighted else None
    return convert_rows(
        x, F32, DTYPES[name], COLUMNS, rows_per_matrix=len(x), weights=w, n_threads=n_threads,
        kernels=target,
    )  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("target", targets())
def test_bytes_of_the_reference(name: str, target: str) -> None:
    for kind, expected in EXPECTED[name].items():
        assert checksum(encoded(name, kind == "weighted", target)) == expected, kind


@pytest.mark.parametrize("name", [n for n in TYPES if quants.can_encode(n)])
def test_bytes_of_the_slow_encoders(name: str) -> None:
    slow = quants.encode(rows(), name)
    np.testing.assert_array_equal(encoded(name, False).reshape(slow.shape), slow)


def test_every_matrix_has_its_weights_and_threads_change_nothing() -> None:
    x, w = rows()[:12], weights()
    both = np.stack([w, w[::-1]])
    split = [
        convert_rows(x[i : i + 6], F32, DTYPES["q4_K"], COLUMNS, rows_per_matrix=6, weights=one)
        for i, one in ((0, both[0]), (6, both[1]))
    ]
    for n_threads in (1, 3):
        whole = convert_rows(
            x, F32, DTYPES["q4_K"], COLUMNS, rows_per_matrix=6, weights=both, n_threads=n_threads
        )
        np.testing.assert_array_equal(whole, np.concatenate(split))
    assert (split[1] != convert_rows(x[6:], F32, DTYPES["q4_K"], COLUMNS, rows_per_matrix=6,
                                     weights=both[0])).any()  # fmt: skip


@pytest.mark.parametrize("source", ["f16", "bf16", "q8_0", "q6_K"])
def test_rows_of_other_types_are_decoded_first(source: str) -> None:
    data = encoded(source, False)
    x = quants.decode(data.reshape(29, -1), source)
    got = convert_rows(data, DTYPES[source], DTYPES["q4_K"], COLUMNS, rows_per_matrix=29)
    np.testing.assert_array_equal(got.reshape(29, -1), quants.encode(x, "q4_K"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_found(value: float) -> None:
    x = rows()
    x[17, 300] = value
    with pytest.raises(NotFiniteError) as caught:
        convert_rows(x, F32, DTYPES["q4_K"], COLUMNS, rows_per_matrix=29, n_threads=2)
    assert caught.value.row == 17


@pytest.mark.parametrize("name", TYPES)
def test_huge_and_tiny_values_end_somewhere(name: str) -> None:
    """Squares that overflow: any bytes, as the reference has no rule either, but no crash."""
    x = rows()[:4]
    x[0] *= np.float32(1e38)
    x[1] *= np.float32(1e-38)
    x[2, 5] = np.float32(3e38)
    w = weights() * np.float32(1e30)
    for given in (None, w):
        if can_convert(F32, DTYPES[name], weighted=given is not None):
            out = convert_rows(x, F32, DTYPES[name], COLUMNS, rows_per_matrix=4, weights=given)
            assert out.size == 4 * DTYPES[name].row_bytes(COLUMNS)


def test_iq3_s_keeps_groups_behind_zeros_in_their_places() -> None:
    """The reference writes them one group too early, and reads them as others."""
    x = rows()[:1, :256].copy()
    x[0, 32:64] = 0
    data = convert_rows(x, F32, DTYPES["iq3_s"], 256, rows_per_matrix=1)
    got = quants.decode(data.reshape(1, -1), "iq3_s")
    assert np.abs(got[0, :32] - x[0, :32]).max() < 0.02
    np.testing.assert_allclose(got[0, 64:], x[0, 64:], atol=0.02)


def test_types_without_a_converter_and_wrong_sizes() -> None:
    assert not can_convert(F32, DTYPES["iq2_xs"], weighted=False)
    assert not can_convert(DTYPES["i32"], DTYPES["q4_K"], weighted=False)
    converter = _native.RowConverter(1)
    data, out = np.zeros(1024, np.uint8), np.zeros(144, np.uint8)
    for bad in ((0, 12, data, out[:-1], 256, 1), (0, 12, data, out, 255, 1),
                (0, 12, data, out, 256, 2), (0, 999, data, out, 256, 1)):  # fmt: skip
        with pytest.raises(ValueError, match=r"sizes|types"):
            converter.convert(*bad)
    with pytest.raises(ValueError, match="a weight for each column"):
        converter.convert(0, 12, data, out, 256, 1, np.zeros(8, np.float32))
