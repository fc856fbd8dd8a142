"""Copies, conversions and row operations, on every target."""

from typing import Any

import numpy as np
import pytest
from golden import Case, all_pass, judge, needs_vectors, op_cases, run_case
from harness import Operand, contiguous_nb, refusal, result, run_op, tensor

from tests.targets import BUT_PRODUCTS, TARGETS
from weft import _native, quants
from weft.dtype import DTYPES

PARAMS = {
    "SET": ("nb1", "nb2", "nb3", "offset"),
    "ACC": ("nb1", "nb2", "nb3", "offset"),
    "CONCAT": ("dim",),
}
OPS = ("DUP", "CONT", "CPY", "SET", "ACC", "CONCAT", "REPEAT", "REPEAT_BACK")
ROW_OPS = ("GET_ROWS", "SET_ROWS", "GET_ROWS_BACK")


@needs_vectors
@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("op", [*OPS, *ROW_OPS])
def test_recorded_cases(op: str, target: str) -> None:
    def check(case: Case) -> None:
        params = [case["params"][name] for name in PARAMS.get(op, ())]
        for n_threads in (1, 2):
            judge(case, run_case(case, params, target, n_threads))

    all_pass(op_cases(op), check)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def strided(x: np.ndarray) -> Operand:
    """f32 `[n3, n2, n1, n0]` in a memory where rows, and elements, lie apart in another order."""
    memory = np.ascontiguousarray(x.transpose(1, 3, 0, 2))  # i2, i0, i3, i1
    n3, _, n1, n0 = x.shape
    nb = (4 * n1 * n3, 4, 4 * n1 * n3 * n0, 4 * n1)
    return Operand(memory.reshape(-1).view(np.uint8), "f32", x.shape[::-1], nb)


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 5, 96), (1, 1, 1, 9000), (3, 1, 7, 1), (1, 0, 2, 4), (2, 5, 7, 1), (3, 4, 1, 1)],
)
def test_cont_of_a_permuted_source(shape: tuple[int, ...], target: str) -> None:
    x = normal(*shape)
    for n_threads in (1, 2):
        got = run_op("CONT", result("f32", shape[::-1]), [strided(x)], (), target, n_threads)
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 40])
def test_rows_of_a_few_elements(width: int, dtype: str, target: str) -> None:
    """Out of wider rows, as a state is taken from the end of a window, and joined to such."""
    x, end = (100 * normal(2, 9, 25, 41)).astype(dtype), (100 * normal(2, 9, 25, 2)).astype(dtype)
    size, name = x.itemsize, tensor(x).dtype
    nb = (size, 41 * size, 25 * 41 * size, 9 * 25 * 41 * size)
    part = Operand(x.reshape(-1).view(np.uint8), name, (width, 25, 9, 2), nb)
    for n_threads in (1, 2):
        got = run_op("CONT", result(name, (width, 25, 9, 2)), [part], (), target, n_threads)
        np.testing.assert_array_equal(got, x[..., :width])
        out = result(name, (width + 2, 25, 9, 2))
        got = run_op("CONCAT", out, [part, tensor(end)], (0,), target, n_threads)
        np.testing.assert_array_equal(got, np.concatenate([x[..., :width], end], -1))
        if width == 1 and dtype == "float32":
            got = run_op("CONCAT", out, [strided(x[..., :1]), tensor(end)], (0,), target, n_threads)
            np.testing.assert_array_equal(got, np.concatenate([x[..., :1], end], -1))


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_cont_of_a_transposed_source(dtype: str, target: str) -> None:
    x = (100 * normal(2, 37, 50)).astype(dtype)
    size = x.itemsize
    memory = x.reshape(-1).view(np.uint8)
    name = tensor(x).dtype
    src = Operand(memory, name, (37, 50, 2), (50 * size, size, 37 * 50 * size, 0))
    for n_threads in (1, 2):
        got = run_op("CONT", result(name, (37, 50, 2)), [src], (), target, n_threads)
        np.testing.assert_array_equal(got[0], x.swapaxes(1, 2))


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("to", ["f32", "f16", "i32", "q8_0", "q4_K"])
@pytest.mark.parametrize("source", ["f32", "bf16", "i32", "q5_1", "q6_K", "iq2_xs"])
def test_cpy_between_shapes(source: str, to: str, target: str) -> None:
    """Elements are counted through both shapes; source rows end inside destination blocks."""
    n = 3 * 256 * 5
    rng = np.random.default_rng(5)
    dtype = DTYPES[source]
    if dtype.is_quantized:
        data = rng.integers(0, 120, (5, 768 // dtype.block * dtype.bytes), np.uint8)
        src = tensor(data, source)
    elif source == "i32":
        src = tensor(rng.integers(-99, 99, (n // 12, 12), np.int32))
    else:
        src = tensor(quants.to_storage(50 * normal(n // 12, 12), source), source)
    with np.errstate(all="ignore"):
        values = quants.from_storage(src.read(), source).reshape(3, 1, 1, -1)
        want = quants.to_storage(values, to) if source != to else values
    for n_threads in (1, 2):
        got = run_op("CPY", result(to, (n // 3, 1, 1, 3)), [src, src], (), target, n_threads)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_quantize_is_the_activation_converter(target: str) -> None:
    x = normal(3, 4, 2560)
    for name in ("q8_0", "q8_1", "q8_K"):
        want = quants.encode_activation(x, name)
        got = run_op("QUANTIZE", result(name, (2560, 4, 3)), [tensor(x)], (), target, 2)
        np.testing.assert_array_equal(got[0], want)
        spread = Operand(np.repeat(x.reshape(-1), 2).view(np.uint8), "f32", (2560, 4, 3), (
            8, 8 * 2560, 8 * 2560 * 4, 8 * 2560 * 12))  # fmt: skip
        got = run_op("QUANTIZE", result(name, (2560, 4, 3)), [spread], (), target)
        np.testing.assert_array_equal(got[0], want)


@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_rows_outside_the_table(target: str) -> None:
    """They read as zeros and write nothing."""
    table, ids = normal(4, 8), np.int32([2, -1, 4, 0, 2**31 - 1])
    got = run_op("GET_ROWS", result("f32", (8, 5)), [tensor(table), tensor(ids)], (), target)
    zero = np.zeros(8, np.float32)
    np.testing.assert_array_equal(got[0, 0], [table[2], zero, zero, table[0], zero])

    cache = tensor(np.zeros((4, 8), np.float32))
    wide = ids.astype(np.int64)
    wide[4] = -(2**62)
    got = run_op("SET_ROWS", cache, [tensor(normal(5, 8)), tensor(wide), cache], (), target)
    np.testing.assert_array_equal(got[0, 0], [normal(5, 8)[3], zero, normal(5, 8)[0], zero])

    got = run_op("GET_ROWS_BACK", result("f32", (8, 4)), [tensor(normal(5, 8)), tensor(ids)])
    np.testing.assert_array_equal(got[0, 0], [normal(5, 8)[3], zero, normal(5, 8)[0], zero])


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_K", "q6_K", "iq4_xs", "mxfp4"])
def test_rows_of_a_table_in_panels(name: str, target: str) -> None:
    """Also those behind the last panel; a matrix that is multiplied with may be read by row."""
    if DTYPES[name].id not in _native.interleaved_types(target):
        pytest.skip("this target reads no panels")
    rows = np.array(quants.encode(normal(77, 512), DTYPES[name])).reshape(-1)
    panels = np.zeros_like(rows)
    _native.interleave(DTYPES[name].id, rows, panels, 77, 512, _native.ThreadPool(1))
    ids = np.int32([0, 33, 63, 64, 76, -1, 77, 31])
    got = [
        run_op("GET_ROWS", result("f32", (512, 8)), [table, tensor(ids)], (), target, 2)
        for table in (Operand(rows, name, (512, 77)), Operand(panels, name, (512, 77), layout=1))
    ]
    np.testing.assert_array_equal(got[0], got[1])
    assert got[0].any()


@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_i2_s_rows_carry_the_scale_of_the_tensor(target: str) -> None:
    x = 0.25 * np.sign(normal(3, 256)) * (normal(3, 256) > -1)
    memory = quants.encode_i2_s(x)
    weights = Operand(memory, "i2_s", (256, 3), contiguous_nb("i2_s", (256, 3)))
    want = quants.decode_i2_s(memory, x.size).reshape(3, 256)
    ids = np.int32([2, 0])
    got = run_op("GET_ROWS", result("f32", (256, 2)), [weights, tensor(ids)], (), target)
    np.testing.assert_array_equal(got[0, 0], want[ids])
    got = run_op("CPY", result("f32", (256, 3)), [weights, weights], (), target)
    np.testing.assert_array_equal(got[0, 0], want)


@pytest.mark.parametrize("op", ["SET", "ACC"])
@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_region_with_strides_of_its_own(op: str, target: str) -> None:
    """A region whose rows are not the destination's: here every third element from the fifth."""
    a, b = normal(6, 8), normal(7, 1)
    want = a.copy()
    at = 5 + 3 * np.arange(7)
    want.reshape(-1)[at] = b[:, 0] + (a.reshape(-1)[at] if op == "ACC" else 0)
    got = run_op(op, result("f32", (8, 6)), [tensor(a), tensor(b)], (12, 84, 84, 20), target, 2)
    np.testing.assert_array_equal(got[0, 0], want)


def f32(*ne: int) -> Operand:
    return result("f32", ne)


@pytest.mark.parametrize(
    ("op", "dst", "src", "params", "reason"),
    [
        ("CPY", f32(8), [f32(9), f32(8)], (), "differ in their number of elements"),
        ("CPY", result("iq2_xs", (256,)), [f32(256), f32(256)], (), "cannot be written"),
        ("CPY", result("i64", (8,)), [f32(8), f32(8)], (), "cannot be written"),
        ("QUANTIZE", result("q4_0", (32,)), [f32(32)], (), "q8_0, q8_1, q8_K, f32, f16 or bf16"),
        ("SET", f32(8, 2), [f32(8, 2), f32(4)], (32, 64, 64, 52), "is not within the result"),
        ("SET", f32(8, 2), [f32(8, 2), f32(4, 9)], (2**62, 64, 64, 0), "too large"),
        ("SET", f32(8, 2), [f32(8, 2), f32(4)], (32, 64, 64, -4), "negative"),
        ("SET", f32(8, 2), [f32(8, 2), f32(4)], (), "nb1:int nb2:int nb3:int offset:int"),
        ("CONCAT", f32(8, 2), [f32(4, 2), f32(3, 2)], (0,), "differ only along this dimension"),
        ("CONCAT", f32(8, 2), [f32(4, 2), f32(4, 2)], (7,), "0..3"),
        ("REPEAT", f32(9), [f32(2)], (), "must be multiples of those of the smaller one"),
        ("REPEAT_BACK", f32(0), [f32(8)], (), "must be multiples of those of the smaller one"),
        ("GET_ROWS", f32(8, 2), [f32(8, 4), f32(2)], (), "i32 or i64"),
        ("GET_ROWS", f32(8, 3), [f32(8, 4), result("i32", (2,))], (), "one row per index"),
        (
            "SET_ROWS",
            f32(8, 3),
            [f32(8, 2), result("i32", (3,)), f32(8, 3)],
            (),
            "one index per row",
        ),
    ],
)
def test_refuses(
    op: str, dst: Operand, src: list[Any], params: tuple[float, ...], reason: str
) -> None:
    for target in TARGETS:
        assert reason in str(refusal(op, dst, src, params, target))
