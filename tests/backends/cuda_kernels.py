"""Runs launches of CUDA kernels on arrays of this process, through the shim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cuda_shim import compile_shim, compiler
from weft import quants
from weft.backends.cuda.assembly import source_of
from weft.backends.kernels.launch import Call, Launch, Limits, Scratch, Slot, Table, View
from weft.backends.kernels.planes import FORMATS
from weft.dtype import find_dtype

Array = NDArray[Any]

LIMITS = Limits(
    element_items=64, row_items=32, lanes=32, rows=4, columns=4, tile=32, cells=32,
    attention_items=32, wide=False, local_bytes=48 << 10, max_group=1024,
)  # fmt: skip


@cache
def _kernels(file: str, defines: tuple[str, ...]) -> Any:
    return compile_shim(source_of(file, defines), defines)


def view(array: Array, dtype: str, ne: Sequence[int], **more: Any) -> View:
    """A tensor without gaps over an array's memory."""
    kind = find_dtype(dtype)
    ne = (*ne, *[1] * (4 - len(ne)))
    nb = [kind.bytes, kind.row_bytes(ne[0])]
    for n in ne[1:3]:
        nb.append(nb[-1] * n)
    return View(kind, ne, tuple(nb), 0, array, **more)


def put(values: Array, dtype: str = "f32") -> View:
    """A tensor of floats with the sizes of an array, outermost first there."""
    stored = quants.to_storage(np.ascontiguousarray(values, np.float32), find_dtype(dtype))
    return view(np.ascontiguousarray(stored), dtype, values.shape[::-1])


def run(launches: list[Launch] | None, fault: Array | None = None) -> None:
    """Runs launches; scratch memory begins with bytes that no kernel wrote."""
    if compiler() is None:
        pytest.skip("no g++ to compile kernels for this processor")
    assert launches is not None
    sizes: dict[int, int] = {}
    for arg in (a for launch in launches for a in launch.args if isinstance(a, Scratch)):
        sizes[arg.slot] = max(sizes.get(arg.slot, 0), arg.nbytes)
    scratch = {slot: np.full(n, 0xFF, np.uint8) for slot, n in sizes.items()}
    for launch in launches:
        args: list[Array | bytes] = []
        for arg in launch.args:
            if isinstance(arg, View):
                args += [arg.buffer, arg.packed]
            elif isinstance(arg, Scratch):
                args.append(scratch[arg.slot])
            elif isinstance(arg, Table):
                args.append(np.frombuffer(arg.data, np.uint8))
            elif arg is Slot.FAULT:
                args.append(np.zeros(6, np.int32) if fault is None else fault)
            elif arg is Slot.STEP:
                args.append((0).to_bytes(4, "little"))
            else:
                args.append(arg)
        kernels = _kernels(launch.file, launch.defines)
        kernels.launch(launch.kernel, launch.grid, launch.group, args)


def call(op: str, dst: View, *src: View | None, params: Any = None) -> Call:
    """A step."""
    return Call(op, dst, src, params, LIMITS)


_HALVES = {
    "q4_0": (1, 1), "q4_1": (1, 2), "q5_0": (2, 1), "q5_1": (2, 2), "q8_0": (2, 1),
    "iq4_nl": (1, 1), "q2_K": (2, 2), "q3_K": (3, 1), "q4_K": (1, 2), "q5_K": (1, 2),
    "q6_K": (3, 1), "iq4_xs": (1, 1),
}  # fmt: skip
"""The plane of a format that begins with numbers of 16 bits, and how many these are."""


def weights_in_planes(
    dtype: str, ne: Sequence[int], rng: np.random.Generator
) -> tuple[View, NDArray[np.float32]]:
    """Random weights in planes, and their values `ne[::-1]`."""
    kind = find_dtype(dtype)
    n_blocks = int(np.prod(ne)) // kind.block
    parts = [
        rng.integers(0, 256, (n_blocks, count, width), np.uint8)
        for width, count in FORMATS[dtype].planes
    ]
    if dtype == "mxfp4":
        parts[1][:] = rng.integers(118, 126, parts[1].shape)
    else:
        plane, n = _HALVES[dtype]
        shape = (*parts[plane].shape[:2], n)
        scales = rng.uniform(0.001, 0.02, shape) * rng.choice([-1, 1], shape)
        parts[plane][..., : 2 * n] = scales.astype(np.float16).view(np.uint8)
    blocks = np.concatenate(FORMATS[dtype].blocks(*parts), axis=1)
    values = quants.decode(blocks, kind).reshape(*ne[::-1]).astype(np.float32)
    planes = np.concatenate([part.reshape(-1) for part in parts])
    planes.flags.writeable = False
    return view(planes, dtype, ne, layout="planes"), values


def nmse(got: Array, want: Array) -> float:
    """The mean square of the difference over that of what is wanted."""
    a, b = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
    return float(np.square(a - b).mean() / np.square(b).mean())
