"""Each rewrite: what it must match, what it must not, and that results stay as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft
from weft import _native
from weft import graph as g
from weft.backends import make_backend
from weft.backends.reference.backend import ReferenceBackend
from weft.errors import GraphError
from weft.flags import FLAGS
from weft.graph.rewrite import REWRITES, chosen_rewrites

Inputs = dict[str, Any]
RNG = np.random.default_rng(0)


TARGETS = [name for name, score in _native.targets() if score]
DEVICES = ["reference", *TARGETS]


class Fusing(ReferenceBackend):
    """The definition of every op, with all rewrites."""

    rewrites = tuple(REWRITES)


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def const(name: str, *shape: int) -> weft.Tensor:
    return weft.constant(f32(*shape), name)


def blocks(name: str, rows: int, n: int) -> weft.Tensor:
    return weft.constant(weft.quants.encode(f32(rows, n), "q8_0"), name, "q8_0")


def x(n: int = 64, rows: int = 5) -> weft.Tensor:
    return weft.input("x", (rows, n))


def ops(program: weft.Program) -> Counter[str]:
    return Counter(step.op.name for split in program.splits for step in split.steps)


def backend(device: str) -> weft.backends.Backend:
    """The reference with all rewrites, the cpu, or one of its targets."""
    if device == "reference":
        return Fusing()
    return make_backend("cpu", target=device if device in TARGETS else None)


def runs(
    make: Callable[[], weft.Graph], inputs: Inputs | None = None, device: str = "cpu"
) -> tuple[dict[str, Any], dict[str, Any], weft.Program]:
    """Results without and with rewrites, and the program with them."""
    results, program = [], None
    values = inputs or {"x": f32(5, 64)}
    for names in ([], None):
        program = weft.compile(make(), [backend(device)], rewrites=names)
        session = weft.Session(program)
        results.append(session.run(values))
    assert program is not None
    return results[0], results[1], program


def same(a: dict[str, Any], b: dict[str, Any], atol: float = 0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=atol)


def fused_by(program: weft.Program) -> Counter[str]:
    assert program.plan is not None
    return Counter(r.name for r in program.plan.schedule.rewritten)


# -- norm-scale, norm-scale-bias -------------------------------------------------------------------


@pytest.mark.parametrize("norm", [g.norm, g.rms_norm])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_norm_scale(norm: Any, bias: bool, device: str) -> None:
    w, b = const("w", 64), const("b", 64)

    def make() -> weft.Graph:
        y = g.mul(norm(x(), 1e-5), w)
        return weft.Graph((g.add(y, b) if bias else y).as_output("y"))

    before, after, program = runs(make, device=device)
    assert ops(program) == {"NORM_SCALE": 1}
    assert fused_by(program) == {"norm-scale": 1} | ({"norm-scale-bias": 1} if bias else {})
    # the reference rounds once instead of three times, the cpu as often as before
    same(before, after, 1e-6 if device == "reference" else 0)


def test_no_norm_scale() -> None:
    def used_elsewhere() -> weft.Graph:
        n = g.rms_norm(x(), 1e-5)
        return weft.Graph(g.add(g.mul(n, const("w", 64)), n).as_output("y"))

    def is_output() -> weft.Graph:
        n = g.rms_norm(x(), 1e-5).as_output("n")
        return weft.Graph(g.mul(n, const("w", 64)).as_output("y"), n)

    def viewed() -> weft.Graph:
        n = g.rms_norm(x(), 1e-5)
        part = g.view_1d(n, 64, 0)
        return weft.Graph(g.mul(n, const("w", 64)).as_output("y"), g.sqr(part).as_output("z"))

    def other_axis() -> weft.Graph:
        n = g.rms_norm(x(), 1e-5)
        return weft.Graph(g.mul(n, const("w", 5, 1)).as_output("y"))

    def short_row() -> weft.Graph:
        n = g.rms_norm(x(), 1e-5)
        return weft.Graph(g.mul(n, const("w", 32)).as_output("y"))

    def not_the_first() -> weft.Graph:
        n = g.rms_norm(g.reshape(x(), 320), 1e-5)
        return weft.Graph(g.mul(const("w", 5, 320), n).as_output("y"))

    for make in (used_elsewhere, is_output, viewed, other_axis, short_row, not_the_first):
        RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
        state = RNG.bit_generator.state

        def again(make: Callable[[], weft.Graph] = make, state: Any = state) -> weft.Graph:
            RNG.bit_generator.state = state
            return make()

        before, after, program = runs(again, {"x": np.ones((5, 64), np.float32)})
        assert fused_by(program) == {}, make.__name__
        same(before, after)


def test_norm_scale_without_its_bias() -> None:
    w, wide = const("w", 64), const("wide", 5, 64)
    before, after, program = runs(
        lambda: weft.Graph(g.add(g.mul(g.norm(x(), 1e-5), w), wide).as_output("y"))
    )
    assert ops(program) == {"NORM_SCALE": 1, "ADD": 1}
    same(before, after)


# -- add-norm --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [g.norm, g.rms_norm])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("as_blocks", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_add_norm(norm: Any, bias: bool, as_blocks: bool, device: str) -> None:
    w, b, product = const("w", 64), const("b", 64), blocks("p", 32, 64)

    def make() -> weft.Graph:
        y = g.mul(norm(g.add(x(), weft.input("h", (5, 64))), 1e-5), w)
        y = g.add(y, b) if bias else y
        return weft.Graph((g.mul_mat(product, y) if as_blocks else y).as_output("y"))

    before, after, program = runs(make, {"x": f32(5, 64), "h": f32(5, 64)}, device)
    assert fused_by(program)["add-norm"] == 1
    assert ops(program) == {"NORM_SCALE": 1} | ({"MUL_MAT": 1} if as_blocks else {})
    # the reference rounds once instead of four times
    same(before, after, 1e-5 if device == "reference" else 0)


def test_no_add_norm() -> None:
    w = const("w", 64)

    def kept() -> weft.Graph:
        h = x()
        total = g.add(h, h)
        return weft.Graph(g.add(total, g.mul(g.rms_norm(total, 1e-5), w)).as_output("y"))

    def is_output() -> weft.Graph:
        h = x()
        total = g.add(h, h).as_output("t")
        return weft.Graph(g.mul(g.rms_norm(total, 1e-5), w).as_output("y"), total)

    def a_row_for_all() -> weft.Graph:
        return weft.Graph(g.mul(g.rms_norm(g.add(x(), w), 1e-5), w).as_output("y"))

    def no_weight() -> weft.Graph:
        h = x()
        return weft.Graph(g.rms_norm(g.add(h, h), 1e-5).as_output("y"))

    for make in (kept, is_output, a_row_for_all, no_weight):
        before, after, program = runs(make)
        assert fused_by(program)["add-norm"] == 0, make.__name__
        assert ops(program)["ADD"] >= 1
        same(before, after)


# -- matmul-bias -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_0", "q4_K"])
@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("device", DEVICES)
def test_matmul_bias(dtype: str, tokens: int, device: str) -> None:
    w = weft.constant(weft.quants.to_storage(f32(90, 256), dtype), "w", dtype)
    b = const("b", 90)

    def make() -> weft.Graph:
        return weft.Graph(g.add(g.mul_mat(w, x(256, tokens)), b).as_output("y"))

    before, after, program = runs(make, {"x": f32(tokens, 256)}, device)
    assert fused_by(program) == {"matmul-bias": 1} and ops(program)["ADD"] == 0
    same(before, after, 1e-5 if device == "reference" else 0)


@pytest.mark.parametrize("device", DEVICES)
def test_matmul_bias_of_heads(device: str) -> None:
    """Several matrices, columns in runs."""
    w, b = const("w", 3, 40, 64), const("b", 40)

    def make() -> weft.Graph:
        return weft.Graph(g.add(g.mul_mat(w, weft.input("x", (6, 9, 64))), b).as_output("y"))

    before, after, program = runs(make, {"x": f32(6, 9, 64)}, device)
    assert ops(program) == {"MUL_MAT": 1}
    same(before, after, 1e-5 if device == "reference" else 0)


def test_no_matmul_bias() -> None:
    w, row = const("w", 64, 64), const("b", 64)

    def wide() -> weft.Graph:
        h = x()
        return weft.Graph(g.add(g.mul_mat(w, h), h).as_output("y"))

    def kept() -> weft.Graph:
        y = g.mul_mat(w, x())
        return weft.Graph(g.mul(g.add(y, row), y).as_output("y"))

    def is_output() -> weft.Graph:
        y = g.mul_mat(w, x()).as_output("p")
        return weft.Graph(g.add(y, row).as_output("y"), y)

    def in_place() -> weft.Graph:
        return weft.Graph(g.add(g.mul_mat(w, x()), row, inplace=True).as_output("y"))

    def a_bias_per_token() -> weft.Graph:
        return weft.Graph(g.add(g.mul_mat(w, x()), const("t", 5, 1)).as_output("y"))

    for make in (wide, kept, is_output, in_place, a_bias_per_token):
        state = RNG.bit_generator.state

        def again(make: Callable[[], weft.Graph] = make, state: Any = state) -> weft.Graph:
            RNG.bit_generator.state = state
            return make()

        before, after, program = runs(again, {"x": np.ones((5, 64), np.float32)})
        assert fused_by(program) == {}, make.__name__
        same(before, after)


def test_one_bias_per_product() -> None:
    """The second row stays an ADD."""
    w, row = const("w", 64, 64), const("b", 64)

    def make() -> weft.Graph:
        return weft.Graph(g.add(g.add(g.mul_mat(w, x()), row), row).as_output("y"))

    before, after, program = runs(make)
    assert ops(program) == {"MUL_MAT": 1, "ADD": 1}
    same(before, after)


# -- matmul-activation -----------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[weft.Tensor], weft.Tensor]] = {
    **{
        name: partial(g.unary, name)
        for name in ("relu", "tanh", "sigmoid", "silu", "gelu", "gelu_quick", "gelu_erf",
                     "hardswish", "hardsigmoid")
    },
    "clamp": lambda t: g.pointwise("clamp", t, -3.0, 6.0),
    "relu of PyTorch": lambda t: g.pointwise("relu", t),
    "gelu of PyTorch": lambda t: g.pointwise("gelu", t),
    "gelu_tanh of PyTorch": lambda t: g.pointwise("gelu_tanh", t),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_matmul_activation(name: str, device: str) -> None:
    """The same bits, NaNs and infinities too."""
    w, b = const("w", 90, 64), const("b", 90)
    values = f32(9, 64)
    values[0, 0], values[1, 0], values[2, 0] = np.nan, np.inf, -np.inf

    def make() -> weft.Graph:
        y = g.add(g.mul_mat(w, x(64, 9)), b)
        return weft.Graph(ACTIVATIONS[name](y).as_output("y"))

    before, after, program = runs(make, {"x": values}, device)
    assert fused_by(program) == {"matmul-bias": 1, "matmul-activation": 1}
    assert ops(program) == {"MUL_MAT": 1}
    same(before, after, 1e-5 if device == "reference" else 0)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q4_0", "q4_K"])
@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("device", TARGETS)
def test_matmul_activation_of_formats(dtype: str, tokens: int, device: str) -> None:
    w = weft.constant(weft.quants.to_storage(f32(96, 256), dtype), "w", dtype)

    def make() -> weft.Graph:
        return weft.Graph(g.unary("silu", g.mul_mat(w, x(256, tokens))).as_output("y"))

    before, after, program = runs(make, {"x": f32(tokens, 256)}, device)
    assert fused_by(program) == {"matmul-activation": 1}
    same(before, after)


@pytest.mark.parametrize("device", DEVICES)
def test_matmul_activation_of_heads(device: str) -> None:
    """Several matrices: results of one are not evenly apart."""
    w = const("w", 3, 40, 64)

    def make() -> weft.Graph:
        y = g.mul_mat(w, weft.input("x", (6, 9, 64)))
        return weft.Graph(g.unary("relu", y).as_output("y"))

    before, after, program = runs(make, {"x": f32(6, 9, 64)}, device)
    assert ops(program) == {"MUL_MAT": 1}
    same(before, after, 1e-5 if device == "reference" else 0)


def test_no_matmul_activation() -> None:
    w, row = const("w", 64, 64), const("b", 64)

    def kept() -> weft.Graph:
        y = g.mul_mat(w, x())
        return weft.Graph(g.mul(g.unary("relu", y), y).as_output("y"))

    def is_output() -> weft.Graph:
        y = g.mul_mat(w, x()).as_output("p")
        return weft.Graph(g.unary("relu", y).as_output("y"), y)

    def another_function() -> weft.Graph:
        return weft.Graph(g.unary("neg", g.mul_mat(w, x())).as_output("y"))

    def a_function_in_between() -> weft.Graph:
        return weft.Graph(g.unary("relu", g.unary("neg", g.mul_mat(w, x()))).as_output("y"))

    def in_place() -> weft.Graph:
        return weft.Graph(g.unary("relu", g.mul_mat(w, x()), inplace=True).as_output("y"))

    for make in (kept, is_output, another_function, a_function_in_between, in_place):
        before, after, program = runs(make)
        assert fused_by(program) == {}, make.__name__
        same(before, after)

    def twice() -> weft.Graph:
        y = g.unary("relu", g.mul_mat(w, x()))
        return weft.Graph(g.unary("tanh", g.add(y, row)).as_output("y"))

    before, after, program = runs(twice)
    assert fused_by(program) == {"matmul-activation": 1}
    assert ops(program) == {"MUL_MAT": 1, "ADD": 1, "UNARY": 1}
    same(before, after)


# -- norm-quantize, glu-quantize -------------------------------------------------------------------


@pytest.mark.parametrize("device", TARGETS)
def test_norm_quantize(device: str) -> None:
    w, q, k = const("w", 64), blocks("q", 32, 64), blocks("k", 32, 64)

    def make() -> weft.Graph:
        n = g.mul(g.rms_norm(x(), 1e-5), w)
        return weft.Graph(g.mul_mat(q, n).as_output("y"), g.mul_mat(k, n).as_output("z"))

    before, after, program = runs(make, device=device)
    assert ops(program) == {"NORM_SCALE": 1, "MUL_MAT": 2}
    same(before, after)


def test_no_norm_quantize_where_floats_are_read_too() -> None:
    w, q = const("w", 64), blocks("q", 64, 64)

    def make() -> weft.Graph:
        n = g.mul(g.rms_norm(x(), 1e-5), w)
        return weft.Graph(g.add(g.mul_mat(q, n), n).as_output("y"))

    before, after, program = runs(make)
    assert ops(program) == {"NORM_SCALE": 1, "QUANTIZE": 1, "MUL_MAT": 1, "ADD": 1}
    same(before, after)


GLUS = [g.reglu, g.geglu, g.swiglu, g.geglu_erf, g.geglu_quick]


@pytest.mark.parametrize("glu", GLUS)
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("device", TARGETS)
def test_glu_quantize(glu: Any, halves: bool, device: str) -> None:
    gate, up = (const(name, 512, 64) for name in ("gate", "up"))
    down = blocks("down", 64, 256 if halves else 512)

    def make() -> weft.Graph:
        a = g.mul_mat(gate, x())
        h = glu(a) if halves else glu(a, g.mul_mat(up, x_again(a)))
        return weft.Graph(g.mul_mat(down, h).as_output("y"))

    def x_again(a: weft.Tensor) -> weft.Tensor:
        source = a.src[1]
        assert source is not None
        return source

    before, after, program = runs(make, device=device)
    assert ops(program)["GLU_QUANTIZE"] == 1 and ops(program)["GLU"] == 0
    same(before, after)


def test_gate_and_up_share_a_stage_and_their_activations() -> None:
    gate, up, down = blocks("gate", 96, 64), blocks("up", 96, 64), blocks("down", 64, 96)
    w = const("w", 64)

    def make() -> weft.Graph:
        n = g.mul(g.rms_norm(x(), 1e-5), w)
        h = g.swiglu(g.mul_mat(gate, n), g.mul_mat(up, n))
        return weft.Graph(g.mul_mat(down, h).as_output("y"))

    before, after, program = runs(make)
    (split,) = program.splits
    stages = [[step.op.name for step in split.steps[a:b]] for a, b in split.stages]
    assert stages == [["NORM_SCALE"], ["MUL_MAT", "MUL_MAT"], ["GLU_QUANTIZE"], ["MUL_MAT"]]
    same(before, after)


@pytest.mark.parametrize("tokens", [1, 7, 64])
@pytest.mark.parametrize("device", TARGETS)
def test_fused_steps_are_chained(device: str, tokens: int) -> None:
    """A kept sum and its norm, and what comes before a gate, need no barrier between."""
    p, gate, up = blocks("p", 256, 256), blocks("g", 256, 256), blocks("u", 256, 256)
    down, w = blocks("d", 256, 256), const("w", 256)

    def make() -> weft.Graph:
        h = g.add(g.mul_mat(p, x(256, tokens)), x_input)
        n = g.mul(g.rms_norm(h, 1e-5), w)
        gated = g.swiglu(g.scale(g.mul_mat(gate, n), 0.5), g.mul_mat(up, n))
        return weft.Graph(g.add(g.mul_mat(down, gated), h).as_output("y"))

    x_input = const("r", tokens, 256)
    inputs = {"x": f32(tokens, 256)}
    before, after, _program = runs(make, inputs, device)
    same(before, after)
    session = weft.Session(weft.compile(make(), [make_backend("cpu", target=device, n_threads=2)]))
    session.run(inputs)
    if tokens == 64:  # enough rows for two threads: ADD+NORM_SCALE, SCALE+GLU_QUANTIZE
        # QUANTIZE | MUL_MAT | ADD+NORM | MUL_MAT x 2 | SCALE+GLU | MUL_MAT | ADD, and three more
        # where columns are packed first
        assert session.barriers in (6, 9)


def test_no_glu_quantize_of_an_output() -> None:
    down = blocks("down", 64, 64)

    def make() -> weft.Graph:
        h = g.swiglu(x(128)).as_output("h")
        return weft.Graph(g.mul_mat(down, h).as_output("y"), h)

    before, after, program = runs(make, {"x": f32(5, 128)})
    assert fused_by(program) == {}
    same(before, after)


# -- rope-cache ------------------------------------------------------------------------------------


def rope_graph(
    dtype: str, *, mode: str = "neox", tokens: int = 3, factors: bool = False, keep: bool = False
) -> Callable[[], weft.Graph]:
    freq = weft.constant(np.linspace(1, 2, 16, dtype=np.float32), "freq") if factors else None

    def make() -> weft.Graph:
        k = weft.input("k", (tokens, 2, 32))
        pos = weft.input("pos", (tokens,), "i32")
        cells = weft.input("cells", (tokens,), "i64")
        cache = weft.input("cache", (7, 64), dtype)
        r = g.rope(k, pos, freq, mode=mode, n_dims=24 if freq is None else 32)
        written = g.set_rows(cache, g.reshape(r, 64, tokens), cells)
        outputs = [g.cast(written, "f32").as_output("y")]
        if keep:
            outputs.append(g.sqr(r).as_output("r"))
        return weft.Graph(*outputs)

    return make


def rope_inputs(dtype: str) -> Inputs:
    stored = {"f32": np.float32, "f16": np.float16}.get(dtype)
    zeros = np.zeros((7, 64), np.float32)
    return {
        "k": f32(3, 2, 32),
        "pos": np.array([5, 0, 900], np.int32),
        "cells": np.array([6, 0, 3]),
        "cache": zeros.astype(stored) if stored else weft.quants.encode(zeros, dtype),
    }


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("device", DEVICES)
def test_rope_cache(dtype: str, mode: str, device: str) -> None:
    make = rope_graph(dtype, mode=mode, factors=mode == "neox")
    before, after, program = runs(make, rope_inputs(dtype), device)
    assert ops(program)["ROPE_SET_ROWS"] == 1 and ops(program)["SET_ROWS"] == 0
    same(before, after)
    assert (after["y"][[1, 2, 4, 5]] == 0).all() and (after["y"][[0, 3, 6]] != 0).any(1).all()


def test_no_rope_cache_of_keys_read_elsewhere() -> None:
    before, after, program = runs(rope_graph("f16", keep=True), rope_inputs("f16"))
    assert fused_by(program) == {}
    same(before, after)


def test_no_rope_cache_of_one_head_per_row() -> None:
    def make() -> weft.Graph:
        k = weft.input("k", (3, 2, 32))
        r = g.rope(k, weft.input("pos", (3,), "i32"), mode="neox", n_dims=32)
        cache = weft.input("cache", (7, 32))
        rows = g.set_rows(cache, g.reshape(r, 32, 6), weft.input("cells", (6,), "i64"))
        return weft.Graph(g.sqr(rows).as_output("y"))

    cache, cells = np.zeros((7, 32), np.float32), np.arange(6)
    inputs = rope_inputs("f32") | {"cache": cache, "cells": cells}
    before, after, program = runs(make, inputs)
    assert fused_by(program) == {}
    same(before, after)


# -- softmax-mask-scale ----------------------------------------------------------------------------


def scores_graph(
    *, scale: bool = True, mask: tuple[int, ...] | None = (5, 64), b: float = 0, keep: bool = False
) -> Callable[[], weft.Graph]:
    m = None if mask is None else const("m", *mask)

    def make() -> weft.Graph:
        s = weft.input("x", (3, 5, 64))
        s = g.scale(s, 0.25, b) if scale else s
        middle = s if m is None else g.add(s, m)
        outputs = [g.soft_max(middle).as_output("y")]
        if keep:
            outputs.append(g.sqr(middle).as_output("z"))
        return weft.Graph(*outputs)

    return make


SCORES = {"x": f32(3, 5, 64)}


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": False}, {"mask": None}, {"mask": (3, 5, 64)}],
    ids=["scale and mask", "mask", "scale", "a mask per head"],
)
@pytest.mark.parametrize("device", DEVICES)
def test_softmax(options: dict[str, Any], device: str) -> None:
    before, after, program = runs(scores_graph(**options), SCORES, device)
    assert ops(program) == {"SOFT_MAX": 1}
    same(before, after, 1e-6)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"mask": (1, 64)}, {"SCALE": 1, "ADD": 1}),  # repeated over rows
        ({"b": 1.0}, {"SCALE": 1}),
        ({"keep": True}, {"SCALE": 1, "ADD": 1, "MAP": 1}),
    ],
)
def test_no_softmax(options: dict[str, Any], left: dict[str, int]) -> None:
    before, after, program = runs(scores_graph(**options), SCORES)
    assert ops(program) == {"SOFT_MAX": 1} | left
    same(before, after, 1e-6)


# -- switches --------------------------------------------------------------------------------------


def norm_graph() -> weft.Graph:
    return weft.Graph(g.mul(g.rms_norm(x(), 1e-5), const("w", 64)).as_output("y"))


def test_rewrites_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_rewrites() == set(REWRITES)
    assert ops(weft.compile(norm_graph(), rewrites=["rope-cache"])) == {"RMS_NORM": 1, "MUL": 1}
    assert ops(weft.compile(norm_graph(), rewrites=["norm-scale"])) == {"NORM_SCALE": 1}
    with pytest.raises(GraphError, match="no rewrite called 'norm'; there are softmax-mask-scale"):
        weft.compile(norm_graph(), rewrites=["norm"])
    for text, expected in {
        "none": set(),
        "all": set(REWRITES),
        "rope-cache": {"rope-cache"},
        "-rope-cache,-norm-scale": set(REWRITES) - {"rope-cache", "norm-scale"},
        "norm-scale rope-cache": {"rope-cache", "norm-scale"},
    }.items():
        monkeypatch.setattr("weft.graph.rewrite.FLAGS", type(FLAGS)(rewrites=text))
        assert chosen_rewrites() == expected


def test_what_was_fused_is_explained() -> None:
    plan = weft.compile(norm_graph()).plan
    assert plan is not None
    assert "fused: norm-scale 1\n" in plan.explain()
    totals = plan.to_json()["totals"]
    assert totals["nodes"] - totals["views"] == totals["ops"] + 1
    assert f"{totals['ops']} op" in plan.explain() and "1 is joined with these" in plan.explain()
    assert plan.to_json()["rewrites"] == {"counts": {"norm-scale": 1}, "removed_nodes": 1}


def test_what_another_device_reads_stays() -> None:
    graph = norm_graph()
    pins = {node: i for i, node in enumerate(graph.nodes)}
    program = weft.compile(graph, [Fusing(), "cpu"], assign=pins)
    assert len(program.splits) == 2
    assert ops(program) == {"RMS_NORM": 1, "MUL": 1}


def test_what_a_device_refuses_is_not_fused() -> None:
    class Plain(Fusing):
        def supports_op(self, node: weft.Tensor) -> Any:
            if node.op.name == "NORM_SCALE":
                return weft.backends.Support(False, "not here")
            return super().supports_op(node)

    assert ops(weft.compile(norm_graph(), [Plain()])) == {"RMS_NORM": 1, "MUL": 1}


# -- constructors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_fused_ops_by_hand(device: str) -> None:
    weight, bias, values = f32(64), f32(64), f32(5, 64)
    w, b = weft.constant(weight, "w"), weft.constant(bias, "b")
    n = g.norm_scale(x(), w, b, eps=1e-5, centred=True)
    y = g.norm_scale(n, w, eps=1e-5)
    got = weft.Session(weft.compile(weft.Graph(y.as_output("y")), [backend(device)])).run(
        {"x": values}
    )
    h = values.astype(np.float64)
    h = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5) * weight + bias
    h = h / np.sqrt(np.square(h).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(got["y"], h, rtol=1e-5, atol=1e-5)


def test_fused_ops_refuse_in_sentences() -> None:
    w = const("w", 64)
    with pytest.raises(GraphError, match="one row, as long as those of x"):
        g.norm_scale(x(), const("v", 32), eps=0)
    with pytest.raises(GraphError, match="addend must have the shape of x"):
        g.norm_scale(x(), w, None, w, eps=0)
    with pytest.raises(GraphError, match="bias must be one row"):
        g.mul_mat(const("m", 32, 64), x(), w)
    with pytest.raises(GraphError, match="q8_K"):
        g.norm_scale(x(), w, eps=0, dtype="q8_K")
    with pytest.raises(GraphError, match=r"result of glu\(\)"):
        g.glu_quantize(w, "q8_0")
    with pytest.raises(GraphError, match="not q4_0"):
        g.glu_quantize(g.swiglu(x(128)), "q4_0")
    with pytest.raises(GraphError, match=r"result of rope\(\)"):
        g.rope_set_rows(w, w, w)
