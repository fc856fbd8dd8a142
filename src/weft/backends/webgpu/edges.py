"""Bytes within words: a kernel puts them into their word, beside what is there.

The library copies whole words from the host. Reading a word back to fill it up would let the host
wait for the device, e.g. for each mask of f16 with an odd number of elements."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.backends.webgpu.arguments import WINDOW, Arguments
from weft.backends.webgpu.launches import Bound, Dispatch
from weft.backends.webgpu.pipelines import Pipeline, Pipelines

_BOUND = 256
"""Bytes around a word that are bound; they begin where every device allows."""
_CODE = """
@group(0) @binding(0) var<storage, read> arguments: array<u32>;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;
@compute @workgroup_size(1) fn main() {
  let i = arguments[0];
  words[i] = (words[i] & ~arguments[1]) | arguments[2];
}"""


class Edge(NamedTuple):
    """Some bytes of a word, the bits of `mask`."""

    offset: int
    mask: int
    value: int


def split(offset: int, data: NDArray[np.uint8]) -> tuple[list[Edge], int, NDArray[np.uint8]]:
    """Bytes for an offset as those in words of which they are a part, and the whole words between
    with their offset."""
    start, end = offset // 4 * 4, -(-(offset + data.nbytes) // 4) * 4
    if end - start == data.nbytes:
        return [], offset, np.ascontiguousarray(data)
    whole, mask = np.zeros((2, end - start), np.uint8)
    whole[offset - start : offset - start + data.nbytes] = data
    mask[offset - start : offset - start + data.nbytes] = 255
    masks, values = mask.view("<u4"), whole.view("<u4")
    edges = [
        Edge(start + 4 * i, int(masks[i]), int(values[i]))
        for i in sorted({0, len(masks) - 1})
        if masks[i] != 0xFFFFFFFF
    ]
    first = start + 4 * (bool(edges) and edges[0].offset == start)
    last = end - 4 * (bool(edges) and edges[-1].offset == end - 4)
    return edges, first, whole[first - start : max(last - start, first - start)]


class Edges:
    """Makes the launches of that kernel. Callers hold the device's lock."""

    def __init__(self, device: Any, pipelines: Pipelines, arguments: Arguments) -> None:
        self._device = device
        self._layouts = pipelines.layout
        self._arguments = arguments
        self._pipeline = Pipeline(self._build)

    def _build(self) -> Any:
        module = self._device.create_shader_module(code=_CODE)
        return self._device.create_compute_pipeline(
            layout=self._layouts(1)[1], compute={"module": module, "entry_point": "main"}
        )

    def ready(self, buffer: Any, edge: Edge) -> Dispatch:
        """The launch that writes an edge."""
        at = edge.offset // _BOUND * _BOUND
        words = struct.pack("<3I", (edge.offset - at) // 4, edge.mask, edge.value)
        slot = self._arguments.slot(words)
        resources = [
            {"buffer": slot.buffer, "offset": 0, "size": WINDOW},
            {"buffer": buffer, "offset": at, "size": min(_BOUND, buffer.size - at)},
        ]
        group = self._device.create_bind_group(
            layout=self._layouts(1)[0],
            entries=[{"binding": i, "resource": r} for i, r in enumerate(resources)],
        )
        return Dispatch(self._pipeline, Bound(group, (buffer,)), slot, (1, 1, 1))
