"""Graphs of plain tensors against PyTorch: tensors in and out, on one device."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft.graph as g
from tests.backends.opencl_device import opencl
from weft.backends import make_backend
from weft.compiler import compile
from weft.execute.session import Session

torch = pytest.importorskip("torch")

DEVICES = ["reference", "cpu", "opencl"]

NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i8",
}


def stored(t: Any) -> np.ndarray:
    """A tensor as weft stores it."""
    t = t.contiguous()
    if t.dtype is torch.bfloat16:
        return t.view(torch.int16).numpy().view(np.uint16)
    return t.to(torch.int8).numpy() if t.dtype is torch.bool else t.numpy()


def backend_of(device: str) -> Any:
    """The device, to run graphs alone."""
    if device == "cpu":
        return make_backend("cpu", n_threads=2)
    return _alone() if device == "opencl" else make_backend(device)


@cache
def _alone() -> Any:
    """The OpenCL device as the only one: what it refuses is an error."""
    backend = opencl()
    backend.kind = "CPU"
    return backend


def run(build: Callable[..., g.Tensor], *tensors: Any, device: Any) -> Any:
    """build(leaf, ...) computed on `device`, a name or a backend, as a tensor with all four
    dimensions."""
    backend = backend_of(device) if isinstance(device, str) else device
    leaves = [g.input(f"x{i}", list(t.shape) or [1], NAMES[t.dtype]) for i, t in enumerate(tensors)]
    node = build(*leaves)
    if node.is_view:
        node = g.cont(node)
    graph = g.Graph(node.as_output("out"))
    session = Session(compile(graph, [backend]))
    session.fill_arenas(0xFF)
    arrays = {f"x{i}": stored(t) for i, t in enumerate(tensors)}
    out = session.run({n: a for n, a in arrays.items() if n in graph.inputs})["out"]
    if node.dtype.name == "bf16":
        return torch.from_numpy(out.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(out))


def check(
    got: Any, want: Any, rtol: float | None = None, atol: float | None = None, exact: bool = False
) -> None:
    """Same type (bool as int8), same sizes but for ones in front, close values."""
    if want.dtype is torch.bool:
        want = want.to(torch.int8)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    got = got.reshape(want.shape)
    if exact:
        rtol = atol = 0.0
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def normal(*shape: int, dtype: Any = torch.float32, scale: float = 1.0, seed: int = 0) -> Any:
    """Normal numbers (integers: rounded)."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def integers(high: int, *shape: int, low: int = 0, dtype: Any = torch.int64) -> Any:
    """Whole numbers low .. high-1."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


SPECIAL: Sequence[float] = (
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 1e-30, -1e-30, 3e37, -3e37, 7.25, -7.25, 100.0,
    -100.0, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
