"""Attention as GPUs compute it, on the devices of this machine, against NumPy in double."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backends.cuda_kernels import LIMITS
from tests.backends.opencl_device import opencl
from tests.backends.test_cuda_attention import _want
from tests.backends.webgpu_device import webgpu
from weft import quants
from weft.backends.kernels import KernelBackend
from weft.backends.kernels.launch import Call, Launch, Scratch, Table, View, pieces
from weft.backends.kernels.ops.attention import _attention, _parts
from weft.dtype import find_dtype
from weft.graph.ops.attention import FlashAttnParams

Array = np.ndarray[Any, Any]
BOUND = 1e-6
"""Of the mean square error, relative to that of the values."""


@pytest.fixture(scope="module", params=["opencl", "webgpu"])
def device(request: pytest.FixtureRequest) -> KernelBackend:
    return opencl() if request.param == "opencl" else webgpu()


class Device:
    """Runs launches of kernels on arrays."""

    def __init__(self, backend: KernelBackend, **limits: int) -> None:
        self.driver, self.memory = backend.driver, backend.memory_type
        self.limits = replace(backend.limits, part_cells=64, wide=False, **limits)
        self.files: list[str] = []
        self.scratch = 0
        self._blocks: list[Any] = []

    def put(self, data: Array, dtype: str, ne: tuple[int, ...]) -> View:
        """A tensor without gaps."""
        block = self.memory.allocate(max(data.nbytes, 4))
        block.write(0, np.ascontiguousarray(data).reshape(-1).view(np.uint8))
        self._blocks.append(block)
        kind = find_dtype(dtype)
        nb = [kind.bytes, kind.row_bytes(ne[0])]
        for n in ne[1:3]:
            nb.append(nb[-1] * n)
        return View(kind, ne, tuple(nb), 0, block.buffer)

    def cache(self, values: Array, dtype: str) -> tuple[View, Array]:
        """A tensor of the type, and the values that it has."""
        kind, ne = find_dtype(dtype), values.shape[::-1]
        rounded = values.astype(np.float32)
        stored = quants.encode(rounded, kind) if kind.is_quantized else None
        if stored is None:
            stored = quants.to_storage(rounded, kind)
        view = self.put(stored, dtype, ne)
        return view, np.asarray(quants.decode(stored, kind)).reshape(values.shape)

    def run(self, call: Call) -> Array:
        """The result of a step of f32."""
        launches = _attention(call)
        self.files = [launch.file for launch in launches]
        between = [arg for launch in launches for arg in launch.args if isinstance(arg, Scratch)]
        self.scratch = between[0].nbytes if between else 0
        for launch in launches:
            kernel = self.driver.kernel(launch.file, launch.defines, launch.kernel)
            kernel.bind(self._args(launch))
            for grid, start in pieces(launch, self.limits.max_groups):
                self.driver.launch(*self.driver.prepared(kernel, grid, launch.group, start))
        n = 4 * call.dst.n_elements
        data = self.driver.read_bytes(call.dst.buffer, call.dst.at, n).view(np.float32)
        return data.reshape(call.dst.ne[::-1])

    def _args(self, launch: Launch) -> list[Any]:
        args: list[Any] = []
        for arg in launch.args:
            if isinstance(arg, View):
                args += [arg.buffer, arg.packed]
            elif isinstance(arg, Scratch):
                args.append(self.driver.scratch(arg.slot, arg.nbytes))
            else:
                args.append(self.driver.table(arg.data) if isinstance(arg, Table) else arg)
        return args


def nmse(got: Array, want: Array) -> float:
    return float(np.square(got - want).sum() / np.square(want).sum())


def attend(
    device: Device,
    tokens: int,
    cells: int,
    types: tuple[str, str] = ("f16", "f16"),
    *,
    heads: tuple[int, int] = (4, 2),
    sizes: tuple[int, int] = (64, 64),
    batches: tuple[int, int] = (1, 1),
    masks: tuple[int, int] | None = (1, 1),
    mask_type: str = "f16",
    sinks: bool = False,
    **more: float,
) -> tuple[Array, Array]:
    """What the kernels give and what is wanted. `masks`: of heads and of batches. The second of
    more than two tokens sees no cell."""
    rng = np.random.default_rng(tokens + cells)
    values = rng.standard_normal((batches[0], tokens, heads[0], sizes[0])).astype(np.float32)
    q, plain = values.swapaxes(1, 2), device.put(values, "f32", values.shape[::-1])
    query = View(  # heads of a token lie side by side, as projections leave them
        plain.dtype, q.shape[::-1], (4, plain.nb[2], plain.nb[1], plain.nb[3]), 0, plain.buffer
    )
    k, keys = device.cache(rng.standard_normal((batches[1], heads[1], cells, sizes[0])), types[0])
    v, found = device.cache(rng.standard_normal((batches[1], heads[1], cells, sizes[1])), types[1])
    mask = view = None
    if masks is not None:
        visible = np.tri(tokens, cells, cells - tokens, dtype=bool)[None, None]
        shape = (masks[1], masks[0], tokens, cells)
        mask = np.where(visible, -rng.uniform(0, 2, shape), -np.inf)
        if tokens > 2:
            mask[:, :, 1] = -np.inf
        view, mask = device.cache(mask, mask_type)
        mask = np.tile(mask, (batches[0] // masks[1], heads[0] // masks[0], 1, 1)).astype(float)
    sink = rng.standard_normal(heads[0]).astype(np.float32) if sinks else None
    p = FlashAttnParams(**{"scale": 0.125, "max_bias": 0.0, "logit_softcap": 0.0, **more})
    shape = (batches[0], tokens, heads[0], sizes[1])
    d = device.put(np.full(shape, np.nan, np.float32), "f32", shape[::-1])
    extra = view, None if sink is None else device.put(sink, "f32", (heads[0], 1, 1, 1))
    got = device.run(Call("FLASH_ATTN_EXT", d, (query, k, v, *extra), p, device.limits))
    return got, _want(q, keys, found, mask, p, sink)


@pytest.mark.parametrize("cells", [1, 7, 64, 65, 300])
def test_sizes_of_caches(device: KernelBackend, cells: int) -> None:
    on = Device(device)
    got, want = attend(on, 1, cells)
    assert on.files == ["flash.cl"] * (1 if cells <= 64 else 2)
    assert nmse(got, want) < BOUND


@pytest.mark.parametrize(("parts", "cells"), [(2, 128), (5, 300)])
def test_parts(device: KernelBackend, parts: int, cells: int) -> None:
    """Their results and ends fill the memory between the two kernels."""
    on = Device(device)
    got, want = attend(on, 3, cells, masks=(4, 1), sinks=True, max_bias=8.0)
    assert on.scratch == 4 * 2 * (3 * 2) * parts * (64 + 2)
    assert nmse(got, want) < BOUND


def test_grids_in_pieces(device: KernelBackend) -> None:
    got, want = attend(Device(device, max_groups=1), 3, 300, batches=(2, 2))
    assert nmse(got, want) < BOUND


def test_tokens_that_see_nothing(device: KernelBackend) -> None:
    """They have zeros, in one part and in several."""
    for few in (0, 8):
        got, _ = attend(Device(device, few=few), 4, 300)
        assert not got[:, 1].any() and got[:, [0, 2, 3]].all()


def alone_and_together(device: Device, tokens: int) -> tuple[Array, Array]:
    """The results of a token alone, and of the same token behind `tokens` - 1 others."""
    rng = np.random.default_rng(tokens)
    q = rng.standard_normal((1, 4, tokens, 64)).astype(np.float32)
    k, v = (device.cache(rng.standard_normal((1, 2, 300, 64)), "f16")[0] for _ in range(2))
    p, results = FlashAttnParams(0.125, 0.0, 0.0), []
    for part in (np.ascontiguousarray(q[:, :, -1:]), q):
        d = device.put(
            np.zeros((1, part.shape[2], 4, 64), np.float32), "f32", (64, 4, part.shape[2], 1)
        )
        query = device.put(part, "f32", part.shape[::-1])
        call = Call("FLASH_ATTN_EXT", d, (query, k, v), p, device.limits)
        results.append(device.run(call)[:, -1])
    return results[0], results[1]


def test_a_token_beside_others(device: KernelBackend) -> None:
    """It has the same result beside others of the same tile."""
    alone, together = alone_and_together(Device(device), 4)
    np.testing.assert_array_equal(alone, together)
    in_order, _ = alone_and_together(Device(device, few=0), 4)  # in one part, not five
    np.testing.assert_allclose(alone, in_order, rtol=0, atol=1e-6 * float(np.abs(alone).max()))


def test_a_prompt() -> None:
    """Two tiles of 16 rows, the second with fewer, over several batches. On one of the devices:
    PoCL compiles these tiles for ten seconds."""
    on = Device(webgpu(), few=0, local_bytes=15 << 10)
    more: Any = {"heads": (6, 3), "batches": (4, 2), "masks": (2, 2), "sinks": True}
    got, want = attend(on, 9, 65, mask_type="f32", max_bias=8.0, **more)
    assert on.files == ["flash.cl"]
    assert nmse(got, want) < BOUND


# ---- more types and sizes ------------------------------------------------------------------------


@pytest.mark.part("devices")
def test_long_prompts(device: KernelBackend) -> None:
    """Tiles of 32 rows; a token in one differs from itself alone by rounding only."""
    got, want = attend(Device(device, few=0), 40, 65)
    assert nmse(got, want) < BOUND
    for few in (0, 8):
        alone, together = alone_and_together(Device(device, few=few), 40)
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6 * float(np.abs(alone).max()))


@pytest.mark.part("devices")
@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("q8_0", "q4_0"), ("f32", "bf16")])
def test_types_of_caches(device: KernelBackend, types: tuple[str, str]) -> None:
    got, want = attend(Device(device), 3, 70, types)
    assert nmse(got, want) < BOUND


@pytest.mark.part("devices")
@pytest.mark.parametrize("sizes", [(72, 40), (576, 512)])
def test_sizes_of_heads(device: KernelBackend, sizes: tuple[int, int]) -> None:
    got, want = attend(Device(device), 2, 70, sizes=sizes, masks=None, logit_softcap=5.0)
    assert nmse(got, want) < BOUND


# ---- what it leaves to other kernels -------------------------------------------------------------


def test_other_calls_are_left_to_other_kernels() -> None:
    def file(
        size: int = 64, heads: int = 2, cells: int = 8, dtype: str = "f32", **limits: int
    ) -> str:
        def tensor(*ne: int, t: str = "f32") -> View:
            kind = find_dtype(t)
            nb = (kind.bytes, ne[0] * kind.bytes, ne[0] * ne[1] * 4, ne[0] * ne[1] * ne[2] * 4)
            return View(kind, ne, nb, 0, None)

        q, d = tensor(size, 1, 4, 1, t=dtype), tensor(size, 4, 1, 1)
        k, v = tensor(size, cells, 2, 1), tensor(size, cells, heads, 1)
        p = FlashAttnParams(0.125, 0.0, 0.0)
        changed = replace(LIMITS, **{"part_cells": 256, **limits})
        return _attention(Call("FLASH_ATTN_EXT", d, (q, k, v), p, changed))[0].file

    assert file() == file(576) == "flash.cl"
    assert file(part_cells=0) == "attention.cl"  # a processor
    assert file(max_group=32) == file(local_bytes=8 << 10) == "attention.cl"
    assert file(640) == "attention.cl"  # more than registers hold
    assert file(heads=4) == "attention.cl"  # keys and values are not shared alike
    assert file(dtype="f16") == "attention.cl"


def test_parts_fill_a_device() -> None:
    """As many as a device has room for, in order of cells that are read at once."""
    assert [_parts(n, 8, 256) for n in (1, 256, 257, 1 << 20)] == [1, 1, 2, 64]
    assert _parts(4096, 600, 256) == 1
