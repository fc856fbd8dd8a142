"""The lines of a profile: a step's name and op, its cost by its sizes, and its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import RecordsQueue
from weft.backends.cpu import Peaks
from weft.graph.tensor import Tensor
from weft.program import Program, StepSpec
from weft.records import dataclass
from weft.schedule.timing import work
from weft.tables import any_layer

Sizes = tuple[NDArray[np.float64], NDArray[np.float64]]

_TYPE_OF_RESULT = frozenset({"CPY", "SET_ROWS", "DUP", "CONT"})
"""Ops whose time depends on the type that they write; so does the time of ops that write blocks."""


@dataclass(slots=True)
class Line:
    """A step, or steps that were added up, over all runs."""

    op: str
    """Name of the op; `copies` between devices; `split` for several ops of a device that times
    whole splits only."""
    type: str
    """Type of the weights (or of the cache, or of the result); empty: float32."""
    device: str
    name: str = ""
    """The weight that is read, else the tensor that is computed."""
    roof: str = "f32"
    """The peak that limits it: `int8`, `f32` or `bf16`; empty where peaks are not known."""
    steps: int = 1
    """The number of steps that were added up."""
    calls: int = 0
    seconds: float = 0.0
    """Wall time in seconds. Steps that ran side by side share it in proportion to the time that
    they kept threads busy, so all lines add up to the time of the runs."""
    busy: float = 0.0
    """Thread-seconds of work; the threads spent the rest of `seconds` times threads waiting. 0
    where the device has no threads of the host."""
    nbytes: float = 0.0
    """Bytes that had to be read and written."""
    flops: float = 0.0
    """Operations, a multiply-add being two."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    def least_seconds(self, peaks: Peaks) -> tuple[float, str]:
        """The seconds at the machine's peak rates, and whether `memory` or `compute` sets them."""
        if not self.roof:
            return 0.0, ""
        roof = getattr(peaks, self.roof) or peaks.f32
        read, compute = self.nbytes / peaks.read, self.flops / roof
        return max(read, compute), "memory" if read >= compute else "compute"

    @property
    def label(self) -> str:
        """Op, type and name, such as `MUL_MAT q4_K blk.3.ffn_up.weight`."""
        return " ".join(word for word in (self.op, self.type, self.name) if word)

    @property
    def any_layer(self) -> str:
        """The name without the number of its layer (`weft.tables.any_layer`)."""
        return any_layer(self.name)

    def as_json(self, peaks: Peaks) -> dict[str, Any]:
        """Seconds, bytes and operations, and the place of the roofline."""
        least, bound = self.least_seconds(peaks)
        return {
            "op": self.op, "type": self.type, "device": self.device, "name": self.name,
            "steps": self.steps, "calls": self.calls, "seconds": self.seconds, "busy": self.busy,
            "bytes": self.nbytes, "flops": self.flops, "bytes_per_second": self.bandwidth,
            "flops_per_second": self.rate, "intensity": self.intensity, "roof": self.roof,
            "bound": bound, "of_roof": least / self.seconds if self.seconds else 0.0,
        }  # fmt: skip

    def add(self, other: Line) -> None:
        """Adds the times and costs of `other`."""
        self.steps += other.steps
        self.calls += other.calls
        self.seconds += other.seconds
        self.busy += other.busy
        self.nbytes += other.nbytes
        self.flops += other.flops


@dataclass(slots=True)
class SplitLines:
    """The steps of a split as nodes, and a line for each, before it runs."""

    device: str
    nodes: list[Tensor]
    lines: list[Line]
    whole: Line
    """The line that gets the time of the split where the device cannot time steps."""
    copies: Line
    sizes: dict[tuple[int, ...], Sizes] = field(default_factory=dict)
    """(bytes, operations) of each step by values of the symbols."""

    def sizes_at(self, program: Program, values: Mapping[str, int]) -> Sizes:
        """(bytes, operations) of each step with these values of the symbols."""
        key = tuple(values[name] for name in program.symbols)
        if key not in self.sizes:
            works = [work(node, values) for node in self.nodes]
            self.sizes[key] = (
                np.array([w.nbytes for w in works], np.float64),
                np.array([w.flops for w in works], np.float64),
            )
        return self.sizes[key]


def split_lines(program: Program, number: int) -> SplitLines:
    """The lines of split `number`."""
    spec = program.splits[number]
    nodes = [_node(program, step) for step in spec.steps]
    # peaks are measured with threads of the host
    far = any(d.name == spec.device and isinstance(d, RecordsQueue) for d in program.devices)
    names = [_weight(program, step) or n.name for n, step in zip(nodes, spec.steps, strict=True)]
    lines = [
        Line(n.op.name, _type(n), spec.device, name, "" if far else _roof(n))
        for n, name in zip(nodes, names, strict=True)
    ]
    kinds = {(line.op, line.type) for line in lines}
    op, type = kinds.pop() if len(kinds) == 1 else ("split", "")
    ends = [lines[0].name, lines[-1].name] if len(lines) > 1 else [x.name for x in lines]
    roof = "" if far else "f32"
    whole = Line(op, type, spec.device, " .. ".join(ends), roof, steps=len(nodes))
    copies = Line("copies", "", spec.device, f"to split {number}", roof)
    return SplitLines(spec.device, nodes, lines, whole, copies)


def _weight(program: Program, step: StepSpec) -> str:
    """The name of the weight that a step reads; empty where it reads none with a name."""
    for index in step.src:
        if index >= 0:
            spec = program.tensors[index]
            if spec.name and program.buffers[spec.buffer].usage == "weights":
                return spec.name
    return ""


def _node(program: Program, step: StepSpec) -> Tensor:
    """A step as a node, for `work`."""

    def tensor(index: int) -> Tensor | None:
        if index < 0:
            return None
        spec = program.tensors[index]
        return Tensor(spec.dtype, spec.ne, nb=spec.nb, name=spec.name)

    result = tensor(step.dst)
    assert result is not None
    result.op, result.params = step.op, step.params
    result.src = tuple(tensor(s) for s in step.src)
    return result


def _type(node: Tensor) -> str:
    """The type that decides the speed of an op."""
    first = node.src[0] if node.src else None
    if node.dtype.is_quantized or node.op.name in _TYPE_OF_RESULT or first is None:
        return node.dtype.name
    if node.op.name == "FLASH_ATTN_EXT" and node.src[1] is not None:
        return node.src[1].dtype.name
    return first.dtype.name


def _roof(node: Tensor) -> str:
    """The peak of a node: products of blocks run on 8-bit numbers, products of bf16 activations on
    bf16."""
    x = node.src[1] if len(node.src) > 1 and node.op.name.startswith("MUL_MAT") else None
    if x is not None and x.dtype.is_quantized:
        return "int8"
    return "bf16" if x is not None and x.dtype.name == "bf16" else "f32"
