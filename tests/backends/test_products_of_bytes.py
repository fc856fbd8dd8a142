"""Products of weights in planes with activations as bytes, on the devices whose kernels are OpenCL
C, against whole numbers.

Where scales are powers of two and activations whole numbers below 128, every sum is exact in f32,
so that results are equal to the bit whatever their order. Elsewhere a sum of n terms of f32 may be
wrong by n / 2^24 of the sum of their sizes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.backends.cuda_kernels import weights_in_planes
from tests.backends.kernel_run import fetch, run, send
from tests.backends.opencl_device import opencl
from tests.backends.webgpu_device import webgpu
from tests.shares import share
from weft import quants
from weft.backends import make_backend
from weft.backends.kernels import KernelBackend
from weft.backends.kernels.launch import Call, View
from weft.backends.kernels.ops import NO_OWN
from weft.backends.kernels.ops.bytes import CODES, place_of
from weft.backends.kernels.ops.products import PRODUCTS, fits
from weft.backends.kernels.planes import FORMATS
from weft.backends.opencl import builds
from weft.backends.opencl.builds import Programs
from weft.compiler import resolve_devices
from weft.dtype import find_dtype
from weft.errors import ArgumentError, DeviceError
from weft.graph.ops import mul_mat

F32 = NDArray[np.float32]
LIMITS = {"tile": 16, "lanes": 8, "rows": 2, "columns": 4, "wide": False}
DEVICES = {"webgpu": webgpu, "opencl": opencl}
EACH = [(device, dtype) for device in DEVICES for dtype in CODES]
SOME = [("webgpu", "q4_0"), ("webgpu", "q6_K"), ("webgpu", "mxfp4")]
ROWS = 21
"""Not a multiple of the rows of a group, or of a tile."""


@cache
def made(device: str) -> KernelBackend:
    """A device with groups like a GPU's, but small."""
    return DEVICES[device](planes=True, activations="native", limits=LIMITS)


def exact_weights(dtype: str, ne: tuple[int, ...], rng: np.random.Generator) -> tuple[Any, F32]:
    """Planes of random codes whose scales are powers of two, and their values `ne[::-1]`."""
    kind, planes = find_dtype(dtype), FORMATS[dtype].planes
    n = int(np.prod(ne)) // kind.block
    parts = [rng.integers(0, 256, (n, count, width), np.uint8) for width, count in planes]
    if dtype == "mxfp4":
        parts[1][:] = rng.integers(126, 129, parts[1].shape)
    else:  # the plane with numbers of 16 bits, and how many these are
        plane = {"q6_K": 3, "q3_K": 3, "q5_0": 2, "q5_1": 2, "q8_0": 2, "q2_K": 2}.get(dtype, 1)
        count = 2 if dtype in ("q4_1", "q5_1", "q2_K", "q4_K", "q5_K") else 1
        scales = rng.choice([0.5, 1, -1, 0.25], (*parts[plane].shape[:2], count))
        parts[plane][..., : 2 * count] = scales.astype(np.float16).view(np.uint8)
    blocks = np.concatenate(FORMATS[dtype].blocks(*parts), axis=1)
    values = quants.decode(blocks, kind).reshape(*ne[::-1]).astype(np.float32)
    return np.concatenate([part.reshape(-1) for part in parts]), values


def whole_numbers(shape: tuple[int, ...], rng: np.random.Generator) -> F32:
    """Activations whose scale is 1: small, but for one of 127 in each 32."""
    x = rng.integers(-3, 4, (*shape[:-1], shape[-1] // 32, 32)).astype(np.float32)
    x[..., 5] = rng.choice([-127, 127], x.shape[:-1])
    return x.reshape(shape)


def as_bytes(x: F32) -> tuple[NDArray[np.int64], F32]:
    """The codes of activations, and the scale of each 32 of them."""
    blocks = quants.encode_activation(x, "q8_0").reshape(*x.shape[:-1], -1, 34)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.int64)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    return codes.reshape(x.shape), scales.astype(np.float32)


def heads_and_codes(x: F32, form: str) -> tuple[NDArray[np.uint32], NDArray[np.int8]]:
    """The heads of 8 bytes and the codes of all units of activations, of the cpu's blocks."""
    kind = find_dtype(form)
    blocks = quants.encode_activation(x, form).reshape(-1, kind.bytes)
    before = {"q8_0": 2, "q8_1": 4, "q8_K": 4}[form]
    codes = np.ascontiguousarray(blocks[:, before : before + kind.block]).view(np.int8)
    codes = codes.reshape(-1, 32)
    head = np.ascontiguousarray(blocks[:, :before])
    heads = np.zeros((len(codes), 2), np.uint32)
    halves = codes.reshape(-1, 2, 16).sum(2, dtype=np.int16)
    heads[:, 1:] = halves.view(np.uint32)
    if form == "q8_K":
        heads[:, 0] = head.view(np.uint32)[:, 0].repeat(8)
    else:
        numbers = head.view(np.float16).astype(np.float32).view(np.uint32)
        heads[:, : numbers.shape[1]] = numbers
    return heads, codes


def product(device: KernelBackend, w: View, x: View, bias: View | None = None) -> F32:
    """MUL_MAT by the device's kernels of bytes."""
    d = send(device, np.full((*x.ne[:0:-1], w.ne[1]), np.nan, np.float32), "f32",
             (w.ne[1], *x.ne[1:]))  # fmt: skip
    src = (w, x) if bias is None else (w, x, bias)
    call = Call("MUL_MAT", d, src, None, device.limits)
    run(device, PRODUCTS.launches["MUL_MAT"](call))
    found = fetch(device, d)
    return found.reshape(found.shape[2:]) if d.ne[2:] == (1, 1) else found


@pytest.mark.parametrize(("name", "dtype"), share("devices", EACH, SOME))
def test_whole_numbers_are_exact(name: str, dtype: str) -> None:
    device, rng = made(name), np.random.default_rng(0)
    inner = 512 if find_dtype(dtype).block == 256 else 288
    planes, values = exact_weights(dtype, (inner, ROWS), rng)
    w = send(device, planes, dtype, (inner, ROWS), layout="planes")
    for columns in (1, 3, 9, 40) if name == "webgpu" or dtype == "q4_0" else (1,):
        x = whole_numbers((columns, inner), rng)
        want = x.astype(np.float64) @ values.T.astype(np.float64)
        got = product(device, w, send(device, x, "f32", (inner, columns)))
        np.testing.assert_array_equal(got, want)


WEIGHTS = {"q8_0": "q4_0", "q8_1": "q4_1", "q8_K": "q4_K"}
"""Weights that meet each form of activations."""


def quantized(device: KernelBackend, x: View, form: str) -> tuple[Any, Any]:
    """The heads and the codes that the device makes of activations."""
    n = prod(x.ne) // 32
    to = send(device, np.zeros(40 * n, np.uint8), "i8", (40 * n,))
    w = View(
        find_dtype(WEIGHTS[form]), (x.ne[0], 2, 1, 1), (0, 0, 0, 0), 0, to.buffer, "", "planes"
    )
    d = View(find_dtype("f32"), (2, *x.ne[1:]), (4, 8, 16, 32), 0, to.buffer)
    launches = PRODUCTS.launches["MUL_MAT"](Call("MUL_MAT", d, (w, x), None, device.limits))
    assert launches is not None and place_of(x, form) == launches[0].args[1]
    run(device, [launches[0]._replace(args=(x, to.buffer, launches[0].args[2]))])
    got = device.driver.read_bytes(to.buffer, 0, 40 * n)
    return got[32 * n :].view(np.uint32).reshape(n, 2), got[: 32 * n].view(np.int8).reshape(n, 32)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("form", WEIGHTS)
def test_activations_as_the_cpu_has_them(name: str, form: str) -> None:
    """Codes, scales and sums have the cpu's bits: of rows that lie apart, of f32 and f16, of many
    sizes, zeros, and values that are as large as their negatives."""
    device, rng, n = made(name), np.random.default_rng(1), find_dtype(form).block
    x = rng.standard_normal((2, 20, 3 * n)).astype(np.float32)
    x *= np.exp2(rng.integers(-12, 10, (2, 20, 1))).astype(np.float32)
    x[0, 1, :n], x[1, 3, n + 3 : n + 7] = 0, [500, -500, 500, 2]
    x[1, 2, n + 9 : n + 17] = [-500, 3, 1, 0, 0, 0, 0, 500]
    x[1, 4, n:] = rng.integers(-254, 255, 2 * n) / 2  # halves
    x[1, 4, n], x[1, 4, -1] = 127, -127
    for dtype in ("f32", "f16"):
        stored = x.astype(np.float16 if dtype == "f16" else np.float32)
        whole = send(device, stored, dtype, (3 * n, 20, 2))
        start = n * whole.nb[0] + whole.nb[1]
        part = View(whole.dtype, (2 * n, 19, 2, 1), whole.nb, start, whole.buffer)
        heads, codes = quantized(device, part, form)
        want = heads_and_codes(stored[:, 1:, n:].astype(np.float32), form)
        np.testing.assert_array_equal(codes, want[1])
        np.testing.assert_array_equal(heads, want[0])


@pytest.mark.parametrize("form", WEIGHTS)
def test_activations_of_extreme_sizes(form: str) -> None:
    """Scales are the cpu's where activations are tiny or too large for a scale in f16; codes are
    where scales are not 0."""
    device, rng, n = made("webgpu"), np.random.default_rng(2), find_dtype(form).block
    sizes = np.array([0, 1e-44, 1e-40, 1e-37, 1e-30, 3e-6, 4e-6, 1e-4, 8e6, 9e6, 1e30, 3e38])
    x = rng.uniform(-1, 1, (len(sizes), n)).astype(np.float32)
    x[:, 7] = -1
    x = (x * sizes[:, None]).astype(np.float32)
    heads, codes = quantized(device, send(device, x, "f32", (n, len(sizes))), form)
    want, want_codes = heads_and_codes(x, form)
    scale, near = heads[:, 0].view(np.float32), want[:, 0].view(np.float32)
    np.testing.assert_array_equal(np.where(np.abs(near) < 2.0**-126, 0, near), scale)
    counts = scale != 0
    np.testing.assert_array_equal(codes[counts], want_codes[counts])
    np.testing.assert_array_equal(heads[counts, 1], want[counts, 1])


SUMS = {"q4_1": 2, "q5_1": 2, "q2_K": 4, "q3_K": 2, "q4_K": 2, "q5_K": 2, "q6_K": 2}
"""Sums of floats for each unit, where there are several."""
CODE_PLANES = {"q4_1": (0,), "q5_1": (0, 1), "q2_K": (0,), "q4_K": (0,), "q5_K": (0, 2)}
"""The planes of formats with minima that have codes."""


def stored_blocks(dtype: str, planes: NDArray[np.uint8], *, minima: bool = False) -> Any:
    """The blocks of planes, as files have them; with `minima` all codes are 0."""
    parts, at, n = [], 0, planes.size // find_dtype(dtype).bytes
    for i, (width, count) in enumerate(FORMATS[dtype].planes):
        part = planes[at : at + n * count * width].reshape(n, count, width).copy()
        at += part.size
        if minima and i in CODE_PLANES[dtype]:
            part[:] = 0
        parts.append(part)
    return np.concatenate(FORMATS[dtype].blocks(*parts), axis=1)


@pytest.mark.parametrize(
    "dtype", share("devices", [(d,) for d in CODES], [("q4_0",), ("q4_1",), ("q6_K",)])
)
def test_products_of_the_cpu(dtype: str) -> None:
    """Those of a unit to the bit, where floats are not added; of more units within the stated
    bound of either sum."""
    device, rng, kind = made("webgpu"), np.random.default_rng(5), find_dtype(dtype)
    for inner, columns in ((kind.block, 3), (1024, 3), (1024, 12)):
        planes, values = weights_in_planes(dtype, (inner, ROWS), rng)
        x = rng.standard_normal((columns, inner)).astype(np.float32)
        w = send(device, planes.buffer, dtype, planes.ne, layout="planes")
        got = product(device, w, send(device, x, "f32", (inner, columns)))
        stored = stored_blocks(dtype, planes.buffer).reshape(ROWS, -1)
        factors = weft.constant(stored, "w", dtype), weft.input("x", (columns, inner), "f32")
        graph = weft.Graph(mul_mat(*factors).as_output("y"))
        session = weft.Session(weft.compile(graph, [make_backend("cpu", n_threads=1)]))
        want = session.run({"x": x})["y"]
        if inner == 32 and dtype not in SUMS:
            np.testing.assert_array_equal(got, want)
            continue
        size = np.abs(values)
        if dtype in CODE_PLANES:
            blocks = stored_blocks(dtype, planes.buffer, minima=True)
            least = quants.decode(blocks, kind).reshape(values.shape)
            size = np.abs(values - least) + np.abs(least)
        roundings = SUMS.get(dtype, 1) * inner / 32 + 5
        terms = (np.abs(x) + np.abs(x).max() / 127) @ size.T
        assert (np.abs(got - want) <= 2 * roundings * terms / 2**24).all()


@pytest.mark.parametrize("columns", [3, 12])
def test_matrices_serve_several(columns: int) -> None:
    """Random scales, matrices of weights that several of the activations meet, and a bias; sums
    have the stated bound, and do not depend on how many columns there are."""
    device, rng = made("webgpu"), np.random.default_rng(2)
    planes, values = weights_in_planes("q4_0", (288, ROWS, 2), rng)
    w = send(device, planes.buffer, "q4_0", planes.ne, layout="planes")
    x = rng.standard_normal((3, 4, columns, 288)).astype(np.float32)
    bias = rng.standard_normal(ROWS).astype(np.float32)
    got = product(device, w, send(device, x, "f32", (288, columns, 4, 3)),
                  send(device, bias, "f32", (ROWS,)))  # fmt: skip
    codes, scale = as_bytes(x)
    near = (codes.reshape(*scale.shape, 32) * scale[..., None].astype(np.float64)).reshape(x.shape)
    wide = values.repeat(2, 0).astype(np.float64)
    want = np.einsum("abck,bmk->abcm", near, wide) + bias
    size = np.einsum("abck,bmk->abcm", np.abs(near), np.abs(wide)) + np.abs(bias)
    assert (np.abs(got - want) <= size * 32 / 2**24).all()
    fewer = send(device, x[..., : columns - 1, :], "f32", (288, columns - 1, 4, 3))
    alone = product(device, w, fewer, send(device, bias, "f32", (ROWS,)))
    np.testing.assert_array_equal(got[..., : columns - 1, :], alone)


@pytest.mark.parametrize("columns", [3, 12])
def test_numbers_that_are_not_finite(columns: int) -> None:
    """A NaN or an infinity among activations is one in every result of its column, nowhere else."""
    device, rng = made("webgpu"), np.random.default_rng(3)
    planes, _ = exact_weights("q4_0", (288, ROWS), rng)
    w = send(device, planes, "q4_0", (288, ROWS), layout="planes")
    x = rng.standard_normal((columns, 288)).astype(np.float32)
    want = product(device, w, send(device, x, "f32", (288, columns)))
    for bad in (np.nan, np.inf):
        spoiled = x.copy()
        spoiled[1, 40] = bad
        got = product(device, w, send(device, spoiled, "f32", (288, columns)))
        assert not np.isfinite(got[1]).any()
        keep = np.arange(columns) != 1
        np.testing.assert_array_equal(got[keep], want[keep])


@pytest.mark.parametrize("name", share("devices", DEVICES, ("webgpu",)))
def test_experts_and_a_sum(name: str) -> None:
    """MUL_MAT_ID, where ids are a part of longer rows; MUL_MAT and ADD at once."""
    device, rng = made(name), np.random.default_rng(4)
    planes, values = exact_weights("q4_0", (32, ROWS, 3), rng)
    w = send(device, planes, "q4_0", (32, ROWS, 3), layout="planes")
    x = whole_numbers((5, 2, 32), rng)
    chosen = rng.integers(0, 3, (5, 4)).astype(np.int32)
    whole = send(device, chosen, "i32", (4, 5))
    ids = View(whole.dtype, (2, 5, 1, 1), whole.nb, 4, whole.buffer)
    d = send(device, np.full((5, 2, ROWS), np.nan, np.float32), "f32", (ROWS, 2, 5))
    sent = send(device, x, "f32", (32, 2, 5))
    call = Call("MUL_MAT_ID", d, (w, sent, ids), None, device.limits)
    run(device, PRODUCTS.launches["MUL_MAT_ID"](call))
    want = np.einsum("tsk,tsmk->tsm", x, values[chosen[:, 1:3]])
    np.testing.assert_array_equal(fetch(device, d)[0], want)

    first, _ = exact_weights("q4_0", (32, ROWS), rng)
    one = send(device, first, "q4_0", (32, ROWS), layout="planes")
    columns = send(device, x[:1, :1], "f32", (32, 1))
    y, total = (send(device, np.zeros(ROWS, np.float32), "f32", (ROWS, 1)) for _ in range(2))
    other = rng.integers(-9, 9, ROWS).astype(np.float32)
    calls = (
        Call("MUL_MAT", y, (one, columns), None, device.limits),
        Call("ADD", total, (y, send(device, other, "f32", (ROWS, 1))), None, device.limits),
    )
    run(device, PRODUCTS.joined["MUL_MAT", "ADD"](*calls))
    got = fetch(device, y)[0, 0, 0]
    assert got.any()
    np.testing.assert_array_equal(fetch(device, total)[0, 0, 0], got + other)


def test_who_computes_with_bytes() -> None:
    """WebGPU always, OpenCL on processors where it is asked to; activations may stay floats
    everywhere."""
    by_default = {"webgpu": PRODUCTS, "opencl": NO_OWN}
    for name, device in DEVICES.items():
        assert device().own is by_default[name]
        assert bool(device().layouts) == (name == "webgpu")
        assert not device(activations="f32").layouts
        assert device(planes=True, activations="f32", limits=LIMITS).own is NO_OWN
        assert device(planes=True, activations="native", limits=LIMITS).own is PRODUCTS
        with pytest.raises(DeviceError, match="activations must be 'native' or 'f32', got 'i8'"):
            make_backend(name, activations="i8")


def test_groups_that_do_not_fit() -> None:
    limits = made("webgpu").limits
    assert fits(limits) and fits(replace(limits, tile=64, lanes=32, rows=4, local_bytes=16 << 10))
    assert not fits(replace(limits, tile=64, local_bytes=8 << 10))
    assert not fits(replace(limits, tile=64, max_group=128))
    assert not fits(replace(limits, element_items=4))


def test_the_option_reaches_devices() -> None:
    """By name, with or without a cpu beside them; the cpu's other options do not."""
    made("opencl")
    (device,) = resolve_devices(["opencl"], activations="f32")
    assert getattr(device, "activations", "") == "f32"
    device, cpu = resolve_devices(["opencl", "cpu"], activations="f32", n_threads=1)
    assert [getattr(b, "activations", "") for b in (device, cpu)] == ["f32", "f32"]
    for options in ({"activations": "bf16"}, {"activations": "f32", "n_threads": 1}):
        with pytest.raises(ArgumentError, match="no device takes the option"):
            resolve_devices(["opencl"], **options)
    assert made("opencl").activations == "native"


def test_products_of_four_bytes_that_a_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions for them belong to OpenCL C 3.0; other programs are built as ever."""
    device = opencl()
    seen: dict[str, list[str]] = {}

    def build(self: Programs, file: str, source: str, options: list[str]) -> None:
        seen[file] = options
        raise DeviceError("not here")

    monkeypatch.setattr(Programs, "build", build)
    monkeypatch.setattr(builds, "kept", lambda path: b"")
    for features in ((), ("dot4",)):
        programs = Programs(device.driver.context, replace(device.device, features=features))
        for file in ("gemv.cl", "norm.cl"):
            with pytest.raises(DeviceError, match="not here"):
                programs.kernel(file, (), "none")
            newer = file == "gemv.cl" and bool(features)
            assert seen[file][0] == f"-cl-std=CL{'3.0' if newer else '1.2'}"
