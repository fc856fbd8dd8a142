"""Ctrl-C stops a native run in the middle, and the session works afterwards."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import weft
from weft import graph as g

N = 512
LAYERS = 256


def _chain() -> weft.Graph:
    """Seconds of matmuls at the largest size, milliseconds at the smallest."""
    rows = weft.Sym("rows", 1, 1 << 12)
    x = weft.input("x", (rows, N))
    w = weft.constant(np.eye(N, dtype=np.float32), "w")
    for _ in range(LAYERS):
        x = g.mul_mat(w, x)
    return weft.Graph(x.as_output("y"))


def test_sigint_stops_a_native_run() -> None:
    session = weft.Session(weft.compile(_chain(), ["cpu"]))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.execute({"rows": 1 << 12})
    timer.join()
    x = np.random.default_rng(0).standard_normal((3, N)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], x, rtol=1e-5)
