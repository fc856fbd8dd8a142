"""CUDA devices: what is missing, memory, faults that lose a device, graphs, a model."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest

import weft
from tests.cuda_shim import compile_shim, compiler
from weft import graph as g
from weft.backends import known_backends, make_backend
from weft.backends.cuda import CudaBackend
from weft.backends.cuda.calls import CudaError
from weft.backends.kernels.executable import KernelExecutable
from weft.backends.kernels.launch import Local
from weft.compiler import compile
from weft.execute import Session
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model

N = 64
shim = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")


def device(name: str = "cuda:shim") -> CudaBackend:
    """The shim as the only device of a list."""
    backend = make_backend(name)
    assert isinstance(backend, CudaBackend)
    backend.kind = "CPU"
    return backend


def doubled() -> weft.Graph:
    x = weft.input("x", (weft.Sym("n", 1, 8), N))
    return weft.Graph(g.add(x, x).named("sum").as_output("y"))


# ---- what is missing -----------------------------------------------------------------------------


def test_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    for name in [name for name in sys.modules if name.split(".")[0] == "cuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(weft.DeviceError, match=r"'cuda-bindings'.*pip install 'weft\[cuda\]'"):
            make_backend(name)
    (info,) = [i for i in known_backends() if i.name.startswith("cuda")]
    assert not info.available and "weft[cuda]" in info.why_not


@shim
def test_options() -> None:
    with pytest.raises(weft.ArgumentError, match="no option 'n_threads'"):
        make_backend("cuda:shim", n_threads=1)
    with pytest.raises(weft.DeviceError, match="limit lanes is 3; it must be a power of two"):
        make_backend("cuda:shim", limits={"lanes": 3})


# ---- the shim finds faults -----------------------------------------------------------------------

_SUM = """
extern "C" __global__ void sum(const float* x, float* y, shared_t<float> shared) {
  float* tmp = shared;
  const int l = threadIdx.x;
  tmp[l] = x[l];
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (l < s) tmp[l] += tmp[l + s];
    if (BARRIER) __syncthreads();
  }
  if (l == 0) *y = tmp[0];
}
extern "C" __global__ void lopsided() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __shfl_xor_sync(~0u, 1, blockDim.x > 32 ? 1 : 2);
  if (threadIdx.x == 40) __syncwarp(1);
}
"""


@shim
def test_the_shim_finds_faults() -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(1, np.float32)
    good = compile_shim(_SUM, ("BARRIER=1",))
    good.launch("sum", (1,), (128,), [x, y, Local(512)])
    assert y[0] == x.sum()
    with pytest.raises(weft.DeviceError, match=r"sum, block \(0, 0, 0\), thread .*writes 4 bytes"):
        good.launch("sum", (1,), (128,), [x, y, Local(508)])
    with pytest.raises(weft.DeviceError, match=r"reads 4 bytes .* no memory of the launch"):
        good.launch("sum", (1,), (128,), [x[:127], y, Local(512)])
    racing = compile_shim(_SUM, ("BARRIER=0",))
    with pytest.raises(weft.DeviceError, match=r"shared memory, which .* without a barrier"):
        racing.launch("sum", (1,), (128,), [x, y, Local(512)])
    with pytest.raises(weft.DeviceError, match="not in the mask"):
        good.launch("lopsided", (1,), (64,), [])
    good.launch("sum", (1,), (128,), [x, y, Local(512)])
    assert y[0] == x.sum()


@shim
def test_a_fault_loses_the_device_and_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, other = device(), device()
    sessions = [Session(compile(doubled(), [backend])) for backend in (broken, other)]
    x = np.ones((2, N), np.float32)
    for session in sessions:
        assert (session.run({"x": x})["y"] == 2).all()

    def launch(launching: Any) -> None:
        raise CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", sticky=True)

    with monkeypatch.context() as patch:
        patch.setattr(broken.driver.calls, "launch", launch)
        with pytest.raises(weft.DeviceError, match=r"split 0 on cuda:shim.*ILLEGAL_ADDRESS"):
            sessions[0].run({"x": x})
    with pytest.raises(weft.DeviceError, match=r"the device is lost .*ILLEGAL_ADDRESS"):
        sessions[0].run({"x": x})
    assert (sessions[1].run({"x": x})["y"] == 2).all()


@shim
def test_an_index_out_of_range_is_an_error() -> None:
    rows = weft.input("rows", (3,), "i32")
    table = weft.constant(np.ones((5, N), np.float32), "table")
    session = Session(compile(weft.Graph(g.get_rows(table, rows).as_output("y")), [device()]))
    with pytest.raises(
        weft.DeviceError, match=r"GET_ROWS\(table, rows\) -> .*: index 5 is outside"
    ):
        session.run({"rows": np.array([0, 5, 1], np.int32)})
    assert (session.run({"rows": np.array([0, 4, 1], np.int32)})["y"] == 1).all()


# ---- graphs --------------------------------------------------------------------------------------


@shim
def test_a_run_is_a_graph_from_the_second_on() -> None:
    """Only launches whose sizes changed are replaced in it."""
    n, m = weft.Sym("n", 1, 8), weft.Sym("m", 1, 8)
    x, y = weft.input("x", (n, N)), weft.input("y", (m, N))
    nodes = [g.silu(x).as_output("a"), g.scale(y, 3.0).as_output("b")]
    session = Session(compile(weft.Graph(*nodes), [device()]))
    (executable,) = session.executables
    assert isinstance(executable, KernelExecutable)
    ones = np.ones((8, N), np.float32)
    session.run({"x": ones[:2], "y": ones[:3]})
    assert executable._graph is None
    session.run({"x": ones[:2], "y": ones[:3]})
    graph = executable._graph
    first = list(graph._launches)
    for k in (5, 5, 1):
        got = session.run({"x": ones[:2], "y": ones[:k]})["b"]
        assert got.size == k * N and (got == 3).all()
    assert executable._graph is graph
    changed = [a is not b for a, b in zip(first, graph._launches, strict=True)]
    assert changed.count(True) == 1


@shim
def test_times_are_recorded() -> None:
    backend = device()
    session = Session(compile(doubled(), [backend]))
    x = np.ones((2, N), np.float32)
    for _ in range(2):
        session.run({"x": x})
    backend.record_queue(True)
    try:
        begin = perf_counter_ns()
        session.run({"x": x})
        spans = backend.recorded()()
        end = perf_counter_ns()
    finally:
        backend.record_queue(False)
    kinds = [(s.kind, s.name, s.nbytes) for s in spans]
    nbytes = x.nbytes
    assert kinds == [("to", "", nbytes), ("kernel", "binary", 0), ("from", "", nbytes)]
    assert begin - 1_000_000 < spans[0].begin and spans[-1].end < end + 1_000_000
    assert all(s.begin <= s.end for s in spans)


@shim
def test_grids_in_pieces() -> None:
    rows = 65_535 + 3
    x = weft.input("x", (rows, 1))
    session = Session(
        compile(weft.Graph(g.add(x, x).as_output("y")), [device("cuda:shim-unchecked")])
    )
    a = np.arange(rows, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(session.run({"x": a})["y"].reshape(a.shape), 2 * a)


# ---- a model -------------------------------------------------------------------------------------


@shim
@pytest.mark.parametrize("own", [False, True])
def test_a_model(own: bool) -> None:
    """A prompt and single tokens, with weights in planes: the kernels of all devices against the
    cpu's floats, those of CUDA alone with activations in bytes, as on the cpu."""
    path = Path(__file__).parents[2] / "examples" / "weft-demo.gguf"
    model = Model(open_gguf(path))
    prompt = [1, 45, 77, 130, 200, 31, 18, 9, 10, 11, 12, 13]

    def logits(*devices: Any, **options: Any) -> Any:
        context = Context(model, 64, devices=[*devices, "cpu"], **options)
        return np.concatenate(
            [context.decode(prompt, outputs="all"), *(context.decode([t]) for t in (5, 6, 7))]
        )

    want = logits(activations="f32")
    got = logits(make_backend("cuda:shim", own=own))
    in_bytes = np.abs(logits() - want).max()
    assert np.abs(got - want).max() < (2 * in_bytes if own else 2e-3)
