"""The blas device: its products, what it refuses, and how it shares the memory of cpu."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip(
    "scipy_openblas32", reason="the blas device needs scipy-openblas32 (pip install '.[blas]')"
)

import weft
from tests.vectors.ops import Case, build_case, iter_cases, measure
from tests.vectors.run_ops import compute
from weft import graph as g
from weft import quants
from weft.backends import make_backend
from weft.backends.blas import BlasBackend
from weft.backends.blas.library import OPENBLAS
from weft.backends.blas.weights import can_decode
from weft.backends.cpu import CpuBackend
from weft.backends.memory import HostMemory
from weft.dtype import DTYPES
from weft.execute import Scheduler

SAMPLE = Path(__file__).resolve().parent.parent / "data/vectors/ops"
RNG = np.random.default_rng(0)
_FILE = np.load(Path(__file__).resolve().parent.parent / "data/quants.npz")
STORED = {key.removesuffix(".q"): _FILE[key] for key in _FILE.files if key.endswith(".q")}
"""Rows of 256 weights, as files hold them, by type."""
STORED["f32"] = RNG.standard_normal((8, 256)).astype(np.float32)


def _array(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


class BlasAlone(BlasBackend):
    """blas as the only device: for products that need nothing else."""

    kind = "CPU"  # type: ignore[assignment]


def _run(node: weft.Tensor, inputs: dict[str, Any], backend: Any = None) -> NDArray[Any]:
    program = weft.compile(weft.Graph(node.as_output("y")), [backend or BlasAlone(min_batch=1)])
    return weft.Session(program).run(inputs)["y"]


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, d in DTYPES.items() if can_decode(d) and n in STORED])
def test_every_type_of_weights(name: str) -> None:
    """Against float64 on the decoded weights: what is left is float32 rounding of sums."""
    dtype = DTYPES[name]
    stored = STORED[name].view(dtype.storage)
    decoded = (
        quants.decode(stored, dtype) if dtype.is_quantized else quants.from_storage(stored, dtype)
    )
    x = _array(33, 256)
    want = x.astype(np.float64) @ np.asarray(decoded, np.float64).T
    y = g.mul_mat(weft.constant(stored, "w", dtype), weft.input("x", (33, 256)))
    scale = np.abs(want).max()
    for decoded_bytes in (1 << 30, 0):  # decoded at load, and at every run
        got = _run(y, {"x": x}, BlasAlone(min_batch=1, decoded_bytes=decoded_bytes))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * scale)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("broadcast", [(1, 1), (2, 1), (2, 3), (4, 6)])
def test_batches_broadcast(kind: str, broadcast: tuple[int, int]) -> None:
    """Dimensions 2 and 3 of the weights divide those of the activations; w is no constant here."""
    w, x = _array(broadcast[1], broadcast[0], 8, 32), _array(6, 4, 5, 32)
    leaf = weft.input("w", w.shape)
    weights = leaf if kind == "f32" else g.cast(leaf, kind)
    y = g.mul_mat(weights, weft.input("x", x.shape))
    if kind == "f32":
        got = _run(y, {"w": w, "x": x})
    else:
        program = weft.compile(
            weft.Graph(y.as_output("y")), [BlasBackend(min_batch=1), CpuBackend(n_threads=1)]
        )
        assert program.splits[-1].device == "blas"
        got = weft.Session(program).run({"w": w, "x": x})["y"]
        w = np.asarray(
            quants.decode(quants.encode_runtime(w, DTYPES[kind]), DTYPES[kind])
            if kind == "q8_0"
            else w.astype(np.float16).astype(np.float32)
        ).reshape(w.shape)
    planes = np.repeat(np.repeat(w, 6 // broadcast[1], 0), 4 // broadcast[0], 1)
    want = np.einsum("abmk,abnk->abnm", planes.astype(np.float64), x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_strided_matrices() -> None:
    """Rows may lie apart: a part of wider rows, and heads that are permuted."""
    x = _array(7, 3, 64)
    source = weft.input("x", x.shape)
    part = g.view_3d(source, 32, 3, 7, source.nb[1], source.nb[2], 64)
    heads = g.permute(part, 0, 2, 1, 3)  # [32, 7, 3]
    w = _array(3, 5, 32)
    got = _run(g.mul_mat(weft.input("w", w.shape), heads), {"x": x, "w": w})
    want = np.einsum("hmk,hnk->hnm", w, x[:, :, 16:48].transpose(1, 0, 2))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("planes", [(1, 1), (2, 1), (2, 3)])
def test_out_prod(planes: tuple[int, int], transposed: bool) -> None:
    a = _array(planes[1], planes[0], 9, 6)
    b = _array(3, 4, 9, 5) if not transposed else _array(3, 4, 5, 9)
    second = weft.input("b", b.shape)
    y = g.out_prod(weft.input("a", a.shape), g.transpose(second) if transposed else second)
    got = _run(y, {"a": a, "b": b})
    a = np.repeat(np.repeat(a, 3 // planes[1], 0), 4 // planes[0], 1)
    want = np.einsum("xykm,xykn->xynm", a, b if not transposed else b.swapaxes(2, 3))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_symbolic_batches() -> None:
    w = _array(40, 64)
    n = weft.Sym("n", 1, 50)
    y = g.mul_mat(weft.constant(w, "w"), weft.input("x", (n, 64))).as_output("y")
    session = weft.Session(weft.compile(weft.Graph(y), [BlasAlone()]))
    for rows in (50, 1, 33, 2, 50, 3, 4, 5, 6, 7, 8):  # more sets of sizes than are kept
        x = _array(rows, 64)
        np.testing.assert_allclose(session.run({"x": x})["y"], x @ w.T, rtol=1e-4, atol=1e-4)


def _golden(folder: Path) -> list[Case]:
    backend = BlasBackend(min_batch=1)
    taken = []
    for pattern in ("*mul_mat*", "*out_prod*", "*OUT_PROD*", "*MUL_MAT*"):
        for case in iter_cases(folder, pattern):
            node = build_case(case).graph.nodes[-1]
            if node.op.name in ("MUL_MAT", "OUT_PROD") and backend.supports_op(node):
                taken.append(case)
    return taken


@pytest.mark.parametrize("full", [False, True], ids=["sample", "full"])
def test_golden_cases(full: bool, request: pytest.FixtureRequest) -> None:
    """Every recorded product that the device takes, as the record says it is judged."""
    folder = request.getfixturevalue("vectors") / "ops" if full else SAMPLE
    cases = _golden(folder)
    assert len(cases) >= (20 if full else 1)
    for case in cases:
        got, base = compute(build_case(case), BlasAlone(min_batch=1))
        verdict = measure(case, got, base)
        assert verdict.ok, f"{case.id}: {verdict.message}"


# -- what it takes ---------------------------------------------------------------------------------


def test_refusals_say_why() -> None:
    blas = BlasBackend()

    def why(node: weft.Tensor) -> str:
        return blas.supports_op(node).why

    w = weft.constant(_array(64, 64))
    assert blas.supports_op(g.mul_mat(w, weft.input("x", (32, 64)))).ok
    assert "31 columns, from 32 on" in why(g.mul_mat(w, weft.input("x", (31, 64))))
    few = weft.constant(_array(8, 16))
    assert "8 rows, 16 inner" in why(g.mul_mat(few, weft.input("x", (32, 16))))
    halves = weft.input("x", (32, 64), "f16")
    assert "activations must be f32, not f16" in why(g.mul_mat(w, halves))
    assert "only matrix products" in why(g.silu(weft.input("x", (32, 64))))
    assert blas.supports_op(g.transpose(weft.input("x", (4, 4)))).ok
    assert "sources must be f32, not f16" in why(
        g.out_prod(weft.input("a", (4, 4), "f16"), weft.input("b", (4, 4)))
    )
    i2_s = weft.Tensor(DTYPES["i2_s"], (128, 64, 1, 1), name="w")
    assert (
        "cannot be decoded"
        in BlasBackend(min_batch=1).supports_op(g.mul_mat(i2_s, weft.input("x", (32, 128)))).why
    )


def test_options() -> None:
    backend = make_backend("blas", n_threads=1, min_batch=8)
    assert isinstance(backend, BlasBackend) and backend.min_batch == 8
    with pytest.raises(weft.ArgumentError, match="blas has no option 'speed'"):
        make_backend("blas", speed=11)
    with pytest.raises(weft.DeviceError, match="one blas device"):
        make_backend("blas:1")
    with pytest.raises(weft.DeviceError, match=r"n_threads must be 1\.\.1024, got 0"):
        make_backend("blas", n_threads=0)
    with pytest.raises(weft.DeviceError, match="min_batch must be 1 or more"):
        make_backend("blas", min_batch=0)


def test_threads_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(OPENBLAS, "_set_threads", asked.append)
    monkeypatch.setattr(OPENBLAS, "_threads", -1)
    w, x = _array(4, 8), _array(3, 8)
    y = g.mul_mat(weft.constant(w), weft.input("x", (3, 8)))
    for n in (2, 1, 1):
        _run(y, {"x": x}, BlasAlone(n_threads=n, min_batch=1))
    assert asked == [2, 1]


# -- beside cpu ------------------------------------------------------------------------------------


def _mlp(rows: Any) -> weft.Graph:
    """Two products with weights, and one of two computed values."""
    x = weft.input("x", (rows, 64))
    a = g.mul_mat(weft.constant(W1, "w1"), x).named("a")
    b = g.mul_mat(weft.constant(W2, "w2"), g.silu(a)).named("b")
    scores = g.mul_mat(a, b).named("scores")
    return weft.Graph(g.soft_max(scores).as_output("y"))


W1, W2 = _array(64, 64) / 8, _array(64, 64) / 8


def _mlp_by_hand(x: NDArray[np.float32]) -> NDArray[np.float64]:
    a = x.astype(np.float64) @ W1.T
    b = (a / (1 + np.exp(-a))) @ W2.T
    s = b @ a.T
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_products_go_to_blas_and_nothing_is_copied() -> None:
    """Both devices use one memory."""
    graph = _mlp(40)
    program = weft.compile(graph, ["blas", "cpu"], n_threads=1)
    placed = program.plan.schedule
    cause = {t.name: placed.cause_of[t].code for t in graph.nodes}
    device = {t.name: placed.backend_for(t).name for t in graph.nodes}
    assert (cause["a"], device["a"]) == ("1.wgt0", "blas")
    assert (cause["scores"], device["scores"]) == ("2.sup", "blas")
    assert device["y"] == "cpu"
    assert [s.device for s in program.splits] == ["blas", "cpu", "blas", "cpu"]
    assert not any(split.copies for split in program.splits)
    session = weft.Session(program)
    x = _array(40, 64)
    np.testing.assert_allclose(session.run({"x": x})["y"], _mlp_by_hand(x), rtol=1e-3, atol=1e-5)
    assert session.copied_bytes == 0


def test_pass_3_upgrades_a_product_between_cpu_nodes() -> None:
    """A weight holds the nodes around it on cpu; the product moves up, as the memory is one."""
    x = g.mul(weft.input("x", (40, 64)), weft.constant(W1[:1], "gain"))
    y = g.soft_max(g.mul_mat(g.silu(x), g.gelu(x)).named("product")).as_output("y")
    graph = weft.Graph(y)
    program = weft.compile(graph, ["blas", "cpu"], n_threads=1)
    product = next(t for t in graph.nodes if t.name == "product")
    assert program.plan.schedule.cause_of[product].code == "3.upg"
    assert [s.device for s in program.splits] == ["cpu", "blas", "cpu"]
    data = _array(40, 64)
    want = weft.Session(weft.compile(graph, ["cpu"], n_threads=1)).run({"x": data})["y"]
    got = weft.Session(program).run({"x": data})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_small_batches_stay_on_cpu() -> None:
    program = weft.compile(_mlp(8), ["blas", "cpu"], n_threads=1)
    assert [s.device for s in program.splits] == ["cpu"]


def test_scheduler_over_blas_and_cpu() -> None:
    """Batches in flight over two devices and one memory."""
    graph = _mlp(weft.Sym("n", 1, 64))
    with Scheduler(["blas", "cpu"], n_copies=2, n_threads=1) as scheduler:
        xs = [_array(rows, 64) for rows in (64, 3, 40, 64, 1)]
        runs = []
        for x in xs:
            scheduler.reset()
            runs.append(scheduler.compute_async(graph, {"x": x}))
        for run, x in zip(runs, xs, strict=True):
            np.testing.assert_allclose(run.outputs["y"], _mlp_by_hand(x), rtol=1e-3, atol=1e-5)
        assert scheduler.copies == 0 and scheduler.n_splits == 4


def test_decoded_weights_are_shared_and_limited() -> None:
    w = quants.encode(_array(32, 64), DTYPES["q8_0"])
    leaf = weft.constant(w, "w", "q8_0")
    other = weft.constant(w.copy(), "other", "q8_0")
    blas = BlasAlone(min_batch=1, decoded_bytes=32 * 64 * 4)
    sessions = []
    for weights, rows in ((leaf, 2), (leaf, 3), (other, 2)):
        y = g.mul_mat(weights, weft.input("x", (rows, 64))).as_output("y")
        sessions.append(weft.Session(weft.compile(weft.Graph(y), [blas])))
        x = _array(rows, 64)
        want = x @ quants.decode(w, DTYPES["q8_0"]).T
        np.testing.assert_allclose(sessions[-1].run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)
        assert len(blas.decoded) == 1  # the second is the first; no room for the third
    del sessions, y
    gc.collect()
    assert not blas.decoded


def test_refuses_memory_it_cannot_address() -> None:
    w, x = _array(4, 8), _array(3, 8)
    y = g.mul_mat(weft.constant(w), weft.input("x", (3, 8))).as_output("y")
    program = weft.compile(weft.Graph(y), [BlasAlone(min_batch=1)])

    class Far(HostMemory):
        def host(self) -> Any:
            return None

    memories = [Far(np.zeros(b.size, np.uint8)) for b in program.buffers]
    with pytest.raises(weft.ProgramError, match="blas cannot address CPU memory"):
        program.devices[0].lower(program, 0, memories)
    del x


def test_the_lock_is_released() -> None:
    """Another thread runs while the library multiplies."""
    n = 1024
    a = np.ones((n, n), np.float32)
    c = np.empty_like(a)
    OPENBLAS.use_threads(1)
    counted = 0
    finished = threading.Event()

    def count() -> None:
        nonlocal counted
        while not finished.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    at, to = a.ctypes.data, c.ctypes.data
    for _ in range(3):
        OPENBLAS.multiply((n, n, n), (at, n, False), (at, n, True), (to, n))
    during = counted - before
    finished.set()
    thread.join()
    assert during > 1000
    np.testing.assert_array_equal(c, n)
