"""CUDA devices that fail: each call of the driver, memory that is full, kernels kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.cuda_shim import compiler
from weft import graph as g
from weft.backends import make_backend
from weft.backends.cuda import CudaBackend
from weft.backends.cuda.calls import CudaError
from weft.backends.cuda.library import _STICKY, called
from weft.backends.kernels.compiling import Compiling
from weft.compiler import compile
from weft.execute import Session

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")

N = 64
X = np.ones((2, N), np.float32)


def shim(**options: Any) -> CudaBackend:
    backend = make_backend("cuda:shim", **options)
    assert isinstance(backend, CudaBackend)
    return backend


def program(backend: CudaBackend) -> Any:
    """The sum of the input and itself on the device, its double on the host."""
    x = weft.input("x", (weft.Sym("n", 1, 8), N))
    there = g.add(x, x).named("sum")
    here = g.scale(there, 2.0).as_output("y")
    host = make_backend("cpu", n_threads=1)
    return compile(weft.Graph(here), [backend, host], assign={there: backend, here: host})


def works(session: Session) -> bool:
    return bool((session.run({"x": X})["y"] == 4).all())


# ---- calls that fail -----------------------------------------------------------------------------

FAULTS = {
    "allocate": "buffer of .* could not be created",
    "function": r"split 0 on cuda:shim \(node sum\).*kernel binary of binary.cl",
    "send": "copy of .* to the device",
    "launch": r"split 0 on cuda:shim \(node sum\).*ADD\(.*\) -> sum",
    "graph": r"split 0 on cuda:shim \(node sum\).*a graph of 1 kernels",
    "fetch": "copy of .* from the device",
    "synchronize": "waiting for the device",
    "event": "no event could be created|copy of .* to the device",
}
"""Calls of a device, and what the error says of them."""
ERRORS = (
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
)


def answer(name: str) -> tuple[Any]:
    """What cuda-bindings answers where a call fails."""

    class Error(int):
        pass

    error = Error(1)
    error.name = name  # type: ignore[attr-defined]
    return (error,)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("what", FAULTS)
def test_faults_of_the_driver(what: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an error that names call and node; another device goes on. So does this one when
    the fault is over, unless its context is broken: then it is lost, and says so."""
    backend, other = shim(), Session(program(shim()))
    made = program(backend)
    session = Session(made)
    assert works(session) and works(other)

    def fail(*_: Any, **__: Any) -> Any:
        called(answer(error))

    no_room = error == "CUDA_ERROR_OUT_OF_MEMORY" and what != "launch"
    kind = weft.OutOfMemoryError if no_room else weft.DeviceError
    with monkeypatch.context() as patch:
        patch.setattr(backend.driver.calls, what, fail)
        patch.setattr(backend.driver, "compiling", Compiling(backend.name))  # kernels are new
        with pytest.raises(kind, match=f"(?:{FAULTS[what]}).*{error}"):
            if what in ("allocate", "function", "launch"):
                Session(made).run({"x": X})
            elif what in ("synchronize", "event"):
                queue = backend.make_queue()
                assert queue is not None
                queue.submit(lambda: None).wait()
                queue.synchronize()
            else:
                session.run({"x": X})
        assert works(other)
    if error not in _STICKY:
        assert works(session)
        return
    for _ in range(2):
        with pytest.raises(weft.DeviceError, match=rf"the device is lost \({error}"):
            session.run({"x": X})
    with pytest.raises(weft.DeviceError, match="start weft again to use it"):
        Session(made).run({"x": X})
    assert works(other) and works(Session(program(shim())))


# ---- memory --------------------------------------------------------------------------------------


def test_memory_says_what_is_left() -> None:
    """What others took of the device in the meantime is an error, too, not the end."""
    backend = shim()
    memory = backend.memory_type
    with pytest.raises(weft.OutOfMemoryError, match=rf"{memory.capacity} bytes left, but"):
        memory.allocate(memory.capacity + 1)
    backend.driver.calls.allocate(memory.capacity)  # another process
    assert backend.memory_limit() == 0
    with pytest.raises(weft.OutOfMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        memory.allocate(1 << 30)
    assert memory.in_use == 0 and memory.allocate(1000).nbytes == 1000


def test_a_thousand_sessions_with_weights_of_their_own() -> None:
    """What was sent goes with each session, to the byte of the device's memory."""
    backend = shim()
    backend.kind = "CPU"
    w = weft.constant(np.ones((N, N), np.float32), "w")
    x = weft.input("x", (2, N))
    made = compile(weft.Graph(g.mul_mat(w, x).as_output("y")), [backend])
    Session(made).run({"x": X})
    calls = backend.driver.calls
    left = backend.memory_type.in_use, calls.free_bytes()
    for i in range(1000):
        session = Session(made)
        assert backend.memory_type.in_use >= left[0] + 4 * N * N
        if i % 200 == 0:
            assert (session.run({"x": X})["y"] == N).all()
        del session
        assert (backend.memory_type.in_use, calls.free_bytes()) == left


# ---- kernels on disk -----------------------------------------------------------------------------

_RUN = """
import numpy as np, weft
from weft import graph as g
from weft.backends import make_backend
from weft.backends.kernels.compiling import Compiling
from weft.compiler import compile
from weft.execute import Session
import tests.cuda_shim

device = make_backend("cuda:shim")
device.kind = "CPU"
x = weft.input("x", (3, 8))
session = Session(compile(weft.Graph(g.silu(x).as_output("y")), [device]))
print(session.run({"x": np.arange(24, dtype=np.float32).reshape(3, 8)})["y"].tobytes().hex())
"""


def test_processes_share_what_is_compiled(tmp_path: Path) -> None:
    """Two that compile the same at once, and a third that finds it: one result, no file in pieces,
    and the third compiles nothing."""

    def start() -> subprocess.Popen[str]:
        environment = os.environ | {"WEFT_CACHE": str(tmp_path)}
        command = [sys.executable, "-c", _RUN]
        options = {"env": environment, "text": True, "cwd": Path(__file__).parents[2]}
        return subprocess.Popen(command, stdout=subprocess.PIPE, **options)

    two = [start() for _ in range(2)]
    said = [process.communicate(timeout=240)[0] for process in two]
    assert all(process.returncode == 0 for process in two)
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files and all(name.endswith(".so") for name in files)
    third = start()
    said.append(third.communicate(timeout=240)[0])
    assert len(set(said)) == 1 and len(said[0]) > 100
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == files


def test_errors_of_the_driver_that_break_a_context() -> None:
    for name, sticky in (("CUDA_ERROR_ILLEGAL_ADDRESS", True), ("CUDA_ERROR_NOT_FOUND", False)):
        with pytest.raises(CudaError, match=name) as caught:
            called(answer(name))
        assert caught.value.sticky == sticky and not caught.value.no_memory
