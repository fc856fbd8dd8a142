"""Row converters of every type, on every target, against the NumPy definition and the vectors."""

from typing import Any

import numpy as np
import pytest
from golden import array, cases, needs_vectors

from tests.targets import TARGETS
from weft import _native, quants
from weft.dtype import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BLOCK_TYPES = [d.name for d in DTYPES.values() if d.is_quantized and d.name != "i2_s"]
ACTIVATIONS = ("q8_0", "q8_1", "q8_K")
WRITABLE = [n for n in BLOCK_TYPES if quants.can_encode(n) or n in ACTIVATIONS]
ROWS = 40
WIDTH = 1024


def decode(target: str, name: str, data: np.ndarray) -> np.ndarray:
    dtype = DTYPES[name]
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    out = np.full(flat.size // dtype.bytes * dtype.block, np.nan, np.float32)
    _native.dequantize(target, dtype.id, flat, out)
    return out


def encode(target: str, name: str, x: np.ndarray) -> np.ndarray:
    dtype = DTYPES[name]
    out = np.full(x.size // dtype.block * dtype.bytes, 0xEE, np.uint8)
    _native.quantize(target, dtype.id, np.ascontiguousarray(x, np.float32).reshape(-1), out)
    return out


def assert_same_blocks(got: np.ndarray, want: np.ndarray, name: str) -> None:
    size = DTYPES[name].bytes
    differ = (got.reshape(-1, size) != want.reshape(-1, size)).any(axis=1)
    assert not differ.any(), f"{differ.sum()} of {differ.size} {name} blocks differ"


def bits(x: np.ndarray) -> np.ndarray:
    """The float bits, every NaN alike."""
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


def values(seed: int) -> np.ndarray:
    """Rows of the kinds that trip quantizers: scales, outliers, zeros, ties, signed zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, WIDTH)) * 10.0 ** rng.integers(-8, 4, (ROWS, 1))
    x[3] = 0
    x[4, ::32] = 1e3
    x[5, 64:128] = 0
    x[6] = np.sign(x[6])
    x[7] = -0.37
    x[8] = np.round(x[8] / np.abs(x[8]).max() * 8) / 2
    x[9] = np.abs(x[9])
    x[10] = -x[9]
    x[11] *= rng.random(WIDTH) < 0.1
    x[12, :8] = -0.0
    return x.astype(np.float32)


# ---- decoding


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_random_bytes_decode_as_defined(name: str, target: str) -> None:
    rng = np.random.default_rng(DTYPES[name].id)
    data = rng.integers(0, 256, (64, DTYPES[name].bytes), np.uint8)
    with np.errstate(all="ignore"):
        want = quants.decode(data, name).reshape(-1)
    np.testing.assert_array_equal(bits(decode(target, name, data)), bits(want))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_sixteen_bit_pattern_decodes(name: str, target: str) -> None:
    words = np.arange(65536, dtype=np.uint16)
    stored = words.view(np.float16) if name == "f16" else words
    with np.errstate(all="ignore"):
        want = quants.from_storage(stored, name)
    np.testing.assert_array_equal(bits(decode(target, name, words)), bits(want))


@pytest.mark.parametrize("target", TARGETS)
def test_i2_s_decodes_without_its_scale(target: str) -> None:
    data = np.random.default_rng(0).integers(0, 256, 96, np.uint8)
    tail = np.zeros(32, np.uint8)
    tail[:4] = np.float32([1]).view(np.uint8)
    want = quants.decode_i2_s(np.concatenate([data, tail]), 384)
    np.testing.assert_array_equal(decode(target, "i2_s", data), want)


# ---- encoding


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WRITABLE)
def test_encodes_as_defined(name: str, target: str) -> None:
    x = values(DTYPES[name].id)
    convert = quants.encode_activation if name in ACTIVATIONS else quants.encode_runtime
    assert_same_blocks(encode(target, name, x), convert(x, name), name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sixteen_bit_rounding(name: str, target: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, 100_001, np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        want = quants.encode_runtime(x, name)
    np.testing.assert_array_equal(encode(target, name, x).view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("target", TARGETS)
def test_types_that_cannot_be_written_say_so(target: str) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        encode(target, "iq2_xxs", np.zeros(256, np.float32))


# ---- the recorded vectors


def quant_cases(kinds: tuple[str, ...], types: list[str]) -> list[Any]:
    matching = [c for c in cases() if c["group"] == "quant" and c["kind"] in kinds]
    matching = [c for c in matching if c["type"] in types and not c.get("overflow")]
    return [pytest.param(c, id=c["id"]) for c in matching]


@needs_vectors
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", quant_cases(("quantize", "dequantize"), list(DTYPES)))
def test_recorded_bytes_decode(case: dict[str, Any], target: str) -> None:
    want = array(case["file"], case["d_key"])
    got = decode(target, case["type"], array(case["file"], case["q_key"]))
    np.testing.assert_array_equal(got.reshape(want.shape), want)


@needs_vectors
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "case", quant_cases(("quantize", "activation"), [*WRITABLE, "f16", "bf16"])
)
def test_recorded_values_encode(case: dict[str, Any], target: str) -> None:
    name = case["type"]
    x = array(case["file"], case["x_key"])
    want = array(case["file"], case.get("q_cpu_key", case["q_key"])).copy()
    got = encode(target, name, x).reshape(want.shape)
    if name in ("iq4_nl", "q8_K"):
        # the reference leaves codes (iq4_nl) or sums (q8_K) of blocks of zeros unwritten
        block = DTYPES[name].block
        zero = np.abs(x.reshape(-1, block)).max(axis=1) < 1e-15
        unwritten = slice(2, None) if name == "iq4_nl" else slice(260, None)
        want.reshape(-1, DTYPES[name].bytes)[zero, unwritten] = 0
        got.reshape(-1, DTYPES[name].bytes)[zero, unwritten] = 0
    assert_same_blocks(got, want, name)
