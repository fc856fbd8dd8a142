"""Kernels of NORM_SCALE and GLU that leave their results as bytes, too: the floats have the bits of
the plain kernels, the bytes those of the kernel that makes nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backends.kernel_run import fetch, send
from tests.backends.test_products_of_bytes import made
from tests.shares import share
from weft.backends.kernels import KernelBackend
from weft.backends.kernels.launch import Call, Launch, Scratch, View
from weft.backends.kernels.ops import find_family
from weft.backends.kernels.ops.feeding import glu, norm_scale, quantized
from weft.dtype import find_dtype
from weft.graph.ops import GluOp, GluParams, NormScaleParams

WEIGHTS = {"q8_0": "q4_0", "q8_1": "q4_1", "q8_K": "q4_K"}
"""Weights that meet each form of activations."""
ROWS = (3, 5)


def run(device: KernelBackend, launches: list[Launch] | None, nbytes: int) -> Any:
    """Runs launches; the bytes that they leave in scratch memory."""
    assert launches is not None
    driver, to = device.driver, device.driver.create(nbytes)
    for launch in launches:
        kernel, args = driver.kernel(launch.file, launch.defines, launch.kernel), list[Any]()
        for arg in launch.args:
            if isinstance(arg, View):
                args += [arg.buffer, arg.packed]
            else:
                args.append(to if isinstance(arg, Scratch) else arg)
        kernel.bind(args)
        driver.launch(*driver.prepared(kernel, launch.grid, launch.group, None))
    return driver.read_bytes(to, 0, nbytes)


def both_ways(device: KernelBackend, call: Call, fed: Any, n: int) -> None:
    """Compares a launch with the plain one and what makes bytes of its result."""
    nbytes = 40 * (n // 32) * ROWS[0] * ROWS[1]
    family = find_family(call.op)
    assert family is not None
    got = run(device, fed(call), nbytes)
    floats = fetch(device, call.dst)
    device.driver.clear(call.dst.buffer, 4 * call.dst.n_elements)
    run(device, family.launches(call), nbytes)
    plain = fetch(device, call.dst)
    np.testing.assert_array_equal(floats.view(np.uint32), plain.view(np.uint32))
    assert plain.any() and call.feeds is not None
    launch, _ = quantized(call, call.dst, call.feeds)
    np.testing.assert_array_equal(got, run(device, [launch], nbytes))


def sent(device: KernelBackend, n: int, rng: np.random.Generator) -> View:
    x = rng.standard_normal((ROWS[1], ROWS[0], n)).astype(np.float32)
    return send(device, x, "f32", (n, *ROWS))


@pytest.mark.parametrize("form", WEIGHTS)
@pytest.mark.parametrize("name", share("devices", ["webgpu", "opencl"], ("webgpu",)))
def test_a_scaled_norm(name: str, form: str) -> None:
    """Centred, with a bias and an addend: fewer elements than a group takes at once, and more."""
    device, rng = made(name), np.random.default_rng(1)
    limits = replace(device.limits, row_items=64)
    for n in (256, 768) if form == "q8_K" else (96, 320):
        x, addend = sent(device, n, rng), sent(device, n, rng)
        d = send(device, np.zeros((*ROWS[::-1], n), np.float32), "f32", (n, *ROWS))
        w, b = (send(device, rng.standard_normal(n).astype(np.float32), "f32", (n,)) for _ in "wb")
        weights = find_dtype(WEIGHTS[form])
        call = Call(
            "NORM_SCALE", d, (x, w, b, addend), NormScaleParams(1e-5, True), limits, weights
        )
        both_ways(device, call, norm_scale, n)


@pytest.mark.parametrize("form", WEIGHTS)
@pytest.mark.parametrize("name", share("devices", ["webgpu", "opencl"], ("webgpu",)))
def test_a_gated_unit(name: str, form: str) -> None:
    """Of two tensors, and of the halves of one."""
    device, rng = made(name), np.random.default_rng(2)
    n = 256 if form == "q8_K" else 96
    whole, x, gate = (sent(device, size, rng) for size in (2 * n, n, n))
    d = send(device, np.zeros((*ROWS[::-1], n), np.float32), "f32", (n, *ROWS))
    for sources, swapped in (((x, gate), False), ((whole,), True)):
        params = GluParams(GluOp.SWIGLU, swapped, 1.0, 7.0)
        call = Call("GLU", d, sources, params, device.limits, find_dtype(WEIGHTS[form]))
        both_ways(device, call, glu, n)


def test_what_has_no_bytes() -> None:
    """Results that no product reads, rows of parts of blocks, other types, and groups that are too
    small for a block."""
    device, rng = made("webgpu"), np.random.default_rng(3)
    q4_0, q4_k = find_dtype("q4_0"), find_dtype("q4_K")
    x = sent(device, 96, rng)
    call = Call("GLU", x, (x, x), GluParams(GluOp.SWIGLU, False, 1.0, 7.0), device.limits, q4_0)
    assert glu(call) is not None
    assert glu(call._replace(feeds=None)) is None
    assert glu(call._replace(feeds=q4_k)) is None
    assert glu(call._replace(dst=send(device, np.zeros(96, np.float16), "f16", (96,)))) is None
    wide = sent(device, 256, rng)
    params = NormScaleParams(1e-5, False)
    limits = replace(device.limits, row_items=16)
    norm = Call("NORM_SCALE", wide, (wide, wide), params, limits, q4_0)
    assert norm_scale(norm) is not None
    assert norm_scale(norm._replace(feeds=q4_k)) is None
