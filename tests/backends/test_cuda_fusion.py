"""What CUDA computes at once, run by the shim: bytes that norms and gates leave for products, sums
in products, launches that are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.cuda_kernels import call, nmse, put, run, view, weights_in_planes
from tests.cuda_shim import compiler
from weft import graph as g
from weft import quants
from weft.backends import make_backend
from weft.backends.cuda.ops import KERNELS, OWN
from weft.backends.cuda.ops.bytes import quantized
from weft.backends.kernels.executable import KernelExecutable
from weft.backends.kernels.launch import Launch, Scratch, View
from weft.compiler import compile
from weft.dtype import find_dtype
from weft.execute import Session
from weft.graph.ops import GluOp, GluParams, NormScaleParams, RopeMode

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")


def _zeros(*ne: int) -> View:
    return view(np.full(ne[::-1], np.nan, np.float32), "f32", ne)


def _bytes_of(launch: Launch) -> np.ndarray:
    """What a launch leaves in its scratch memory."""
    (to,) = (a for a in launch.args if isinstance(a, Scratch))
    kept = np.full(to.nbytes, 0xFF, np.uint8)
    run([launch._replace(args=tuple(kept if a is to else a for a in launch.args))])
    return kept


@pytest.mark.parametrize(("n", "rows"), [(32, 1), (96, 3), (4160, 2)])
@pytest.mark.parametrize("centred", [False, True])
def test_norms_leave_bytes(n: int, rows: int, centred: bool) -> None:
    rng = np.random.default_rng(n)
    x, addend = rng.standard_normal((2, rows, n)).astype(np.float32)
    weight, bias = rng.standard_normal((2, n)).astype(np.float32)
    d, p = _zeros(n, rows), NormScaleParams(1e-5, centred)
    more = (put(bias), put(addend)) if centred else ()
    src = (put(x), put(weight), *more)
    assert OWN["NORM_SCALE"](call("NORM_SCALE", d, *src, params=p)) is None  # nobody reads bytes
    (launch,) = OWN["NORM_SCALE"](
        call("NORM_SCALE", d, *src, params=p)._replace(feeds=find_dtype("q4_0"))
    )
    got = _bytes_of(launch)
    value = (x + addend if centred else x).astype(np.float64)
    if centred:
        value = value - value.mean(1, keepdims=True)
    want = value / np.sqrt(np.square(value).mean(1, keepdims=True) + 1e-5) * weight
    assert nmse(d.buffer, want + bias if centred else want) < 1e-12
    np.testing.assert_array_equal(got, _bytes_of(quantized(d)[0]))


@pytest.mark.parametrize("op", GluOp)
@pytest.mark.parametrize("halves", [False, True])
def test_gates_leave_bytes(op: GluOp, halves: bool) -> None:
    rng = np.random.default_rng(3)
    x, gate = rng.standard_normal((2, 5, 96)).astype(np.float32)
    both = np.concatenate([x, gate], 1)
    p, d = GluParams(op, alpha=1.7, limit=1.5), _zeros(96, 5)
    src = (put(both),) if halves else (put(x), put(gate))
    (launch,) = OWN["GLU"](call("GLU", d, *src, params=p)._replace(feeds=find_dtype("q4_0")))
    got = _bytes_of(launch)
    assert np.isfinite(d.buffer).all() and d.buffer.any()
    np.testing.assert_array_equal(got, _bytes_of(quantized(d)[0]))


@pytest.mark.parametrize("columns", [1, 2, 7])
@pytest.mark.parametrize("swapped", [False, True])
def test_sums_in_products(columns: int, swapped: bool) -> None:
    """The product and the sum are both stored; the sum may lie where the product does."""
    rng = np.random.default_rng(4)
    w, _ = weights_in_planes("q6_K", (512, 23), rng)
    x, other = put(rng.standard_normal((columns, 512))), put(rng.standard_normal((columns, 23)))
    want = _zeros(23, columns)
    run(OWN["MUL_MAT"](call("MUL_MAT", want, w, x)))
    for apart in (True, False):
        d = _zeros(23, columns)
        total = _zeros(23, columns) if apart else d
        src = (other, d) if swapped else (d, other)
        join = KERNELS.joined["MUL_MAT", "ADD"]
        run(join(call("MUL_MAT", d, w, x), call("ADD", total, *src)))
        np.testing.assert_array_equal(total.buffer, want.buffer + other.buffer)
        if apart:
            np.testing.assert_array_equal(d.buffer, want.buffer)


def test_other_sums_are_left_alone() -> None:
    rng = np.random.default_rng(5)
    join = KERNELS.joined["MUL_MAT", "ADD"]
    w, _ = weights_in_planes("q4_0", (64, 8), rng)
    d, x = _zeros(8, 2), _zeros(64, 2)
    product = call("MUL_MAT", d, w, x)
    assert join(product, call("ADD", _zeros(8, 2), d, _zeros(8, 1))) is None  # one row for all
    assert join(product, call("ADD", _zeros(8, 2), _zeros(8, 2), _zeros(8, 2))) is None
    assert join(product, call("ADD", _zeros(8, 2), d, _zeros(8, 2))) is not None
    floats = call("MUL_MAT", d, _zeros(64, 8), x)
    assert join(floats, call("ADD", _zeros(8, 2), d, _zeros(8, 2))) is None


# ---- a layer -------------------------------------------------------------------------------------

N, INNER = 256, 512


def _layer() -> weft.Graph:
    rng = np.random.default_rng(6)

    def weights(rows: int, n: int) -> weft.Tensor:
        data = quants.encode(rng.standard_normal((rows, n)).astype(np.float32) / 16, "q8_0")
        return g.constant(data, f"w{rows}x{n}", "q8_0")

    def norm(x: weft.Tensor) -> weft.Tensor:
        weight = g.constant(rng.standard_normal(N).astype(np.float32), "norm")
        return g.mul(g.rms_norm(x, 1e-5), weight)

    x = weft.input("x", (weft.Sym("n", 1, 12), N))
    h = norm(x)
    q, k = g.mul_mat(weights(N, N), h), g.mul_mat(weights(N, N), h)
    y = g.add(g.mul_mat(weights(N, N), g.mul(q, g.silu(k))), x)
    h = norm(y)
    gated = g.swiglu(g.mul_mat(weights(INNER, N), h), g.mul_mat(weights(INNER, N), h))
    z = g.add(y, g.mul_mat(weights(N, INNER), gated))
    return weft.Graph(z.named("z").as_output("z"))


def _session(**options: Any) -> tuple[Session, KernelExecutable]:
    backend = make_backend("cuda:shim", **options)
    backend.kind = "CPU"  # type: ignore[misc]
    session = Session(compile(_layer(), [backend], repack=True))
    (executable,) = session.executables
    assert isinstance(executable, KernelExecutable)
    return session, executable


def _kernels(executable: KernelExecutable) -> list[str]:
    return [name for step in executable._steps for name in step.names]


def test_a_layer() -> None:
    """Bytes are made once for all products that read them, by the norm or the gate where there is
    one; residuals are added in products. Whatever was computed before, results stay."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((12, N)).astype(np.float32)
    session, executable = _session()
    plain, other = _session(own=False)
    want = plain.run({"x": x})["z"].copy()
    first = {}
    for n in (1, 3, 12, 9, 1, 2):
        got = session.run({"x": x[:n]})["z"].reshape(n, N)
        assert nmse(got, want.reshape(12, N)[:n]) < 5e-4
        few = n <= 8
        first.setdefault(few, got[:1].copy())
        np.testing.assert_array_equal(got[:1], first[few])
        kernels = _kernels(executable)
        assert len(kernels) == executable.n_launches
        if few:
            assert kernels == [
                "norm_bytes", "gemv", "gemv", "unary", "binary", "quantize", "gemv",
                "norm_bytes", "gemv", "gemv", "glu_bytes", "gemv",
            ]  # fmt: skip
        else:
            assert kernels.count("quantize") == 1 and kernels.count("binary") == 3
    assert len(_kernels(other)) == 13


@pytest.mark.parametrize("normed", [False, True])
def test_bytes_of_what_has_changed_are_made_again(normed: bool) -> None:
    """In its own memory, and with the same sizes, between two products that read it."""
    rng = np.random.default_rng(9)
    data = quants.encode(rng.standard_normal((N, N)).astype(np.float32), "q8_0")
    w, x = g.constant(data, "w", "q8_0"), weft.input("x", (3, N))
    weight = g.constant(np.ones(N, np.float32), "norm")
    h = g.mul(g.rms_norm(x, 1e-5), weight) if normed else g.scale(x, 1.0)
    first = g.mul_mat(w, h)
    changed = g.scale(h, -2.0, inplace=True)
    second = g.mul_mat(w, changed)
    backend = make_backend("cuda:shim")
    backend.kind = "CPU"  # type: ignore[misc]
    outputs = first.as_output("first"), second.as_output("second")
    session = Session(compile(weft.Graph(*outputs), [backend], repack=True))
    got = session.run({"x": rng.standard_normal((3, N)).astype(np.float32)})
    np.testing.assert_array_equal(got["second"], -2 * got["first"])
    (executable,) = session.executables
    maker = "norm_bytes" if normed else "unary"
    want = [maker, *(() if normed else ("quantize",)), "gemv", "unary", "quantize", "gemv"]
    assert _kernels(executable) == want  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("ids", ["i32", "i64"])
def test_keys_are_rotated_into_the_cache(dtype: str, ids: str) -> None:
    rng = np.random.default_rng(8)
    d, heads, tokens, cells = 48, 3, 5, 9
    x = weft.input("x", (tokens, heads, d))
    at, where = weft.input("at", (tokens,), "i32"), weft.input("where", (tokens,), ids)
    cache = weft.input("cache", (cells, d * heads), dtype)
    rotated = g.rope(x, at, mode=RopeMode.NEOX, n_dims=32)
    kept = g.set_rows(cache, g.reshape(rotated, d * heads, tokens), where)
    graph = weft.Graph(g.cast(kept, "f32").as_output("y"))
    inputs = {
        "x": rng.standard_normal((tokens, heads, d)).astype(np.float32),
        "at": rng.integers(0, 1000, tokens).astype(np.int32),
        "where": rng.permutation(cells)[:tokens].astype(ids.replace("i", "int")),
        "cache": quants.to_storage(np.zeros((cells, d * heads), np.float32), dtype),
    }
    backend = make_backend("cuda:shim")
    backend.kind = "CPU"  # type: ignore[misc]
    session = Session(compile(graph, [backend]))
    (executable,) = session.executables
    assert _kernels(executable)[0] == "rope_set_rows"  # type: ignore[arg-type]
    want = Session(compile(graph, [make_backend("reference")])).run(inputs)["y"]
    got = session.run(inputs)["y"]
    assert nmse(got, want) < (1e-6 if dtype == "f32" else 1e-5)
