"""Shape and type rules: symbolic sizes go through, wrong shapes are refused with both shapes."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.graph
from weft import graph as g
from weft.errors import GraphError
from weft.graph import Graph, Sym, Tensor, check_graph, evaluate
from weft.graph.op import OPS, declares, find_op

T = Sym("n_tokens", 1, 512)
KV = Sym("n_kv", 32, 4096)


def t(dtype: str, *ne: Any, name: str = "t") -> Tensor:
    return g.leaf(dtype, [n.size if isinstance(n, Sym) else n for n in ne], name)


# ---- symbolic sizes


def attention_block(n_tok: Any, n_kv: Any) -> Tensor:
    """A llama-like attention block with a KV cache, over sizes that may be symbolic."""
    d, heads, kv_heads, dh = 64, 4, 2, 16
    x = t("f32", d, n_tok, name="x")
    pos = t("i32", n_tok, name="pos")
    rows = t("i64", n_tok, name="rows")
    mask = t("f16", n_kv, n_tok, name="mask")
    cache_k = t("f16", kv_heads * dh, 4096, name="cache_k")
    cache_v = t("f16", kv_heads * dh, 4096, name="cache_v")
    w = {
        "q": t("q4_0", d, heads * dh),
        "k": t("q8_0", d, kv_heads * dh),
        "v": t("f16", d, kv_heads * dh),
        "o": t("f32", d, d),
    }
    n_tok, n_kv = x.ne[1], mask.ne[0]
    h = g.mul(g.rms_norm(x, 1e-5), t("f32", d))
    rope = {"mode": "normal", "n_dims": dh}
    q = g.rope(g.reshape(g.mul_mat(w["q"], h), dh, heads, n_tok), pos, **rope)
    k = g.rope(g.reshape(g.mul_mat(w["k"], h), dh, kv_heads, n_tok), pos, **rope)
    v = g.mul_mat(w["v"], h)
    kc = g.set_rows(cache_k, g.reshape(k, kv_heads * dh, -1), rows)
    vc = g.set_rows(cache_v, v, rows)
    k = g.view_3d(kc, dh, kv_heads, n_kv, 2 * dh, kc.nb[1])
    v = g.view_3d(vc, dh, kv_heads, n_kv, 2 * dh, vc.nb[1])
    k, v, q = (g.permute(a, 0, 2, 1, 3) for a in (k, v, q))
    out = g.flash_attn_ext(q, k, v, mask, scale=0.25)
    out = g.reshape(out, d, n_tok)
    return g.add(g.mul_mat(w["o"], out), x).as_output("y")


def test_symbolic_sizes_give_the_sizes_of_a_build_with_numbers() -> None:
    symbolic = Graph(attention_block(T, KV))
    check_graph(symbolic)
    for values in ({"n_tokens": 1, "n_kv": 32}, {"n_tokens": 7, "n_kv": 256}):
        fixed = Graph(attention_block(values["n_tokens"], values["n_kv"]))
        for a, b in zip(symbolic.tensors, fixed.tensors, strict=True):
            assert a.op is b.op
            assert tuple(evaluate(n, values) for n in a.ne) == b.ne
            assert tuple(evaluate(n, values) for n in a.nb) == b.nb
            assert evaluate(a.view_offs, values) == b.view_offs


def test_reshape_compares_products_of_symbols() -> None:
    x = t("f32", 64, T)
    assert g.reshape(x, 16, 4, T.size).ne == (16, 4, T.size, 1)
    assert g.reshape(x, -1).ne[0] == 64 * T.size
    assert g.reshape(x, 16, -1).ne[1] == 4 * T.size
    assert g.reshape(g.concat(x, x, 1), 128, -1).ne[1] == T.size
    with pytest.raises(GraphError, match=r"not provably the 64\*n_tokens"):
        g.reshape(x, 64, 512)
    with pytest.raises(GraphError, match="cannot tell the -1"):
        g.reshape(x, 48, -1)


def test_views_must_fit_for_every_value() -> None:
    x = t("f32", 64, T)
    last = g.view_1d(x, 64, (T.size - 1) * x.nb[1])
    assert last.view_offs == 256 * T.size - 256
    with pytest.raises(GraphError, match="not provably inside"):
        g.view_1d(x, 64, T.size * x.nb[1])
    with pytest.raises(GraphError, match="not provably inside"):
        g.view_2d(x, 64, 2, x.nb[1])


def test_offsets_of_views_of_views_add_up() -> None:
    x = t("f32", 8, 6)
    inner = g.view_2d(g.view_2d(x, 8, 4, x.nb[1], 2 * x.nb[1]), 4, 2, x.nb[1], x.nb[1] + 16)
    assert inner.view_src is x
    assert inner.view_offs == 3 * 32 + 16


def test_permute_moves_axis_k_to_a_k() -> None:
    x = t("f32", 2, 3, 5, 7)
    y = g.permute(x, 3, 0, 2, 1)
    assert y.ne == (3, 7, 5, 2)
    assert y.nb == (x.nb[1], x.nb[3], x.nb[2], x.nb[0])
    assert g.transpose(x).is_transposed and not x.is_transposed
    assert g.cont(y).is_contiguous and not y.is_contiguous


def test_inplace_is_a_view_that_keeps_strides() -> None:
    base = t("f32", 8, 6)
    x = g.view_2d(base, 4, 6, base.nb[1])
    y = g.add(x, t("f32", 4), inplace=True)
    assert (y.view_src, y.nb) == (base, x.nb)
    assert g.add(x, t("f32", 4)).view_src is None


def test_set_rows_is_a_view_of_its_destination() -> None:
    dst, src, ids = t("q8_0", 64, 9), t("f32", 64, 3), t("i32", 3)
    node = g.set_rows(dst, src, ids)
    assert (node.view_src, node.src) == (dst, (src, ids, dst))


def test_numbers_are_kept_as_float32() -> None:
    assert g.scale(t("f32", 4), 0.1).params.s == float(np.float32(0.1))


def test_numpy_integers_become_plain_ones() -> None:
    x = t("f32", np.int64(4), np.int32(2))
    assert [type(n) for n in x.ne] == [int] * 4
    assert type(g.view_1d(x, np.int64(2), np.int64(4)).view_offs) is int


# ---- every op has a constructor, and refuses to take nonsense


def test_constructors_of_all_ops_are_exported() -> None:
    constructors = {op.constructor for op in OPS.values() if op.name != "NONE"}
    exported = {getattr(weft.graph, name) for name in weft.graph.__all__ if name.islower()}
    assert len(constructors) == len(OPS) - 1
    assert constructors <= exported


def test_an_op_is_declared_once_and_its_parameters_say_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft.graph.op.OPS", dict(OPS))

    @declares("THREE_OF_FOUR", inplace=True)
    def three(a: "Tensor", n: int, b: "Tensor", c: "Tensor", d: "Tensor | None" = None) -> "Tensor":
        return a

    op = find_op("THREE_OF_FOUR")
    assert (op.min_src, op.max_src, op.number, op.can_inplace) == (3, 4, len(OPS), True)
    assert op.constructor is three
    with pytest.raises(GraphError, match="THREE_OF_FOUR is declared twice"):
        declares("THREE_OF_FOUR")(three)
    assert "THREE_OF_FOUR" not in OPS


def test_all_is_complete() -> None:
    names = weft.graph.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(weft.graph, name) for name in names)


f, i = (lambda *ne: t("f32", *ne)), (lambda *ne: t("i32", *ne))

REFUSALS: list[tuple[str, Callable[[], Tensor], str]] = [
    ("add", lambda: g.add(f(4, 3), f(4, 2)), r"repeat.*f32 \(3, 4\).*f32 \(2, 4\)"),
    ("add symbolic", lambda: g.add(f(4, 6), f(4, T)), r"f32 \(n_tokens, 4\)"),
    ("add integers", lambda: g.add(f(4), i(4)), "b must be f32 or f16 or bf16"),
    ("add_id", lambda: g.add_id(f(4, 2, 3), f(4, 8), i(3, 3)), "ids must be"),
    ("add_cast", lambda: g.add_cast(f(4), f(4), "f32"), "needs no cast"),
    ("scale", lambda: g.scale(g.permute(f(4, 3, 2), 0, 2, 1, 3), 2.0), "gaps"),
    ("clamp", lambda: g.clamp(f(4), 2, 1), "wrong way round"),
    ("silu", lambda: g.silu(g.transpose(f(4, 3))), r"contiguous; use cont\(\)"),
    ("unary", lambda: g.unary("XIELU", f(4)), r"use xielu\(\)"),
    ("glu odd", lambda: g.swiglu(f(7)), "even length"),
    ("glu types", lambda: g.swiglu(f(8), t("f16", 8)), "one type"),
    ("glu shapes", lambda: g.swiglu(f(8), f(8, 2)), "one shape"),
    ("argmax", lambda: g.argmax(f(4, 3, 2)), "must be a matrix"),
    ("top_k", lambda: g.top_k(f(4), 5), "k = 5"),
    ("arange", lambda: g.arange(3, 3), "start < stop"),
    ("tri", lambda: g.tri(f(4, 3), 0), "square"),
    ("reshape", lambda: g.reshape(f(4, 3), 5, 2), "not provably the 12"),
    ("reshape gaps", lambda: g.reshape(g.transpose(f(4, 3)), 12), "must be contiguous"),
    ("reshape two", lambda: g.reshape(f(4, 3), -1, -1), "only one size"),
    ("reshape blocks", lambda: g.reshape(t("q4_0", 64, 3), 48, 4), "whole blocks"),
    ("reshape five", lambda: g.reshape(f(4), 1, 1, 1, 1, 4), "at most 4"),
    ("view type", lambda: g.view_1d(f(4), 2, 3), "whole elements"),
    ("view negative", lambda: g.view_1d(f(4), 2, -4), "cannot be negative"),
    ("view float", lambda: g.view_1d(f(4), 2.0), "must be an integer"),  # type: ignore[arg-type]
    ("permute", lambda: g.permute(f(4), 0, 0, 1, 2), "axes"),
    ("permute blocks", lambda: g.permute(t("q4_0", 32, 2), 1, 0, 2, 3), "cannot be split"),
    ("transpose blocks", lambda: g.transpose(t("q4_0", 32, 2)), "cannot be split"),
    ("cpy", lambda: g.cpy(f(4), f(5)), "not provably the 5"),
    ("cast", lambda: g.cast(f(33), "q8_0"), "must be whole blocks"),
    ("quantize", lambda: g.quantize(f(64), "q4_0"), "no dot product"),
    ("acc", lambda: g.acc(f(4, 4), f(4, 4), 16, 64, 64, 4), "leaves a"),
    ("acc symbolic", lambda: g.acc(f(4, T), f(4), 16, 16 * T.size, 64, 0), "must be a number"),
    ("concat", lambda: g.concat(f(4, 3), f(4, 2), 0), "may differ in dimension 0"),
    ("concat dim", lambda: g.concat(f(4), f(4), 4), "dimension 4"),
    ("repeat", lambda: g.repeat(f(4, 3), (8, 4)), "does not tile"),
    ("get_rows", lambda: g.get_rows(f(4, 3), f(2)), "ids must be i32"),
    ("get_rows batch", lambda: g.get_rows(f(4, 3, 2), i(2)), "ids must be"),
    ("set_rows", lambda: g.set_rows(f(4, 9), f(5, 3), i(3)), "one length"),
    ("set_rows ids", lambda: g.set_rows(f(4, 9), f(4, 3), i(2)), "ids must be"),
    ("roll", lambda: g.roll(f(4), (4,)), "below the sizes"),
    ("pad", lambda: g.pad(f(4), (-1,), (0,)), "negative"),
    ("pad_reflect", lambda: g.pad_reflect_1d(f(4), 4, 0), "below the row length"),
    ("upscale", lambda: g.upscale(f(4), (8,), "nearest", antialias=True), "antialias"),
    ("norm", lambda: g.norm(f(4), -1.0), "negative"),
    ("rms_norm", lambda: g.rms_norm(g.transpose(f(4, 3)), 1e-5), "contiguous"),
    ("norm type", lambda: g.norm(t("f16", 4), 1e-5), "must be f32"),
    ("mul_mat", lambda: g.mul_mat(f(4, 3), f(5, 2)), r"one length.*f32 \(3, 4\).*f32 \(2, 5\)"),
    ("mul_mat batch", lambda: g.mul_mat(f(4, 3, 2), f(4, 2, 3)), "must divide"),
    ("mul_mat rows", lambda: g.mul_mat(g.transpose(f(4, 3)), f(3, 2)), "contiguous"),
    ("mul_mat type", lambda: g.mul_mat(f(4, 3), i(4, 2)), "x must be"),
    ("mul_mat_id", lambda: g.mul_mat_id(f(4, 3, 8), f(4, 1, 2), i(2, 3)), "row for each token"),
    ("mul_mat_id n", lambda: g.mul_mat_id(f(4, 3, 8), f(4, 2, 2), i(3, 2)), "must divide"),
    ("out_prod", lambda: g.out_prod(f(4, 3), f(4, 2)), "same number of rows"),
    ("solve_tri", lambda: g.solve_tri(f(4, 4), f(2, 4), uni=True), "only left, lower"),
    ("soft_max mask", lambda: g.soft_max(f(8, 4), f(8, 3)), "mask must cover"),
    ("soft_max bias", lambda: g.soft_max(f(8, 4), max_bias=8.0), "needs a mask"),
    ("soft_max sinks", lambda: g.soft_max(f(8, 4, 2), None, f(3)), "each head"),
    ("soft_max rows", lambda: g.soft_max(f(8, T), f(8, 4)), "mask must cover"),
    (
        "flash heads",
        lambda: g.flash_attn_ext(f(8, 1, 3), t("f16", 8, 5, 2), t("f16", 8, 5, 2), scale=1.0),
        "must divide",
    ),
    (
        "flash kv",
        lambda: g.flash_attn_ext(f(8, 1, 2), t("f16", 8, 5, 2), t("f16", 8, 6, 2), scale=1.0),
        "k and v",
    ),
    ("rope pos", lambda: g.rope(f(8, 2, 3), i(2), mode="neox", n_dims=8), "each token"),
    ("rope planes", lambda: g.rope(f(8, 2, 3), i(3), mode="mrope", n_dims=8), "4 number"),
    ("rope dims", lambda: g.rope(f(8, 2, 3), i(3), mode="normal", n_dims=10), "n_dims = 10"),
    ("rope odd", lambda: g.rope(f(8, 2, 3), i(3), mode="normal", n_dims=3), "n_dims = 3"),
    ("conv", lambda: g.conv_2d(f(3, 3, 2, 4), f(8, 8, 3)), "channels"),
    ("conv small", lambda: g.conv_2d(f(9, 3, 2, 4), f(8, 8, 2)), "larger than the padded"),
    ("conv stride", lambda: g.conv_2d(f(3, 3, 2, 4), f(8, 8, 2), (0, 1)), "stride 0"),
    ("conv pair", lambda: g.conv_2d(f(3, 3, 2, 4), f(8, 8, 2), (1,)), "must be"),
    ("pool", lambda: g.pool_1d(f(4), "max", 5, 1), "larger"),
    ("win_unpart", lambda: g.win_unpart(f(6, 5, 5, 3), 9, 7, 5), "not the windows"),
    ("ssm_conv", lambda: g.ssm_conv(f(7, 8, 2), f(3, 9)), "c must be"),
    ("wkv", lambda: g.gated_linear_attn(*[f(4, 2, 3)] * 4, f(31), scale=1.0), "state must be"),
    ("delta", lambda: g.gated_delta_net(*[f(4, 2, 3)] * 5, f(4, 4, 2)), "beta must be"),
    ("leaf", lambda: g.leaf("q4_0", [33]), "multiple of the 32-element blocks"),
    ("leaf negative", lambda: g.leaf("f32", [-1]), "cannot be negative"),
    ("input", lambda: g.input("", [4]), "needs a name"),
    ("constant", lambda: g.constant(np.zeros(33, np.uint8), "w", "q4_0"), "not whole"),
    ("constant type", lambda: g.constant(np.zeros(4, np.int8), "w", "f32"), "stored as"),
]


@pytest.mark.parametrize(("build", "match"), [pytest.param(b, m, id=n) for n, b, m in REFUSALS])
def test_refusal(build: Callable[[], Tensor], match: str) -> None:
    with pytest.raises(GraphError, match=match):
        build()


def test_unknown_names_of_enumerations_are_graph_errors() -> None:
    x = t("f32", 8, 2, 3)
    pos = t("i32", 3)
    for build in (
        lambda: g.unary("SOFTMAX", x),
        lambda: g.glu("XGLU", x),
        lambda: g.rope(x, pos, mode="spiral", n_dims=8),
        lambda: g.rope(x, pos, mode=7, n_dims=8),
        lambda: g.argsort(x, "random"),
        lambda: g.upscale(x, (8,), "cubic"),
        lambda: g.pool_1d(x, "median", 2, 2),
        lambda: g.tri(t("f32", 4, 4), 9),
    ):
        with pytest.raises(GraphError, match="known"):
            build()


def test_every_constructor_with_sizes_says_their_order() -> None:
    """PyTorch's order where a graph meets the world, ggml's where an op has ggml's name."""
    for name in g.__all__:
        function = getattr(g, name)
        if inspect.isfunction(function):
            text, parameters = function.__doc__ or "", inspect.signature(function).parameters
            if "ne" in parameters and "ids" not in parameters:
                assert "innermost first" in text, name
            if "shape" in parameters:
                assert "outermost first" in text, name
    leaves = [g.input("x", (2, 3)), g.constant(np.zeros((2, 3), np.float32))]
    assert [(leaf.shape, leaf.ne) for leaf in leaves] == [((2, 3), (3, 2, 1, 1))] * 2
