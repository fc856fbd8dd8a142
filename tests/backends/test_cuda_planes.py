"""Weights in planes as a CUDA device makes them of blocks, and as the kernels of all devices read
them, by the shim."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.backends.cuda_kernels import nmse
from tests.cuda_shim import compiler
from weft import graph as g
from weft import quants
from weft.backends import make_backend
from weft.backends.cases.case import random_blocks
from weft.compiler import compile
from weft.dtype import find_dtype
from weft.execute import Session

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")


@pytest.mark.parametrize("dtype", ["q2_K", "q3_K", "q5_K", "q6_K"])
def test_there_and_back(dtype: str) -> None:
    """Formats whose bits are gathered from several places. Blocks come back as they were, and
    products by floats are those of their values."""
    rng = np.random.default_rng(0)
    kind, ne = find_dtype(dtype), (768, 5, 1, 1)
    blocks = random_blocks(kind, ne, rng)
    backend = make_backend("cuda:shim", own=False)
    backend.kind = "CPU"  # type: ignore[misc]
    x = rng.standard_normal((2, 768)).astype(np.float32)
    y = g.mul_mat(g.constant(blocks, "w", dtype), weft.input("x", x.shape))
    program = compile(weft.Graph(y.as_output("y")), [backend], repack=True)
    assert "planes" in {t.layout for t in program.tensors}
    values = quants.decode(blocks, kind).reshape(5, 768)
    assert nmse(Session(program).run({"x": x})["y"], x @ values.T) < 1e-10
    memory = backend._planes.load(blocks, kind, ne)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(memory.read(0, memory.nbytes), blocks.reshape(-1))
    np.testing.assert_array_equal(memory.read(90, 300), blocks.reshape(-1)[90:390])
