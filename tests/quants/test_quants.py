"""`weft.quants` against bytes and values recorded from the reference.

`tests/data/quants.npz` is a part of the golden vectors, so that a clone without them proves
something: `x` (8 rows of 256 values) with `<type>.q` (file bytes), `<type>.run` (run-time bytes,
where they differ) and `<type>.d` (decoded values of the first two rows); `<type>.codes.q/.d`
(random blocks and their values); `act.x` with `<type>.act` (quantized activations).
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weft import quants
from weft.dtype import DTYPES
from weft.errors import FormatError, GraphError, UnsupportedOpError
from weft.native import _native
from weft.quants import _iq_tables

ROOT = Path(__file__).parents[2]
SAMPLE = np.load(ROOT / "tests/data/quants.npz")
VECTORS = ROOT.parent / "shared/vectors/ops"

BLOCK_TYPES = [d.name for d in DTYPES.values() if d.is_quantized and d.name != "i2_s"]
WRITABLE = [name for name in BLOCK_TYPES if quants.can_encode(name)]
CODEBOOK_TYPES = ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"]


def test_native_code_has_the_same_types() -> None:
    ours = [(dtype.id, dtype.name, dtype.block, dtype.bytes) for dtype in DTYPES.values()]
    assert sorted(ours) == sorted(_native.type_table())


def blocks_of(data: np.ndarray, name: str) -> np.ndarray:
    return data.reshape(-1, DTYPES[name].bytes)


def assert_same_blocks(got: np.ndarray, want: np.ndarray, name: str) -> None:
    assert got.shape == want.shape
    differ = (blocks_of(got, name) != blocks_of(want, name)).any(axis=1)
    assert not differ.any(), f"{differ.sum()} of {differ.size} {name} blocks differ"


def assert_same_runtime_blocks(got: np.ndarray, want: np.ndarray, x: np.ndarray, name: str) -> None:
    """Like `assert_same_blocks`; but the reference leaves the codes of iq4_nl zero blocks unset."""
    if name == "iq4_nl":
        zero = np.abs(x.reshape(-1, 32)).max(axis=1) < 1e-15
        assert_same_blocks(blocks_of(got, name)[zero, :2], blocks_of(want, name)[zero, :2], "f16")
        got, want = blocks_of(got, name)[~zero], blocks_of(want, name)[~zero]
    assert_same_blocks(got, want, name)


# ---- the committed sample


@pytest.mark.parametrize("name", [key[:-2] for key in SAMPLE if key.endswith(".d")])
def test_sample_decodes(name: str) -> None:
    want = SAMPLE[f"{name}.d"]
    got = quants.decode(SAMPLE[f"{name}.q"][: len(want)], name.removesuffix(".codes"), 256)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["f16", "bf16", *WRITABLE])
def test_sample_encodes(name: str) -> None:
    x = SAMPLE["x"]
    want = SAMPLE[f"{name}.q"]
    assert_same_blocks(quants.encode(x, name), want, name)
    runtime = SAMPLE[f"{name}.run"] if f"{name}.run" in SAMPLE else want
    assert_same_runtime_blocks(quants.encode_runtime(x, name), runtime, x, name)


@pytest.mark.parametrize("name", ["q8_0", "q8_1", "q8_K"])
def test_sample_activations(name: str) -> None:
    got = quants.encode_activation(SAMPLE["act.x"], name)
    assert_same_blocks(got, SAMPLE[f"{name}.act"], name)


# ---- the full golden vectors


def golden_cases() -> list[Any]:
    index = VECTORS / "index.json"
    if not index.exists():
        absent = pytest.mark.skip(reason=f"no golden vectors in {VECTORS}")
        return [pytest.param({}, id="absent", marks=absent)]
    cases = json.loads(index.read_text())["cases"]
    return [pytest.param(case, id=case["id"]) for case in cases if case["group"] == "quant"]


@cache
def golden_arrays() -> Any:
    return np.load(VECTORS / "quant.npz")


@pytest.mark.parametrize("case", golden_cases())
def test_golden(case: dict[str, Any]) -> None:
    arrays, name, k = golden_arrays(), case["type"], case["k"]
    q = arrays[case["q_key"]]
    if "d_key" in case:
        np.testing.assert_array_equal(quants.decode(q, name, k), arrays[case["d_key"]])
    if case["kind"] == "dequantize":
        return
    x = arrays[case["x_key"]]
    if case["kind"] == "activation":
        assert_same_blocks(quants.encode_activation(x, name), q, name)
    elif quants.can_encode(name):
        got, runtime = quants.encode(x, name), quants.encode_runtime(x, name)
        if case.get("overflow"):  # what C leaves undefined: only shape, and that nothing warns
            assert got.shape == runtime.shape == q.shape
        else:
            assert_same_blocks(got, q, name)
            at_run = arrays[case["q_cpu_key"]] if "q_cpu_key" in case else q
            assert_same_runtime_blocks(runtime, at_run, x, name)
    else:
        with pytest.raises(UnsupportedOpError):
            quants.encode(x, name)


# ---- an independent oracle


@pytest.mark.parametrize("name", sorted(_iq_tables.GRIDS))
def test_grid_equals_the_gguf_package(name: str) -> None:
    table = getattr(gguf.quants, name.upper())
    table.init_grid()
    np.testing.assert_array_equal(quants.grid(name), table.grid.reshape(table.grid_shape))


def test_types_without_a_grid_are_refused() -> None:
    assert quants.grid("iq1_m").shape == quants.grid("iq1_s").shape == (2048, 8)
    with pytest.raises(GraphError, match="q4_0 has no codebook"):
        quants.grid("q4_0")


@pytest.mark.parametrize("name", [n for n in BLOCK_TYPES if n not in ("q8_1", "q8_K")])
def test_decode_equals_the_gguf_package(name: str) -> None:
    dtype = DTYPES[name]
    type_ = getattr(gguf.GGMLQuantizationType, name.upper(), None)
    if type_ not in gguf.quants._type_traits:
        pytest.skip(f"this gguf package does not know {name}")
    rng = np.random.default_rng(dtype.id)
    data = rng.integers(0, 256, (40, 2 * dtype.bytes), np.uint8)
    got = quants.decode(data, name)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(data, type_)
    same = (got == want) | ~np.isfinite(want)
    # the package rounds products of scales in another order for a few types
    np.testing.assert_allclose(got[~same], want[~same], rtol=1e-6)


# ---- shapes and errors


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q4_0", "q6_K", "nvfp4"])
def test_leading_axes_strides_and_chunks(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 70, 1024)).astype(np.float32)
    whole = quants.encode(x, name)
    assert whole.shape == (3, 70, DTYPES[name].row_bytes(1024))
    row = quants.encode(np.ascontiguousarray(x[2, 69]), name)
    np.testing.assert_array_equal(whole[2, 69], row)
    strided = quants.encode(x.swapaxes(0, 1)[::2], name)
    np.testing.assert_array_equal(strided, whole.swapaxes(0, 1)[::2])
    decoded = quants.decode(whole.swapaxes(0, 1), name, 1024)
    np.testing.assert_array_equal(decoded[69, 2], quants.decode(row, name))


@pytest.mark.parametrize("name", ["f16", "q4_K", "mxfp4"])
def test_no_rows_and_no_elements(name: str) -> None:
    assert quants.encode(np.zeros((0, 256)), name).shape == (0, DTYPES[name].row_bytes(256))
    assert quants.decode(np.zeros((2, 0), np.uint8), name).shape == (2, 0)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64"])
def test_plain_types_as_values_and_as_bytes(name: str) -> None:
    x = np.array([[0.0, 1.0, -2.0, 100.0]], np.float32)
    stored = quants.to_storage(x, name)
    assert stored.dtype == DTYPES[name].storage
    np.testing.assert_array_equal(quants.from_storage(stored, name), x)
    np.testing.assert_array_equal(quants.decode(stored, name, 4), x)
    np.testing.assert_array_equal(quants.decode(quants.encode(x, name), name, 4), x)


def test_integers_truncate() -> None:
    stored = quants.to_storage(np.array([1.9, -1.9], np.float32), "i32")
    assert stored.tolist() == [1, -1]


def test_storage_of_block_types_is_what_ops_write() -> None:
    x = SAMPLE["x"]
    stored = quants.to_storage(x, "iq4_nl")
    np.testing.assert_array_equal(stored, quants.encode_runtime(x, "iq4_nl"))
    np.testing.assert_array_equal(
        quants.from_storage(stored, "iq4_nl"), quants.decode(stored, "iq4_nl")
    )


def test_ragged_rows_are_refused() -> None:
    with pytest.raises(GraphError, match="not a multiple of the 32-element blocks of q4_0"):
        quants.encode(np.zeros(33, np.float32), "q4_0")
    with pytest.raises(GraphError, match="blocks of 18 bytes"):
        quants.decode(np.zeros((2, 19), np.uint8), "q4_0")
    with pytest.raises(GraphError, match="blocks of 18 bytes"):
        quants.decode(np.zeros((2, 18), np.float32), "q4_0")
    with pytest.raises(GraphError, match="a row of 64 q4_0 elements takes 36 bytes"):
        quants.decode(np.zeros((2, 18), np.uint8), "q4_0", 64)
    with pytest.raises(GraphError, match="f16 rows are float16 or uint8"):
        quants.decode(np.zeros(4, np.float32), "f16")


@pytest.mark.parametrize("name", [*CODEBOOK_TYPES, "q8_1", "q8_K", "i2_s"])
def test_types_without_a_row_encoder_name_those_with(name: str) -> None:
    assert not quants.can_encode(name)
    with pytest.raises(UnsupportedOpError, match=r"cannot encode .*q4_0.*q6_K"):
        quants.encode(np.zeros(256, np.float32), name)


def test_only_activation_types_quantize_activations() -> None:
    with pytest.raises(UnsupportedOpError, match="q8_0, q8_1, q8_K"):
        quants.encode_activation(np.zeros(256, np.float32), "q4_0")


@pytest.mark.parametrize("name", WRITABLE)
def test_nan_and_infinity_do_no_harm(name: str) -> None:
    x = np.ones((3, 256), np.float32)
    x[0, 5], x[1, 5], x[2, :] = np.nan, np.inf, -np.inf
    assert quants.encode(x, name).shape == quants.encode_runtime(x, name).shape


# ---- bf16


def test_bf16_rounds_to_even_and_quiets_nan() -> None:
    bits = [0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0xFFFFFFFF, 1]
    words = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7FC0, 0xFFFF, 0]
    x = np.array(bits, np.uint32).view(np.float32)
    assert quants.bf16_from_f32(x).tolist() == words


def test_bf16_keeps_every_value() -> None:
    words = np.arange(65536, dtype=np.uint16)
    values = quants.bf16_to_f32(words)
    keep = ~np.isnan(values)
    np.testing.assert_array_equal(quants.bf16_from_f32(values)[keep], words[keep])


# ---- i2_s, whose layout the vectors do not cover


def test_i2_s_layout() -> None:
    x = np.zeros(256, np.float32)
    x[[0, 32, 64, 96]] = 0.5, -0.5, 0.5, 1e-7  # the four fields of byte 0
    x[128 + 31] = -0.5  # the top field of the last byte of the second group
    data = quants.encode_i2_s(x.reshape(2, 128))
    assert data.size == quants.i2_s_bytes(256) == 256 // 4 + 32
    assert data[0] == 0b10_00_10_01
    assert data[32 + 31] == 0b00_01_01_01
    assert data[1] == 0b01_01_01_01
    assert data[64:68].view("<f4")[0] == 0.5
    assert not data[68:].any()
    x[96] = 0
    np.testing.assert_array_equal(quants.decode_i2_s(data, 256), x)
    np.testing.assert_array_equal(quants.decode_i2_s(data.tobytes(), 256), x)


def test_i2_s_refuses_what_does_not_fit() -> None:
    with pytest.raises(FormatError, match="takes 64 bytes"):
        quants.decode_i2_s(np.zeros(63, np.uint8), 128)
    with pytest.raises(GraphError, match="128-element blocks"):
        quants.encode_i2_s(np.zeros(100, np.float32))
    with pytest.raises(GraphError, match="decode_i2_s"):
        quants.decode(np.zeros(32, np.uint8), "i2_s")


@given(hnp.arrays(np.int8, (4, 128), elements=st.integers(-1, 1)), st.floats(2**-10, 100, width=32))
def test_i2_s_round_trip(signs: np.ndarray, scale: float) -> None:
    x = signs * np.float32(scale)
    np.testing.assert_array_equal(quants.decode_i2_s(quants.encode_i2_s(x), 512), x.reshape(-1))


# ---- properties

# largest error of a value as a share of the largest magnitude in its row of 256: half a step of
# the codes, and what scales of few bits and fits to other values of the block add to it
ERROR_BOUNDS = {
    "f16": 2**-11,
    "bf16": 2**-8,
    "q8_0": 0.5 / 127 + 2**-10,
    "q5_0": 1 / 16,
    "q5_1": 1 / 31 + 2**-9,
    "q4_0": 1 / 8,
    "q4_1": 1 / 15 + 2**-9,
    "mxfp4": 0.26,
    "nvfp4": 0.35,
    "tq1_0": 0.51,
    "tq2_0": 0.51,
    "q2_0": 0.51,
    "q1_0": 1.01,
    "q2_K": 1.0,
    "q3_K": 0.6,
    "q4_K": 0.4,
    "q5_K": 0.2,
    "q6_K": 0.1,
    "iq4_nl": 0.2,
    "iq4_xs": 0.25,
}

# quantizing what was quantized changes nothing
STABLE = ["f16", "bf16", "q4_0", "q5_0", "q8_0", "tq1_0", "tq2_0", "q1_0", "q2_0", "mxfp4", "nvfp4"]

# values large enough for scales to be normal f16 numbers
values = st.one_of(
    st.floats(2**-7, 1, width=32),
    st.floats(-1, -(2**-7), width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -0.25]),
)
rows = hnp.arrays(np.float32, (2, 256), elements=values, fill=values)


def test_every_writable_type_has_a_bound() -> None:
    assert set(ERROR_BOUNDS) == {"f16", "bf16", *WRITABLE}


@pytest.mark.parametrize("name", ERROR_BOUNDS)
@given(x=rows, scale=st.sampled_from([1.0, 300.0]))
def test_round_trip_error(name: str, x: np.ndarray, scale: float) -> None:
    x = x * np.float32(scale)
    allowed = ERROR_BOUNDS[name] * np.abs(x).max(axis=1, keepdims=True)
    for encode in (quants.encode, quants.encode_runtime):
        assert (np.abs(quants.decode(encode(x, name), name) - x) <= allowed).all()


@pytest.mark.parametrize("name", STABLE)
@given(x=rows, scale=st.sampled_from([1.0, 300.0]))
def test_second_encoding_is_the_first(name: str, x: np.ndarray, scale: float) -> None:
    x = x * np.float32(scale)
    once = quants.encode(x, name)
    twice = quants.encode(quants.decode(once, name), name)
    np.testing.assert_array_equal(quants.decode(twice, name), quants.decode(once, name))
