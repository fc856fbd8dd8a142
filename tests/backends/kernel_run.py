"""Runs launches of kernels on a device: arrays there and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels import KernelBackend
from weft.backends.kernels.launch import Launch, Scratch, Slot, View, pieces
from weft.dtype import find_dtype


def send(
    device: KernelBackend, array: NDArray[Any], dtype: str, ne: Sequence[int], **more: Any
) -> View:
    """A tensor without gaps that has an array's bytes, in a buffer of its own."""
    kind = find_dtype(dtype)
    ne = (*ne, *[1] * (4 - len(ne)))
    nb = [kind.bytes, kind.row_bytes(ne[0])]
    for n in ne[1:3]:
        nb.append(nb[-1] * n)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    buffer = device.driver.create(data.nbytes)
    device.driver.write(buffer, 0, data)
    return View(kind, ne, tuple(nb), 0, buffer, **more)


def run(device: KernelBackend, launches: list[Launch] | None) -> None:
    """Runs launches; scratch memory begins with bytes that no kernel wrote."""
    assert launches is not None
    driver, scratch = device.driver, dict[int, Any]()
    for launch in launches:
        kernel = driver.kernel(launch.file, launch.defines, launch.kernel)
        args: list[Any] = []
        for arg in launch.args:
            if isinstance(arg, View):
                args += [arg.buffer, arg.packed]
            elif isinstance(arg, Scratch):
                if arg.slot not in scratch:
                    scratch[arg.slot] = driver.create(arg.nbytes)
                    driver.write(scratch[arg.slot], 0, np.full(arg.nbytes, 0xFF, np.uint8))
                args.append(scratch[arg.slot])
            elif arg is Slot.FAULT:
                args.append(driver.fault)
            elif arg is Slot.STEP:
                args.append((0).to_bytes(4, "little"))
            else:
                args.append(arg)
        kernel.bind(args)
        for grid, start in pieces(launch, device.limits.max_groups):
            driver.launch(*driver.prepared(kernel, grid, launch.group, start))
    driver.wait()


def fetch(device: KernelBackend, view: View, dtype: Any = np.float32) -> NDArray[Any]:
    """The elements of a tensor without gaps, the outermost dimension first."""
    data = device.driver.read_bytes(view.buffer, view.at, view.n_elements * view.nb[0])
    return data.view(dtype).reshape(view.ne[::-1])
