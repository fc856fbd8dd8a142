"""Matrix products on every target: float activations, and activations quantized to the companion
type of the weights, against the recorded cases and against float64."""

from typing import Any

import numpy as np
import pytest
from golden import Case, all_pass, array, judge, needs_vectors, nmse, op_cases, operands
from harness import Operand, contiguous_nb, refusal, result, run_op, tensor

from tests.block_scales import WIDE_SCALES, scale_bytes
from tests.targets import TARGETS, in_turn
from weft import _native, quants
from weft.dtype import DTYPES, dtype_from_id

EXACT = 1e-12
"""NMSE of a product in float32 whose weights are decoded exactly; sums of up to some thousands."""

UNROUNDED = {DTYPES[name].id for name in ("f32", "bf16")}
"""Activations of weights in floats; some targets multiply bf16 by bf16."""
QUANTIZED = [
    d.name for d in DTYPES.values() if _native.activation_type(TARGETS[0], d.id) not in UNROUNDED
]


def companion(name: str) -> str:
    """The activation type of a weight type."""
    return dtype_from_id(_native.activation_type(TARGETS[0], DTYPES[name].id)).name


def quantized(x: Operand, name: str) -> Operand:
    """The operand as activation blocks, contiguous."""
    return tensor(quants.encode_activation(x.read(), name), name)


def rounded_to_bf16(x: np.ndarray) -> Operand:
    """The values as a bf16 operand, contiguous."""
    return tensor(quants.to_storage(np.ascontiguousarray(x, np.float32), "bf16"), "bf16")


def has_bf16_products(target: str) -> bool:
    """Whether this target and this machine multiply bf16 themselves."""
    bf16 = DTYPES["bf16"].id
    return _native.activation_type(target, bf16) == bf16


def test_bf16_products_need_the_processor() -> None:
    """Only the widest targets have them, avx512 only where the processor says so."""
    for target in TARGETS:
        wide = target in ("avx512", "amx", "amx_shim")
        wanted = wide and "avx512bf16" in _native.cpu_features()
        wanted = wanted or target == "i8mm"  # which asks for them
        assert has_bf16_products(target) == wanted


def test_companion_types() -> None:
    want = {
        "q8_0": "q4_0 q5_0 q8_0 iq4_nl mxfp4 nvfp4 q1_0 q2_0 i2_s q6_0 iq2_bn q8_KV",
        "q8_1": "q4_1 q5_1",
        "q8_K": "q2_K q3_K q4_K q5_K q6_K iq4_xs tq1_0 tq2_0 "
        "iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq1_m_r4 "
        "iq2_k iq3_k iq4_k iq5_k iq6_k iq2_ks iq3_ks iq4_ks iq5_ks iq2_kl "
        "iq1_kt iq2_kt iq3_kt iq4_kt",
    }
    types = {name: activation for activation, names in want.items() for name in names.split()}
    assert {name: companion(name) for name in QUANTIZED} == types
    for target in TARGETS:
        for name in QUANTIZED:
            number = _native.activation_type(target, DTYPES[name].id)
            assert dtype_from_id(number).name == types[name]


# ---- the recorded cases


def types(case: Case) -> list[str]:
    """The types of a case's sources."""
    return [i["type"] for i in sorted(case["inputs"], key=lambda i: i["src_index"])]


@needs_vectors
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["MUL_MAT", "MUL_MAT_ID", "OUT_PROD"])
def test_recorded_cases(op: str, target: str) -> None:
    """Float activations: better than the reference, whose activations are rounded."""

    def check(case: Case) -> None:
        exact = array(case["file"], case["ref_f64_key"])
        for n_threads in (1, 2):
            dst, sources = operands(case)
            got = run_op(op, dst, sources, (), target, n_threads)
            judge(case, got)
            assert nmse(got, exact) <= EXACT, f"float64, {n_threads} threads"

    all_pass(op_cases(op), check)


@needs_vectors
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["MUL_MAT", "MUL_MAT_ID"])
def test_recorded_cases_with_quantized_activations(op: str, target: str) -> None:
    """The results are as good as those of the reference, which quantizes the same way and adds in
    another order."""

    def check(case: Case) -> None:
        dst, sources = operands(case)
        sources[1] = quantized(sources[1], companion(sources[0].dtype))
        got = run_op(op, dst, sources, (), target, 2)
        judge(case, got)
        error = nmse(got, array(case["file"], case["ref_f64_key"]))
        # q8_1 holds the sum of a block as f16, of which the panels make no use
        slack = 1.1 if sources[1].dtype == "q8_1" else 1.02
        assert error <= slack * case["nmse_vs_f64"] + 1e-9, "float64"

    all_pass((case for case in op_cases(op) if types(case)[0] in QUANTIZED), check)


@needs_vectors
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["MUL_MAT", "MUL_MAT_ID"])
def test_recorded_cases_with_bf16_activations(op: str, target: str) -> None:
    """The reference rounds the activations of bf16 weights too; the results are as good."""

    def check(case: Case) -> None:
        dst, sources = operands(case)
        sources[1] = rounded_to_bf16(sources[1].read())
        got = run_op(op, dst, sources, (), target, 2)
        judge(case, got)
        error = nmse(got, array(case["file"], case["ref_f64_key"]))
        assert error <= 1.02 * case["nmse_vs_f64"] + 1e-9, "float64"

    all_pass((case for case in op_cases(op) if types(case)[:2] == ["bf16", "f32"]), check)


# ---- shapes beyond the record


def weights(name: str, m: int, k: int, seed: int = 0) -> tuple[Operand, np.ndarray]:
    """Random rows of a type and their exact values `[m, k]`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)).astype(np.float32)
    if name == "i2_s":
        memory = quants.encode_i2_s(0.5 * np.round(np.clip(x, -1, 1)))
        exact = quants.decode_i2_s(memory, m * k).reshape(m, k)
        return Operand(memory, name, (k, m), contiguous_nb(name, (k, m))), exact
    if not quants.can_encode(name):
        dtype = DTYPES[name]
        data = rng.integers(0, 256, (m, k // dtype.block, dtype.bytes), np.uint8)
        # a scale of about one: d first, or spread over the scale words of iq1_m
        data[..., : len(scale_bytes(name, 0.5))] = scale_bytes(name, 0.5)
        if name == "iq1_m":
            data[..., 49::2] = data[..., 49::2] & 15 | np.uint8([0x00, 0x00, 0x80, 0x30])
        data = data.reshape(m, -1)
    else:
        data = quants.encode(x, name)
    if not DTYPES[name].is_quantized:
        data = data.view(DTYPES[name].storage)
    operand = tensor(data, name)
    return operand, quants.from_storage(operand.read(), name)[0, 0]


ALL_TYPES = ["f32", "f16", "bf16", *(d.name for d in DTYPES.values() if d.is_quantized)]
WEIGHT_TYPES = [n for n in ALL_TYPES if n not in ("q8_1", "q8_K")]


@pytest.mark.parametrize("n", [1, 3, 7, 17, 50])
@pytest.mark.parametrize(("name", "target"), in_turn(WEIGHT_TYPES))
def test_every_type(name: str, n: int, target: str) -> None:
    """Rows and columns that fill no tile, several blocks, and more rows than one panel."""
    m, k = 37, 768
    w, exact = weights(name, m, k)
    x = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
    got = run_op("MUL_MAT", result("f32", (m, n)), [w, tensor(x)], (), target, 2)
    want = x.astype(np.float64) @ exact.T.astype(np.float64)
    assert nmse(got[0, 0], want) <= EXACT
    if name in QUANTIZED:
        activations = quantized(tensor(x), companion(name))
        got = run_op("MUL_MAT", result("f32", (m, n)), [w, activations], (), target, 2)
        rounded = quants.decode(activations.read()[0, 0], companion(name))
        want = rounded.astype(np.float64) @ exact.T.astype(np.float64)
        # q8_1 keeps the sum of a block as f16
        assert nmse(got[0, 0], want) <= (1e-5 if companion(name) == "q8_1" else EXACT)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [1, 2, 31, 333, 1023, 1026, 2500])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 16, 17, 33, 48, 49, 200])
def test_float_tiles(n: int, k: int, target: str) -> None:
    """Rows, columns and depths that fill no vector, word or tile; bf16 columns too."""
    m = 45
    rng = np.random.default_rng(1000 * n + k)
    x = rng.standard_normal((n, k)).astype(np.float32)
    rounded = rounded_to_bf16(x)
    exact_x = {"f32": x, "bf16": quants.from_storage(rounded.read(), "bf16")[0, 0]}
    for name in ("f32", "f16", "bf16"):
        w, exact = weights(name, m, k)
        for columns, operand in (("f32", tensor(x)), ("bf16", rounded)):
            got = run_op("MUL_MAT", result("f32", (m, n)), [w, operand], (), target, 2)
            want = exact_x[columns].astype(np.float64) @ exact.T.astype(np.float64)
            rounds = columns == "bf16" and name != "bf16" and n > 8 and has_bf16_products(target)
            # weights rounded to 8 bits: at most 2^-9 off, evenly spread
            assert nmse(got[0, 0], want) <= (2**-18 if rounds else EXACT), (name, columns)


@pytest.mark.parametrize("target", TARGETS)
def test_more_rows_and_columns_than_a_block(target: str) -> None:
    """More than the sums and the packed columns that are kept at a time."""
    m, n, k = 1100, 333, 1100
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, k)).astype(np.float32)
    for name in ("f16", "bf16"):
        w, exact = weights(name, m, k)
        operand = rounded_to_bf16(x) if name == "bf16" else tensor(x)
        values = quants.from_storage(operand.read(), operand.dtype)[0, 0]
        got = run_op("MUL_MAT", result("f32", (m, n)), [w, operand], (), target, 1)
        want = values.astype(np.float64) @ exact.T.astype(np.float64)
        assert nmse(got[0, 0], want) <= EXACT


@pytest.mark.parametrize("codes", [0x00, 0xFF])
@pytest.mark.parametrize("target", TARGETS)
def test_largest_codes_do_not_overflow(target: str, codes: int) -> None:
    """Every code and every activation at an extreme, where 16-bit sums are tightest."""
    k = 1024
    for name in QUANTIZED:
        if name in ("i2_s", "iq1_m"):  # whose scales are not apart from codes
            continue
        dtype = DTYPES[name]
        data = np.full((16, k // dtype.block, dtype.bytes), codes, np.uint8)
        x = np.where(np.arange(k) % 64 < 32, 1, -1).astype(np.float32) * np.ones(
            (16, 1), np.float32
        )
        if quants.can_encode(name):
            scale = quants.encode(np.ones((1, k), np.float32), name).reshape(-1, dtype.bytes)[0]
        else:
            scale = scale_bytes(name, 1)
        for at in range(dtype.bytes):
            # the scales of a real block, codes all ones
            if at not in _CODE_BYTES[name]:
                data[..., at] = scale[at]
        w = tensor(data.reshape(16, -1), name)
        exact = quants.decode(w.read()[0, 0], name).astype(np.float64)
        for n in (1, 16):
            activations = quantized(tensor(x[:n]), companion(name))
            got = run_op("MUL_MAT", result("f32", (16, n)), [w, activations], (), target)
            rounded = quants.decode(activations.read()[0, 0], companion(name))
            want = rounded.astype(np.float64) @ exact.T
            size = np.abs(rounded).astype(np.float64) @ np.abs(exact).T
            assert (np.abs(got[0, 0] - want) <= 1e-5 * size + 1e-30).all(), name


_CODE_BYTES: dict[str, range] = {
    "q4_0": range(2, 18),
    "q4_1": range(4, 20),
    "q5_0": range(2, 22),
    "q5_1": range(4, 24),
    "q8_0": range(2, 34),
    "q2_K": range(16, 80),
    "q3_K": range(0, 96),
    "q4_K": range(16, 144),
    "q5_K": range(16, 176),
    "q6_K": range(0, 192),
    "iq4_nl": range(2, 18),
    "iq4_xs": range(8, 136),
    "tq1_0": range(0, 52),
    "tq2_0": range(0, 64),
    "mxfp4": range(1, 17),
    "nvfp4": range(4, 36),
    "q1_0": range(2, 18),
    "q2_0": range(2, 18),
    "iq1_s": range(2, 50),
    "iq2_xxs": range(2, 66),
    "iq2_xs": range(2, 74),
    "iq2_s": range(2, 82),
    "iq3_xxs": range(2, 98),
    "iq3_s": range(2, 110),
}
_CODE_BYTES |= {
    d.name: range(4 if d.name in WIDE_SCALES else 2, d.bytes)
    for d in DTYPES.values()
    if d.id >= DTYPES["q6_0"].id
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "n"), [("f16", 1), ("f32", 7), ("q8_0", 1), ("q8_0", 9)])
def test_batches_share_weights(name: str, n: int, target: str) -> None:
    """Consecutive batches of src1 share one of src0, in both outer dimensions."""
    k, m = 96, 20
    w, exact = weights(name, 2 * 3 * m, k)
    w = Operand(w.memory, name, (k, m, 3, 2))
    x = np.random.default_rng(1).standard_normal((4, 6, n, k)).astype(np.float32)
    big = exact.astype(np.float64).reshape(2, 3, m, k).repeat(2, 0).repeat(2, 1)
    want = x.astype(np.float64) @ big.swapaxes(2, 3)
    for n_threads in (1, 2):
        dst = result("f32", (m, n, 6, 4))
        got = run_op("MUL_MAT", dst, [w, tensor(x)], (), target, n_threads)
        assert nmse(got, want) <= EXACT


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [2, 30])
def test_strided_float_operands(n: int, target: str) -> None:
    """Transposed and permuted sources, f16 columns, a result with gaps between its columns."""
    k, m = 70, 33
    rng = np.random.default_rng(2)
    w = rng.standard_normal((k, m)).astype(np.float16)
    x = rng.standard_normal((n, k, 2)).astype(np.float16)
    w_operand = Operand(w.reshape(-1).view(np.uint8), "f16", (k, m), (2 * m, 2, 0, 0))
    x_operand = Operand(x.reshape(-1).view(np.uint8), "f16", (k, n), (4, 4 * k, 0, 0), 2)
    dst = result("f32", (m, n), (4, 4 * m + 20, 0, 0))
    got = run_op("MUL_MAT", dst, [w_operand, x_operand], (), target, 2)
    want = x[:, :, 1].astype(np.float64) @ w.astype(np.float64)
    assert nmse(got[0, 0], want) <= EXACT


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(5, 600, 300), (1, 1, 1), (70, 4, 0), (64, 0, 32)])
def test_odd_sizes(m: int, n: int, k: int, target: str) -> None:
    w = np.random.default_rng(3).standard_normal((m, k)).astype(np.float32)
    x = np.random.default_rng(4).standard_normal((n, k)).astype(np.float32)
    for n_threads in (1, 2):
        dst = result("f32", (m, n))
        got = run_op("MUL_MAT", dst, [tensor(w), tensor(x)], (), target, n_threads)
        assert nmse(got[0, 0], x.astype(np.float64) @ w.T.astype(np.float64)) <= EXACT


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["f16", "q8_0", "q4_K", "iq3_s"])
@pytest.mark.parametrize(("n_tokens", "shared"), [(1, True), (3, False), (40, True), (40, False)])
def test_experts(name: str, n_tokens: int, shared: bool, target: str) -> None:
    """Few tokens and many; an expert that does not exist contributes zeros."""
    k, m, n_expert, n_used = 256, 35, 6, 3
    w, exact = weights(name, n_expert * m, k)
    w = Operand(w.memory, name, (k, m, n_expert))
    rng = np.random.default_rng(5)
    x = rng.standard_normal((n_tokens, 1 if shared else n_used, k)).astype(np.float32)
    ids = np.stack([rng.permutation(n_expert) for _ in range(n_tokens)]).astype(np.int32)
    ids[0, 1], ids[-1, 2] = n_expert, -1
    # the ids are a view of all experts, sorted: rows lie n_expert apart
    chosen = Operand(
        ids.reshape(-1).view(np.uint8), "i32", (n_used, n_tokens), (4, 4 * n_expert, 0, 0)
    )
    matrices = np.concatenate([exact.reshape(n_expert, m, k), np.zeros((1, m, k))])
    picked = np.where((ids < 0) | (ids >= n_expert), n_expert, ids)[:, :n_used]
    modes = [tensor(x)]
    if name in QUANTIZED:
        modes.append(quantized(modes[0], companion(name)))
    for columns in modes:
        stored = columns.read()[0]
        values = stored if columns.dtype == "f32" else quants.decode(stored, columns.dtype)
        values = np.broadcast_to(values.astype(np.float64), (n_tokens, n_used, k))
        want = np.einsum("tuk,tumk->tum", values, matrices[picked].astype(np.float64))
        for n_threads in (1, 2):
            dst = result("f32", (m, n_used, n_tokens))
            got = run_op("MUL_MAT_ID", dst, [w, columns, chosen], (), target, n_threads)
            assert nmse(got[0], want) <= EXACT


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["f32", "bf16", "q4_0", "q5_K", "iq2_s"])
def test_outer_products(name: str, target: str) -> None:
    """Sums of outer products of rows; src1 transposed, batches shared."""
    m, n, k = 512, 19, 300
    w, exact = weights(name, 2 * k, m)
    w = Operand(w.memory, name, (m, k, 2))
    x = np.random.default_rng(6).standard_normal((4, n, k)).astype(np.float32)
    x_operand = Operand(
        x.reshape(-1).view(np.uint8), "f32", (n, k, 4), (4 * k, 4, 4 * k * n, 16 * k * n)
    )
    want = x.astype(np.float64) @ exact.reshape(2, k, m).repeat(2, 0).astype(np.float64)
    for n_threads in (1, 2):
        dst = result("f32", (m, n, 4))
        got = run_op("OUT_PROD", dst, [w, x_operand], (), target, n_threads)
        assert nmse(got[0], want) <= EXACT


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_row_times_blocks_of_infinity(name: str, target: str) -> None:
    """Scales of inf or NaN must spread like those of the decoded row, and crash nothing."""
    if name in ("i2_s", "mxfp4", "nvfp4"):
        return
    w = tensor(np.full((33, 1024 // DTYPES[name].block * DTYPES[name].bytes), 0xFF, np.uint8), name)
    x = quantized(tensor(np.ones((9, 1024), np.float32)), companion(name))
    got = run_op("MUL_MAT", result("f32", (33, 9)), [w, x], (), target)
    assert not np.isfinite(got).any()


# ---- refusals


def f32(*ne: int) -> Operand:
    return result("f32", ne)


@pytest.mark.parametrize(
    ("op", "dst", "src", "reason"),
    [
        ("MUL_MAT", f32(4, 2), [f32(8, 4), f32(9, 2)], "differ in length"),
        ("MUL_MAT", f32(4, 3), [f32(8, 4), f32(8, 2)], "shape of the product"),
        ("MUL_MAT", f32(4, 2, 3), [f32(8, 4, 2), f32(8, 2, 3)], "do not repeat"),
        ("MUL_MAT", result("f16", (4, 2)), [f32(8, 4), f32(8, 2)], "f32 rows"),
        ("MUL_MAT", f32(4, 2), [result("i32", (8, 4)), f32(8, 2)], "no decoder"),
        ("MUL_MAT", f32(4, 2), [f32(8, 4), result("i32", (8, 2))], "second source"),
        ("MUL_MAT_ID", f32(4, 1, 2), [f32(8, 4, 3), f32(8, 1, 2), f32(1, 2)], "i32"),
        (
            "MUL_MAT_ID",
            f32(4, 2, 2),
            [f32(8, 4, 3), f32(8, 3, 2), result("i32", (2, 2))],
            "column for each",
        ),
        ("OUT_PROD", f32(4, 2), [f32(4, 3), f32(2, 4)], "differ in"),
        ("OUT_PROD", f32(4, 2), [f32(4, 3), result("q8_0", (32, 3))], "second source"),
    ],
)
def test_refuses(op: str, dst: Operand, src: list[Any], reason: str) -> None:
    for target in TARGETS:
        assert reason in str(refusal(op, dst, src, (), target))
