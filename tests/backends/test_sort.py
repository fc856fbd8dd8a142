"""Orders along an axis on devices with kernels: counted, sorted in local memory, and merged."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft
from tests.backend_suite import _alone
from tests.backends.opencl_device import opencl
from tests.backends.webgpu_device import webgpu
from tests.cuda_shim import compiler
from weft import graph as g
from weft.backends import make_backend
from weft.backends.kernels import KernelBackend
from weft.backends.kernels.launch import Call, Limits, View
from weft.backends.kernels.ops.sort import COUNTED, _sort_indices
from weft.dtype import find_dtype

Array = np.ndarray[Any, Any]
DEVICES = ["webgpu", "opencl", "cuda"]
SMALL = 12 * 64
"""Bytes of local memory that a run of 64 elements takes."""


@cache
def device(name: str, local_bytes: int | None = None) -> KernelBackend:
    options: dict[str, Any] = {}
    if local_bytes is not None:
        options["limits"] = {"local_bytes": local_bytes}
    if name != "cuda":
        return (webgpu if name == "webgpu" else opencl)(**options)
    if compiler() is None:
        pytest.skip("needs g++, which compiles the kernels")
    backend = make_backend("cuda:shim", **options)
    assert isinstance(backend, KernelBackend)
    return backend


def order(on: KernelBackend, x: Array, axis: int, **more: Any) -> Array:
    """The places of the elements in order."""
    graph = weft.Graph(
        g.sort_indices(weft.input("x", x.shape, str(x.dtype)), axis, **more).as_output("y")
    )
    return weft.Session(weft.compile(graph, [_alone(on)])).run({"x": x})["y"]


def wanted(x: Array, axis: int, *, descending: bool = False, k: int | None = None) -> Array:
    """The same by NumPy's stable sort."""
    x = np.moveaxis(x, -1 - axis, -1)
    found = np.argsort(x, axis=-1, kind="stable")
    if descending:
        n = x.shape[-1]
        found = n - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return np.moveaxis(found[..., :k], -1, -1 - axis)


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    """With equal elements, infinities, zeros of both signs and NaNs, or the ends of the type."""
    rng = np.random.default_rng(len(shape))
    kind = np.dtype(dtype)
    x = rng.integers(-20, 20, shape).astype(kind)
    flat = x.reshape(-1)
    some = rng.permutation(flat.size)[: flat.size // 4]
    if kind.kind == "f":
        flat[some] = rng.choice(np.array([np.inf, -np.inf, -0.0, 0.0, np.nan], kind), some.size)
    else:
        ends = np.iinfo(kind)
        flat[some] = rng.choice(np.array([ends.min, ends.max, ends.max - 1], kind), some.size)
    return x


@pytest.mark.parametrize("local_bytes", [None, SMALL])
@pytest.mark.parametrize("name", DEVICES)
def test_orders(name: str, local_bytes: int | None) -> None:
    """One run, and five that are merged three times, of which the last one is short."""
    on = device(name, local_bytes)
    for dtype, descending in (("float32", False), ("float32", True), ("int64", True)):
        x = numbers((2, 3, 300), dtype)
        want = wanted(x, 0, descending=descending)
        np.testing.assert_array_equal(order(on, x, 0, descending=descending), want)
    y = numbers((3, 130, 2), "int32")
    np.testing.assert_array_equal(order(on, y, 1, k=70), wanted(y, 1, k=70))
    few = numbers((5, COUNTED, 2), "float32")
    np.testing.assert_array_equal(order(on, few, 1), wanted(few, 1))


def test_a_long_line() -> None:
    """More elements than local memory has room for."""
    x = numbers((1, 9000), "float32")
    np.testing.assert_array_equal(order(device("opencl"), x, 0), wanted(x, 0))


def launches(n: int, limits: Limits) -> list[tuple[str, tuple[int, ...]]]:
    def view(dtype: str, ne: tuple[int, ...]) -> View:
        size = find_dtype(dtype).bytes
        return View(find_dtype(dtype), ne, (size, n * size, 7 * n * size, 0), 0, None)

    params = g.SortIndicesParams(0, False)
    call = Call(
        "SORT_INDICES", view("i64", (n, 7, 1, 1)), (view("f32", (n, 7, 1, 1)),), params, limits
    )
    return [(launch.kernel, launch.grid) for launch in _sort_indices(call)]


def test_launches() -> None:
    """A kernel for lines that local memory holds, and one for each doubling of runs beyond."""
    limits = replace(webgpu().limits, local_bytes=16 << 10, element_items=128)
    assert launches(COUNTED, limits) == [("by_counting", (1, 7, 1))]
    assert launches(1000, limits) == [("runs", (1, 7))]
    assert launches(1025, limits) == [("runs", (2, 7)), ("merge", (9, 7))]
    assert [k for k, _ in launches(128_256, limits)] == ["runs"] + 7 * ["merge"]
