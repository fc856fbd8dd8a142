"""Reference kernels where the golden vectors do not reach: ties, duplicates, shapes, own ops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_run import Lowered, compute

import weft.graph as g
from weft import quants
from weft.backends.reference.attention import alibi_slopes
from weft.errors import GraphError
from weft.graph.ops import RopeMode

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_argmax_takes_the_last_of_equals() -> None:
    x = np.array([[1, 5, 5, 2], [-np.inf] * 4, [np.nan, 3, 3, np.nan]], np.float32)
    assert compute(g.argmax(g.input("x", [3, 4])), x=x).reshape(-1).tolist() == [2, 3, 2]


def test_argsort_keeps_equals_in_order() -> None:
    x = np.array([2, 1, 2, 1], np.float32)
    node = g.input("x", [4])
    assert compute(g.argsort(node, "asc"), x=x).reshape(-1).tolist() == [1, 3, 0, 2]
    assert compute(g.argsort(node, "desc"), x=x).reshape(-1).tolist() == [0, 2, 1, 3]


def test_of_two_equal_rows_the_later_wins() -> None:
    cache = g.input("cache", [4, 2])
    node = g.set_rows(cache, g.input("new", [3, 2]), g.input("ids", [3], "i64"))
    got = compute(node, new=np.arange(6).reshape(3, 2), ids=np.array([2, 0, 2]))
    assert got[0, 0].tolist() == [[2, 3], [0, 0], [4, 5], [0, 0]]


@pytest.mark.parametrize("dtype", ["q8_0", "q8_1", "q8_K", "f16", "bf16"])
def test_matmul_reads_quantized_activations(dtype: str) -> None:
    w, x = normal(5, 512), normal(3, 512)
    activations = g.quantize(g.input("x", [3, 512]), dtype)
    # the planner swaps src1 for the QUANTIZE step, past the constructor's type rule
    node = g.mul_mat(g.constant(w), g.input("x2", [3, 512]))
    node.src = (node.src[0], activations)
    got = compute(node, x=x)[0, 0]
    raw = quants.encode_runtime if dtype in ("f16", "bf16") else quants.encode_activation
    exact = quants.decode(raw(x, dtype), dtype).astype(np.float64) @ w.astype(np.float64).T
    np.testing.assert_allclose(got, exact, rtol=1e-6)
    assert not np.allclose(got, x @ w.T, rtol=1e-6)


def test_matmul_of_ternary_weights_with_one_scale() -> None:
    w = RNG.choice([-0.5, 0, 0.5], (4, 128)).astype(np.float32)
    x = normal(3, 128)
    weights = g.leaf("i2_s", [128, 4], "w")
    lowered = Lowered(
        product := g.mul_mat(weights, g.input("x", [3, 128])),
        rows := g.get_rows(weights, g.input("ids", [2], "i32")),
    )
    lowered.memories[weights].write(0, quants.encode_i2_s(w))
    lowered.run(x=x, ids=np.array([3, 1], np.int32))
    np.testing.assert_allclose(lowered.view(product).read()[0, 0], x @ w.T, rtol=1e-5, atol=1e-5)
    assert np.array_equal(lowered.view(rows).read()[0, 0], w[[3, 1]])


@given(
    n3=st.integers(1, 2),
    n2=st.integers(1, 3),
    r3=st.integers(1, 2),
    r2=st.integers(1, 3),
    m=st.integers(1, 4),
    n=st.integers(1, 4),
    k=st.integers(1, 9),
)
def test_matmul_shares_batches_in_blocks(
    n3: int, n2: int, r3: int, r2: int, m: int, n: int, k: int
) -> None:
    a, b = normal(n3, n2, m, k), normal(n3 * r3, n2 * r2, n, k)
    node = g.mul_mat(g.input("a", a.shape), g.input("b", b.shape))
    got = compute(node, a=a, b=b)
    full = a.astype(np.float64).repeat(r3, 0).repeat(r2, 1)
    np.testing.assert_allclose(got, b @ full.swapaxes(-1, -2), rtol=1e-5, atol=1e-6)


@given(
    mode=st.sampled_from([RopeMode.NORMAL, RopeMode.NEOX]),
    half=st.integers(1, 8),
    start=st.integers(0, 4),
    rest=st.integers(0, 3),
    position=st.integers(0, 100_000),
)
def test_rope_back_undoes_rope(
    mode: RopeMode, half: int, start: int, rest: int, position: int
) -> None:
    x = normal(2, 3, 2 * half + start + rest)
    source, pos = g.input("x", x.shape), g.input("pos", [2], "i32")
    turned = g.rope(source, pos, n_dims=2 * half, mode=mode, n_offset=start)
    node = g.rope_back(turned, pos, n_dims=2 * half, mode=mode, n_offset=start)
    positions = np.array([position, position + 1], np.int32)
    lowered = Lowered(node)
    lowered.run(x=x, pos=positions)
    np.testing.assert_allclose(lowered.view(node).read()[0], x, rtol=1e-5, atol=1e-5)
    rotated = lowered.view(turned).read()[0]
    kept = np.r_[0:start, start + 2 * half : x.shape[-1]]
    assert np.array_equal(rotated[..., kept], x[..., kept])
    np.testing.assert_allclose(
        np.square(rotated).sum(-1), np.square(x).sum(-1), rtol=1e-4, atol=1e-5
    )


def test_alibi_slopes_of_a_head_count_that_is_no_power_of_two() -> None:
    # the published slopes for 12 heads: those of 8, then every second one of 16
    eight = 2.0 ** -np.arange(1, 9)
    sixteen = 2.0 ** (-np.arange(1, 17) / 2)
    np.testing.assert_allclose(alibi_slopes(12, 8.0), np.r_[eight, sixteen[::2][:4]])
    assert alibi_slopes(12, 0.0).tolist() == [1.0] * 12


def test_attention_is_softmax_of_products() -> None:
    q, k, v = normal(1, 4, 3, 8), normal(1, 2, 6, 8), normal(1, 2, 6, 5)
    tensors = [g.input(name, x.shape) for name, x in (("q", q), ("k", k), ("v", v))]
    mask = g.input("mask", [3, 6], "f16")
    fused = g.flash_attn_ext(*tensors, mask, scale=0.3)
    scores = g.soft_max(g.mul_mat(tensors[1], tensors[0]), mask, scale=0.3)
    plain = g.mul_mat(g.cont(g.transpose(tensors[2])), scores)
    lowered = Lowered(fused, plain)
    visible = np.where(np.tri(3, 6, 3), 0, -np.inf)
    lowered.run(q=q, k=k, v=v, mask=visible)
    got, expected = lowered.view(fused).read(), lowered.view(plain).read()
    np.testing.assert_allclose(got, expected.swapaxes(1, 2), rtol=1e-6, atol=1e-7)


def test_a_row_that_sees_nothing_attends_to_nothing() -> None:
    q, k = normal(1, 1, 2, 8), normal(1, 1, 4, 8)
    mask = np.array([[0, 0, 0, 0], [-np.inf] * 4])
    node = g.flash_attn_ext(
        g.input("q", q.shape), g.input("k", k.shape), g.input("v", k.shape),
        g.input("m", [2, 4], "f16"), scale=1.0,
    )  # fmt: skip
    got = compute(node, q=q, k=k, v=k, m=mask)
    assert got[0, 0].any() and not got[0, 1].any()


@given(
    size=st.integers(3, 9),
    taps=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_conv_2d_is_im2col_and_matmul(
    size: int, taps: int, stride: int, padding: int, dilation: int
) -> None:
    if size + 2 * padding < dilation * (taps - 1) + 1:
        return
    w, x = normal(4, 2, taps, taps), normal(2, 2, size, size + 1)
    weights, data = g.input("w", w.shape), g.input("x", x.shape)
    where = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (dilation,) * 2}
    direct = g.conv_2d(weights, data, **where)
    columns = g.im2col(weights, data, **where, is_2d=True, dtype="f32")
    lowered = Lowered(direct, columns)
    lowered.run(w=w, x=x)
    product = lowered.view(columns).read() @ w.reshape(4, -1).T.astype(np.float64)
    np.testing.assert_allclose(
        lowered.view(direct).read(), np.moveaxis(product, -1, 1), rtol=1e-4, atol=1e-5
    )


def test_recurrences_take_tokens_one_by_one_or_together() -> None:
    """Two tokens at once give what one and then the other give, states handed on."""
    head, n_head = 4, 3
    parts = {name: normal(2, n_head, head) for name in ("k", "v", "q")}
    parts["g"] = RNG.random((2, n_head, head), np.float32)
    state = normal(1, n_head * head * head)

    def step(tokens: slice, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = parts["k"][tokens].shape
        sources = [g.input(name, shape) for name in parts]
        node = g.gated_linear_attn(*sources, g.input("s", start.shape), scale=0.5)
        out = compute(node, s=start, **{n: x[tokens] for n, x in parts.items()}).reshape(-1)
        return out[: np.prod(shape)], out[np.prod(shape) :].reshape(start.shape)

    together, last = step(slice(0, 2), state)
    first, middle = step(slice(0, 1), state)
    second, end = step(slice(1, 2), middle)
    np.testing.assert_allclose(together, np.r_[first, second], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, end, rtol=1e-5, atol=1e-6)


def test_delta_net_snapshots_are_newest_first() -> None:
    s, h, n_tokens = 4, 2, 3
    shapes = {"q": (1, n_tokens, h, s), "k": (1, n_tokens, h, s), "v": (1, n_tokens, h, s),
              "g": (1, n_tokens, h, 1), "b": (1, n_tokens, h, 1), "s": (1, h, s, s)}  # fmt: skip
    data = {name: normal(*shape) for name, shape in shapes.items()}

    def states(n: int, k: int) -> np.ndarray:
        part = {x: v if x == "s" else v[:, :n] for x, v in data.items()}
        node = g.gated_delta_net(*(g.input(x, v.shape) for x, v in part.items()), n_states=k)
        return compute(node, **part).reshape(-1)[n * h * s :].reshape(k, -1)

    kept = states(n_tokens, 4)
    for age in range(n_tokens):
        np.testing.assert_allclose(kept[age], states(n_tokens - age, 1)[0], rtol=1e-6)
    assert not kept[3].any()


def test_broadcast_repeats_in_turns() -> None:
    a, b = normal(4, 6), normal(2, 3)
    got = compute(g.add(g.input("a", [4, 6]), g.input("b", [2, 3])), a=a, b=b)
    np.testing.assert_array_equal(got[0, 0], a + np.tile(b, (2, 2)))


def test_hadamard_is_its_own_inverse() -> None:
    x = normal(2, 3, 96)
    node = g.hadamard(g.input("x", x.shape), 32)
    once = compute(node, x=x)[0]
    np.testing.assert_allclose(once[..., 32], x[..., 32:64].sum(-1) / np.sqrt(32), rtol=1e-5)
    np.testing.assert_allclose(
        once[..., 33], (x[..., 32:64:2] - x[..., 33:64:2]).sum(-1) / np.sqrt(32), rtol=1e-5
    )
    np.testing.assert_allclose(compute(g.hadamard(node, 32), x=x)[0], x, atol=1e-6)
    for n in (64, 48, 1, 0, -2):
        with pytest.raises(GraphError, match=f"n = {n} must be a power of two from 2 on that divi"):
            g.hadamard(g.input("x", x.shape), n)


def test_copy_into_a_strided_destination() -> None:
    x = normal(3, 4)
    base = g.input("base", [4, 8], "f16")
    target = g.view_2d(base, 3, 4, base.nb[1], 4)
    lowered = Lowered(g.cpy(g.transpose(g.input("x", [3, 4])), target))
    lowered.run(x=x)
    got = lowered.view(base).read()[0, 0]
    assert np.array_equal(got[:, 2:5], x.T.astype(np.float16))
    assert not got[:, :2].any() and not got[:, 5:].any()


def test_solve_tri_solves() -> None:
    a = np.tril(normal(2, 5, 5)) + 3 * np.eye(5, dtype=np.float32)
    b = normal(2, 5, 3)
    got = compute(g.solve_tri(g.input("a", a.shape), g.input("b", b.shape)), a=a, b=b)[0]
    np.testing.assert_allclose(a @ got, b, rtol=1e-4, atol=1e-5)
