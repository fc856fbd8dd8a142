"""Recurrences, hyper-connections, index scores and triangular systems, on every target."""

from typing import Any

import numpy as np
import pytest
from golden import needs_vectors
from graph_ops import Leaves, agree, on_reference, recorded_cases_fail
from harness import Operand, refusal, result, run_op, tensor
from numpy.typing import NDArray

from tests.targets import BUT_PRODUCTS, TARGETS
from weft import Session, Sym, _native, compile, quants
from weft import graph as g
from weft.dtype import DTYPES
from weft.graph import Graph, Tensor
from weft.graph.params import pack
from weft.program import LAYOUTS

Array = NDArray[Any]
OPS = (
    *("SSM_CONV", "SSM_SCAN", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN", "GATED_DELTA_NET"),
    *("DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST", "LIGHTNING_INDEXER", "SOLVE_TRI"),
)


@needs_vectors
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", OPS)
def test_recorded_cases(op: str, target: str) -> None:
    wrong = recorded_cases_fail(op, target)
    assert not wrong, "\n".join(wrong)


# ---- state-space models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taps", "inner", "tokens", "seqs"),
    [(4, 33, 1, 1), (1, 5, 9, 2), (3, 16, 150, 1), (7, 50, 65, 3)],
)
def test_ssm_conv(taps: int, inner: int, tokens: int, seqs: int) -> None:
    leaves = Leaves(taps)
    sx, c = leaves.normal(taps - 1 + tokens, inner, seqs), leaves.normal(taps, inner)
    agree(g.ssm_conv(sx, c), leaves)


def scan(
    leaves: Leaves, d_state: int, dim: int, heads: int, groups: int, tokens: int, seqs: int,
    k: int = 1, slots: int = 5, mamba1: bool = False, ids: list[int] | None = None,
) -> Tensor:  # fmt: skip
    chosen = leaves.rng.permutation(slots)[:seqs] if ids is None else np.array(ids)
    return g.ssm_scan(
        leaves.normal(d_state, dim, heads, slots),
        leaves.normal(dim, heads, tokens, seqs),
        leaves.uniform(-4, 25, heads, tokens, seqs),  # beyond 20 softplus is the identity
        leaves.uniform(-1.5, -0.01, d_state if mamba1 else 1, heads),
        leaves.normal(d_state, groups, tokens, seqs),
        leaves.normal(d_state, groups, tokens, seqs),
        leaves.put(chosen, "i32"),
        k=k,
    )


@pytest.mark.parametrize(
    ("d_state", "dim", "heads", "groups", "tokens", "seqs", "k"),
    [
        (16, 37, 4, 1, 6, 2, 1),
        (128, 64, 4, 2, 3, 1, 1),
        (20, 5, 6, 3, 5, 3, 4),
        (7, 17, 2, 2, 2, 2, 5),  # more snapshots than tokens
        (1, 1, 3, 1, 1, 1, 2),
    ],
)
def test_ssm_scan(
    d_state: int, dim: int, heads: int, groups: int, tokens: int, seqs: int, k: int
) -> None:
    leaves = Leaves(d_state)
    agree(scan(leaves, d_state, dim, heads, groups, tokens, seqs, k), leaves)


@pytest.mark.parametrize("d_state", [16, 9])
def test_ssm_scan_with_a_rate_per_state(d_state: int) -> None:
    leaves = Leaves(d_state)
    agree(scan(leaves, d_state, 1, 40, 1, 7, 2, 3, mamba1=True), leaves)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("cell", "units", "width", "n_seqs"),
    [("lstm", 70, 70, 1), ("lstm", 64, 37, 3), ("gru", 33, 33, 10), ("tanh", 150, 150, 2)],
)
def test_recurrent_layers(cell: str, units: int, width: int, n_seqs: int, reverse: bool) -> None:
    leaves = Leaves(units)
    agree(recurrent(leaves, cell, units, width, n_seqs, 6, reverse), leaves)


def recurrent(
    leaves: Leaves,
    cell: str,
    units: int,
    width: int,
    n_seqs: int,
    steps: int,
    reverse: bool = False,
) -> Tensor:
    gates, is_lstm = g.RnnCell[cell.upper()].gates, cell == "lstm"
    return g.rnn(
        leaves.uniform(-0.2, 0.2, width, -(-units // 32) * 32, gates),  # rows behind are not read
        leaves.normal(gates * units, n_seqs, steps),
        leaves.normal(width, n_seqs),
        leaves.normal(units, n_seqs) if is_lstm else None,
        leaves.normal(gates * units),
        leaves.uniform(-0.2, 0.2, units, width) if width != units else None,
        cell=cell,
        reverse=reverse,
    )


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize(
    ("cell", "units", "width"),
    [("lstm", 128, 128), ("lstm", 128, 90), ("gru", 130, 130), ("relu", 300, 300)],
)
def test_a_layer_is_the_same_however_it_is_cut(
    target: str, cell: str, units: int, width: int
) -> None:
    """To the last bit: sequences alone, packed weights, and other numbers of threads."""
    steps, n_seqs = 40, 9
    leaves = Leaves(units)
    node = recurrent(leaves, cell, units, width, n_seqs, steps)
    sources = [None if t is None else leaves.operand(t) for t in node.src]
    x, h, c = (None if t is None else leaves.data[t.name] for t in node.src[1:4])
    w = sources[0]
    assert w is not None
    panels = Operand(
        np.zeros_like(w.memory), w.dtype, w.ne, w.nb, layout=LAYOUTS.index("interleaved")
    )
    rows = w.ne[1] * w.ne[2]
    _native.interleave(
        DTYPES["f32"].id, w.memory, panels.memory, rows, width, _native.ThreadPool(1)
    )

    def run(one: slice, weights: Operand, threads: int) -> Array:
        n = len(range(n_seqs)[one])
        some = [None if v is None else tensor(v[..., one, :]) for v in (x, h, c)]
        to = result("f32", (width * n * steps + (units * n if cell == "lstm" else 0),))
        operands = [weights, *some, *sources[4:]]
        y = run_op("RNN", to, operands, pack(node.params), target, threads).reshape(-1)
        return y[: width * n * steps].reshape(steps, n, width)

    y = run(slice(None), w, 1)
    for threads in (1, 2, 3):
        for weights in (w, panels):
            assert np.array_equal(run(slice(None), weights, threads), y)
            assert np.array_equal(run(slice(4, 5), weights, threads)[:, 0], y[:, 4])
    assert np.array_equal(run(slice(0, 4), panels, 2), y[:, :4])


@pytest.mark.parametrize(("n", "steps", "outer"), [(1, 9, 5), (16, 1, 3), (67, 5, 2), (200, 3, 1)])
def test_linear_scan(n: int, steps: int, outer: int) -> None:
    leaves = Leaves(n)
    a, b = leaves.uniform(-1, 1, n, steps, outer), leaves.normal(n, steps, outer)
    agree(g.linear_scan(a, b, leaves.normal(n, 1, outer)), leaves)


def test_a_slot_that_does_not_exist_starts_from_zeros() -> None:
    known, unknown = Leaves(3), Leaves(3)
    node = scan(known, 8, 4, 2, 1, 3, 2, slots=3, ids=[1, 2])
    known.data["x0"][1:] = 0
    want = on_reference(node, known.data)
    other = scan(unknown, 8, 4, 2, 1, 3, 2, slots=3, ids=[3, -1])
    sources = [unknown.operand(s) for s in other.src if s is not None]
    for target in TARGETS:
        got = run_op("SSM_SCAN", result("f32", other.ne), sources, pack(other.params), target)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize(("d_state", "dim", "heads", "groups"), [(16, 1, 83, 1), (40, 24, 6, 3)])
def test_a_scan_is_the_same_however_it_is_cut(
    target: str, d_state: int, dim: int, heads: int, groups: int
) -> None:
    """To the last bit: a sequence alone, token by token and with other numbers of threads."""
    tokens, seqs = 11, 3
    leaves = Leaves(d_state)
    node = scan(leaves, d_state, dim, heads, groups, tokens, seqs, mamba1=dim == 1, ids=[2, 0, 4])
    s, x, dt, a, b, c, ids = (leaves.data[t.name] for t in node.src if t is not None)

    def run(state: Array, t: slice, one: slice, slots: Array, threads: int = 1) -> list[Array]:
        n, n_seqs = len(range(tokens)[t]), len(range(seqs)[one])
        sources = [state, x[one, t], dt[one, t], a, b[one, t], c[one, t], slots.astype(np.int32)]
        operands = [tensor(np.ascontiguousarray(v)) for v in sources]
        outputs, state_size = dim * heads * n * n_seqs, d_state * dim * heads * n_seqs
        to = result("f32", (outputs + state_size,))
        y = run_op("SSM_SCAN", to, operands, pack(node.params), target, threads).reshape(-1)
        return [y[:outputs].reshape(n_seqs, n, -1), y[outputs:].reshape(n_seqs, *s.shape[1:])]

    y, states = run(s, slice(None), slice(None), ids)
    again = run(s, slice(None), slice(None), ids, threads=3)
    assert all(np.array_equal(p, q) for p, q in zip(again, (y, states), strict=True))
    for seq in range(seqs):
        state = s[ids[seq]][None]
        for t in range(tokens):
            at = slice(t, t + 1)
            out, state = run(state, at, slice(seq, seq + 1), np.zeros(1))
            assert np.array_equal(out[0], y[seq, at])
        assert np.array_equal(state[0], states[seq])


@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_a_convolution_is_the_same_however_it_is_cut(target: str) -> None:
    leaves, inner, tokens = Leaves(1), 37, 21
    sx, c = (leaves.data[leaves.normal(*ne).name] for ne in ((3 + tokens, inner, 2), (4, inner)))

    def run(x: Array) -> Array:
        operands = [tensor(np.ascontiguousarray(v)) for v in (x, c)]
        return run_op("SSM_CONV", result("f32", (inner, x.shape[2] - 3, 2)), operands, (), target)

    whole = run(sx)[0]
    for first, last in ((0, 1), (1, 17), (17, 20), (20, 21)):
        assert np.array_equal(run(sx[:, :, first : last + 3])[0], whole[:, first:last])


# ---- linear attention ----------------------------------------------------------------------------

# (head size, heads, tokens of a sequence, sequences)
HEADS = [(64, 2, 5, 1), (16, 3, 4, 2), (128, 1, 3, 2), (33, 2, 3, 1), (1, 2, 2, 3), (20, 1, 1, 1)]


def vectors(leaves: Leaves, count: int, size: int, heads: int, tokens: int) -> list[Tensor]:
    return [leaves.normal(size, heads, tokens, scale=0.5) for _ in range(count)]


@pytest.mark.parametrize(("size", "heads", "tokens", "seqs"), HEADS)
def test_rwkv_wkv6(size: int, heads: int, tokens: int, seqs: int) -> None:
    leaves = Leaves(size)
    k, v, r = vectors(leaves, 3, size, heads, tokens * seqs)
    first, decay = leaves.normal(size, heads), leaves.uniform(0.3, 1, size, heads, tokens * seqs)
    agree(g.rwkv_wkv6(k, v, r, first, decay, leaves.normal(size * size * heads, seqs)), leaves)


@pytest.mark.parametrize(("size", "heads", "tokens", "seqs"), HEADS)
def test_rwkv_wkv7(size: int, heads: int, tokens: int, seqs: int) -> None:
    leaves = Leaves(size)
    r, k, v, a, b = vectors(leaves, 5, size, heads, tokens * seqs)
    w = leaves.uniform(0.3, 1, size, heads, tokens * seqs)
    agree(g.rwkv_wkv7(r, w, k, v, a, b, leaves.normal(size * size * heads, seqs)), leaves)


@pytest.mark.parametrize(("size", "heads", "tokens", "seqs"), HEADS)
def test_gated_linear_attn(size: int, heads: int, tokens: int, seqs: int) -> None:
    leaves = Leaves(size)
    k, v, q = vectors(leaves, 3, size, heads, tokens * seqs)
    gate = leaves.uniform(0.3, 1, size, heads, tokens * seqs)
    state = leaves.normal(size * size * heads, seqs)
    agree(g.gated_linear_attn(k, v, q, gate, state, scale=size**-0.5), leaves)


@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize(
    ("size", "heads_k", "heads", "tokens", "seqs_k", "seqs", "k"),
    [
        (16, 2, 6, 5, 1, 2, 1),
        (64, 1, 2, 2, 2, 4, 3),
        (33, 2, 2, 3, 1, 1, 5),  # more snapshots than tokens
        (128, 1, 1, 4, 2, 2, 2),
        (128, 1, 3, 1, 1, 43, 1),  # states that no cache holds
    ],
)
def test_gated_delta_net(
    size: int, heads_k: int, heads: int, tokens: int, seqs_k: int, seqs: int, k: int, per_key: bool
) -> None:
    leaves = Leaves(size)

    def by_head(n: int, count: int, n_seq: int) -> Tensor:
        """[n, head, token, seq] whose memory has heads outside tokens."""
        scale = 0.3 if n > 1 else 1.0
        return g.permute(leaves.normal(n, tokens, count, n_seq, scale=scale), 0, 2, 1, 3)

    node = g.gated_delta_net(
        by_head(size, heads_k, seqs_k),
        by_head(size, heads_k, seqs_k),
        by_head(size, heads, seqs),
        leaves.uniform(-2, 0, size if per_key else 1, heads, tokens, seqs),
        leaves.uniform(0, 1, 1, heads, tokens, seqs),
        leaves.normal(size, size, heads, seqs),
        n_states=k,
    )
    agree(node, leaves)


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize(("size", "per_key"), [(64, False), (40, True)])
def test_a_delta_net_is_the_same_however_it_is_cut(target: str, size: int, per_key: bool) -> None:
    """To the last bit: token by token and with other numbers of threads."""
    heads, tokens = 2, 9
    leaves = Leaves(size)
    q, k, v = (leaves.normal(size, heads, tokens, scale=0.3) for _ in range(3))
    gate = leaves.uniform(-2, 0, size if per_key else 1, heads, tokens)
    beta, start = leaves.uniform(0, 1, 1, heads, tokens), leaves.normal(size, size, heads)
    vectors = [leaves.data[t.name] for t in (q, k, v, gate, beta)]

    def run(state: Array, t: slice, threads: int = 1) -> list[Array]:
        operands = [tensor(np.ascontiguousarray(x[t])) for x in vectors]
        outputs = len(range(tokens)[t]) * heads * size
        to = result("f32", (outputs + state.size,))
        operands.append(tensor(state))
        y = run_op("GATED_DELTA_NET", to, operands, [1.0], target, threads).reshape(-1)
        return [y[:outputs].reshape(-1, heads, size), y[outputs:].reshape(state.shape)]

    state = leaves.data[start.name]
    y, end = run(state, slice(None))
    again = run(state, slice(None), threads=3)
    assert all(np.array_equal(a, b) for a, b in zip(again, (y, end), strict=True))
    for t in range(tokens):
        out, state = run(state, slice(t, t + 1))
        assert np.array_equal(out[0], y[t])
    assert np.array_equal(state, end)


def test_fewer_tokens_than_planned() -> None:
    """Outputs end, and states begin, where the actual number of tokens says."""
    n = Sym("n", 1, 9)
    k, v, r, decay = (g.input(name, (n, 2, 16)) for name in ("k", "v", "r", "decay"))
    first, state = g.input("first", (2, 16)), g.input("state", (1, 512))
    graph = Graph(g.rwkv_wkv6(k, v, r, first, decay, state).as_output("out"))
    sessions = [Session(compile(graph, [device])) for device in ("cpu", "reference")]
    rng = np.random.default_rng(0)
    for tokens in (9, 1, 4):
        inputs = {x: rng.uniform(0, 1, (tokens, 2, 16)).astype(np.float32) for x in "kvr"}
        inputs["decay"] = rng.uniform(0.5, 1, (tokens, 2, 16)).astype(np.float32)
        inputs["first"] = rng.uniform(0, 1, (2, 16)).astype(np.float32)
        inputs["state"] = rng.uniform(0, 1, (1, 512)).astype(np.float32)
        got, want = (session.run(inputs)["out"] for session in sessions)
        assert got.shape == (tokens + 16, 32)
        np.testing.assert_allclose(got, want, rtol=1e-5)


# ---- hyper-connections ---------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "n_iter"), [(1, 1), (7, 20)])
def test_hc_comb(tokens: int, n_iter: int) -> None:
    leaves = Leaves(tokens)
    mixes, scale, base = leaves.normal(24, tokens), leaves.normal(3), leaves.normal(24)
    agree(g.dsv4_hc_comb(mixes, scale, base, eps=1e-6, n_iter=n_iter), leaves)


@pytest.mark.parametrize(("dim", "hc", "tokens"), [(31, 4, 5), (2500, 3, 2), (1, 1, 1)])
def test_hc_pre_and_post(dim: int, hc: int, tokens: int) -> None:
    leaves = Leaves(dim)
    x, streams = leaves.normal(dim, tokens), leaves.normal(dim, hc, tokens)
    post, comb = leaves.normal(hc, tokens), leaves.normal(hc, hc, tokens)
    agree(g.dsv4_hc_pre(streams, post), leaves)
    agree(g.dsv4_hc_pre(streams, leaves.normal(dim, hc, tokens), gated=True, scale=0.3), leaves)
    agree(g.dsv4_hc_post(x, streams, post), leaves)
    agree(g.dsv4_hc_post(x, streams, post, comb), leaves)


# ---- index scores, triangular systems ------------------------------------------------------------


@pytest.mark.parametrize("k_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("d", "heads", "tokens", "cells", "streams"),
    [(64, 4, 3, 20, 2), (30, 5, 1, 200, 1), (128, 9, 2, 64, 4)],
)
def test_lightning_indexer(
    d: int, heads: int, tokens: int, cells: int, streams: int, k_type: str
) -> None:
    leaves = Leaves(d)
    mask = np.where(leaves.rng.random((1, 1, tokens, cells)) < 0.2, -np.inf, 0)
    node = g.lightning_indexer(
        leaves.normal(d, heads, tokens, streams),
        leaves.normal(d, 1, cells, streams, dtype=k_type),
        leaves.normal(heads, tokens, 1, streams),
        leaves.put(mask, "f16"),
    )
    agree(node, leaves)


@pytest.mark.parametrize(("k_type", "d"), [("q8_0", 96), ("q4_0", 32), ("q6_K", 512)])
def test_lightning_indexer_decodes_its_keys(k_type: str, d: int) -> None:
    leaves = Leaves(d)
    cells = leaves.rng.standard_normal((2, 70, 1, d)).astype(np.float32)
    k = leaves.put(cells, "f32")
    leaves.data[k.name] = quants.encode(cells, k_type)
    k = g.input(k.name, (2, 70, 1, d), k_type)
    q, weights = leaves.normal(d, 6, 4, 2), leaves.normal(6, 4, 1, 2)
    agree(g.lightning_indexer(q, k, weights, leaves.normal(70, 4, 1, 1)), leaves)


@pytest.mark.parametrize(("n", "k", "batch"), [(1, 1, 1), (11, 5, 3), (32, 64, 1), (40, 91, 2)])
def test_solve_tri(n: int, k: int, batch: int) -> None:
    leaves = Leaves(n)
    a = np.tril(leaves.rng.uniform(-0.2, 0.2, (2, batch, n, n))) + 2 * np.eye(n)
    a += np.triu(np.full((n, n), 1e9), 1)  # the upper triangle is not read
    agree(g.solve_tri(leaves.put(a, "f32"), leaves.normal(k, n, batch, 2)), leaves)


# ---- refusals ------------------------------------------------------------------------------------


def refused(node: Tensor, leaves: Leaves, params: list[float], ne: tuple[int, ...] = ()) -> str:
    sources = [leaves.operand(s) for s in node.src if s is not None]
    return str(refusal(node.op.name, result("f32", ne or node.ne), sources, params))


@pytest.mark.parametrize("bad", [0.0, -3.0, float("nan"), 1e300])
def test_refuses_numbers_of_snapshots_that_cannot_be(bad: float) -> None:
    leaves = Leaves(0)
    node = scan(leaves, 8, 4, 2, 1, 3, 2)
    assert refused(node, leaves, [1.0]) == "None"
    assert "snapshot" in refused(node, leaves, [bad])
    assert "takes 1 parameters, got 0: k:int" in refused(node, leaves, [])


def test_refuses_a_result_that_cannot_hold_the_states() -> None:
    leaves = Leaves(0)
    node = scan(leaves, 8, 4, 2, 1, 3, 2, k=2)
    size = node.ne[0]
    assert isinstance(size, int)
    assert "states" in refused(node, leaves, [2.0], (size - 1,))
    assert "states" in refused(node, leaves, [3.0])
    k, v, q, gate = vectors(leaves, 4, 8, 2, 6)
    state = leaves.normal(8 * 8 * 2, 3)
    attn = g.gated_linear_attn(k, v, q, gate, state, scale=1.0)
    assert refused(attn, leaves, [1.0]) == "None"
    assert "states" in refused(attn, leaves, [1.0], (16, 6 + 23))
    assert "scale" in refused(attn, leaves, [])


def test_refuses_sources_without_elements() -> None:
    """A size that nothing indexes still empties a source."""
    leaves = Leaves(0)
    node = g.dsv4_hc_comb(
        leaves.normal(24, 3), leaves.normal(3), leaves.normal(24), eps=0, n_iter=1
    )
    sources = [leaves.operand(s) for s in node.src if s is not None]
    out, params = result("f32", node.ne), pack(node.params)
    assert refusal(node.op.name, out, sources, params) is None
    sources[0].ne = (24, 3, 0, 1)
    assert "mixes" in str(refusal(node.op.name, out, sources, params))


def test_refuses_endless_iterations() -> None:
    leaves = Leaves(0)
    node = g.dsv4_hc_comb(
        leaves.normal(24, 3), leaves.normal(3), leaves.normal(24), eps=0, n_iter=1
    )
    assert "iterations" in refused(node, leaves, [0.0, 1e9])


def test_refuses_upper_systems() -> None:
    leaves = Leaves(0)
    node = g.solve_tri(leaves.normal(4, 4), leaves.normal(2, 4))
    assert refused(node, leaves, [1, 1, 0]) == "None"
    assert "lower" in refused(node, leaves, [1, 0, 0])
    assert "lower" in refused(node, leaves, [1, 1])
