"""`Profile`: where the time of runs goes, step by step, against what the machine reaches at best.

    with session.profile() as profile:
        session.run(inputs)
    print(profile)                       # a line an op and weight type
    profile.save_trace("trace.json")     # for ui.perfetto.dev or chrome://tracing

Devices that can say when each thread worked on each step (`record_spans`) get a line a step; of
others the time of a whole split is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.cpu import Peaks, measure_peaks
from weft.errors import ProgramError
from weft.execute.profile_table import profile_text
from weft.execute.profile_trace import Trace
from weft.graph.tensor import Tensor
from weft.program import Program, StepSpec
from weft.schedule.work import work

__all__ = ["Line", "Profile"]

_TYPE_OF_RESULT = frozenset({"CPY", "SET_ROWS", "QUANTIZE", "DUP", "CONT"})
"""Ops whose time follows from the type that they write."""


@dataclass(slots=True)
class Line:
    """A step, or steps that were added up; all runs together."""

    op: str
    """Name of the op; `copies` between devices; `split` where a device says no more."""
    type: str
    """Type of the weights (or of the cache, or what is written); empty: float32."""
    device: str
    name: str = ""
    """The weight that is read, else the tensor that is computed."""
    roof: str = "f32"
    """Whose peak counts: `int8`, `f32` or `bf16`."""
    steps: int = 1
    """Steps that were added up."""
    calls: int = 0
    seconds: float = 0.0
    """Wall time. Steps that ran side by side share their stage's time as they kept threads busy,
    so all lines add up to the time of the runs."""
    busy: float = 0.0
    """Thread-seconds of work; what is missing to `seconds` times threads was waiting."""
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
        """The time that the machine's peaks allow, and whether `memory` or `compute` sets it."""
        roof = getattr(peaks, self.roof) or peaks.f32
        read, compute = self.nbytes / peaks.read, self.flops / roof
        return max(read, compute), "memory" if read >= compute else "compute"

    def add(self, other: Line) -> None:
        """Adds up."""
        self.steps += other.steps
        self.calls += other.calls
        self.seconds += other.seconds
        self.busy += other.busy
        self.nbytes += other.nbytes
        self.flops += other.flops


@dataclass(slots=True)
class _Split:
    """What is known of a split before it runs: its steps as nodes, and a line each."""

    device: str
    nodes: list[Tensor]
    lines: list[Line]
    stages: tuple[tuple[int, int], ...]
    whole: Line
    """Takes the time of the split where the device knows no steps."""
    copies: Line
    sizes: dict[tuple[int, ...], tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict
    )
    """(bytes, operations) of each step by values of the symbols."""


class Profile:
    """Times, bytes and operations of everything that ran while it was recording."""

    def __init__(self, *, trace: bool | Trace = True, name: str = "") -> None:
        """`trace`: keep what `save_trace` needs, some 500 bytes a step, run and thread; or a
        timeline to which another profile adds, too. `name`: a title."""
        self.name = name
        self.runs = 0
        self.seconds = 0.0
        """Time of all runs, that of recording them left out."""
        self.threads = 1
        """Threads of the device with most."""
        self.barriers = 0
        """Barriers of all runs."""
        self.target: str | None = None
        """Kernel target of the cpu device."""
        self.trace: Trace | None = (
            (Trace() if trace else None) if isinstance(trace, bool) else trace
        )
        self._programs: dict[int, tuple[Program, list[_Split]]] = {}

    # ---- results ---------------------------------------------------------------------------------

    @property
    def lines(self) -> list[Line]:
        """A line a step that ran, in order; copies first in each split."""
        found = []
        for _, splits in self._programs.values():
            for split in splits:
                found += [x for x in (split.copies, split.whole, *split.lines) if x.calls]
        return found

    def by_op(self) -> list[Line]:
        """Lines added up by device, op and type, the slowest first."""
        return self._added(lambda line: (line.device, line.op, line.type, line.roof))

    def by_tensor(self) -> list[Line]:
        """Lines added up over layers: tensors whose names differ in their number only."""
        return self._added(lambda x: (x.device, x.op, x.type, x.roof, _without_layer(x.name)))

    def _added(self, key: Any) -> list[Line]:
        found: dict[Any, Line] = {}
        for line in self.lines:
            group = key(line)
            if group not in found:
                name = group[4] if len(group) > 4 else ""
                found[group] = Line(line.op, line.type, line.device, name, line.roof, steps=0)
            found[group].add(line)
        return sorted(found.values(), key=lambda line: -line.seconds)

    @property
    def outside(self) -> float:
        """Seconds of runs outside of all steps: calls, starts of threads, Python."""
        return self.seconds - sum(line.seconds for line in self.lines)

    @property
    def waiting(self) -> float:
        """The part of all threads' time in steps that was spent waiting for other threads."""
        timed = [line for line in self.lines if line.busy]
        total = sum(line.seconds for line in timed) * self.threads
        return 1 - sum(line.busy for line in timed) / total if total else 0.0

    @cached_property
    def peaks(self) -> Peaks:
        """What this machine reaches with as many threads; measured on first use."""
        return measure_peaks(self.threads, self.target)

    def as_json(self) -> dict[str, Any]:
        """Everything in the terminal's table, and every step, in seconds, bytes and operations."""
        peaks = self.peaks
        keys = ("threads", "target", "read", "int8", "f32", "bf16")
        return {
            "name": self.name,
            "runs": self.runs,
            "seconds": self.seconds,
            "outside": self.outside,
            "threads": self.threads,
            "barriers": self.barriers,
            "waiting": self.waiting,
            "least_seconds": sum(line.least_seconds(peaks)[0] for line in self.lines),
            "peaks": {key: getattr(peaks, key) for key in keys},
            "ops": [_line_json(line, peaks) for line in self.by_op()],
            "steps": [_line_json(line, peaks) for line in self.lines],
        }

    def save_trace(self, path: str | Path) -> None:
        """Writes a Chrome trace: a row a thread, a slice a step, and the waits between stages.

        Raises ProgramError on a profile that kept no trace or a file that cannot be written."""
        if self.trace is None:
            raise ProgramError("this profile keeps no trace; make it with trace=True")
        try:
            Path(path).write_text(json.dumps(self.trace.as_json()), encoding="utf-8")
        except OSError as error:
            raise ProgramError(f"trace {path}: {error.strerror or error}") from None

    # ---- recording (called by sessions) ----------------------------------------------------------

    def add_run(self, start: int, end: int, spent: int) -> None:
        """A whole run from `start` to `end` nanoseconds, of which `spent` without recording."""
        self.runs += 1
        self.seconds += spent * 1e-9
        if self.trace is not None:
            self.trace.run(f"{self.name} run {self.runs}".lstrip(), start, end)

    def add_copies(self, program: Program, split: int, nbytes: int, start: int, end: int) -> None:
        """The copies that a split needed."""
        line = self._splits(program)[split].copies
        line.calls += 1
        line.seconds += (end - start) * 1e-9
        line.nbytes += nbytes
        if self.trace is not None:
            self.trace.slice(f"copies of split {split}", "copy", 0, start, end, {"bytes": nbytes})

    def add_split(
        self, program: Program, split: int, values: Mapping[str, int], start: int, end: int,
        spans: NDArray[np.int64] | None,
    ) -> None:  # fmt: skip
        """A split that ran; `spans` [step, thread, (begin, end)] where its device knows them."""
        known = self._splits(program)[split]
        nbytes, flops = _sizes(known, program, values)
        if spans is None or len(spans) != len(known.lines):
            line = known.whole
            line.calls += 1
            line.seconds += (end - start) * 1e-9
            line.nbytes += float(nbytes.sum())
            line.flops += float(flops.sum())
            if self.trace is not None:
                self.trace.slice(f"split {split} on {known.device}", known.device, 0, start, end)
            return
        self.threads = max(self.threads, spans.shape[1])
        busy = (spans[:, :, 1] - spans[:, :, 0]).clip(min=0).sum(axis=1) * 1e-9
        for stage in _stage_times(spans, known.stages):
            self._add_stage(known, stage, busy, nbytes, flops)
        if self.trace is not None:
            self.trace.steps(known.device, known.lines, known.stages, spans)

    def _add_stage(
        self, split: _Split, stage: tuple[int, int, float], busy: NDArray[np.float64],
        nbytes: NDArray[np.float64], flops: NDArray[np.float64],
    ) -> None:  # fmt: skip
        begin, end, seconds = stage
        total = float(busy[begin:end].sum())
        for i in range(begin, end):
            line = split.lines[i]
            line.calls += 1
            line.seconds += seconds * (busy[i] / total if total else 1 / (end - begin))
            line.busy += float(busy[i])
            line.nbytes += float(nbytes[i])
            line.flops += float(flops[i])

    def _splits(self, program: Program) -> list[_Split]:
        known = self._programs.get(id(program))
        if known is None:
            for device in program.devices:
                self.target = self.target or getattr(device, "target", None)
                self.threads = max(self.threads, getattr(device, "n_threads", 1))
            splits = [_split(program, i) for i in range(len(program.splits))]
            known = self._programs[id(program)] = (program, splits)
        return known[1]

    def __str__(self) -> str:
        """The table of `weft bench --profile`."""
        return profile_text(self)


def _split(program: Program, number: int) -> _Split:
    spec = program.splits[number]
    nodes = [_node(program, step) for step in spec.steps]
    names = [_weight(program, step) or n.name for n, step in zip(nodes, spec.steps, strict=True)]
    lines = [
        Line(n.op.name, _type(n), spec.device, name, _roof(n))
        for n, name in zip(nodes, names, strict=True)
    ]
    whole = Line("split", "", spec.device, f"split {number}", steps=len(nodes))
    copies = Line("copies", "", spec.device, f"to split {number}")
    return _Split(spec.device, nodes, lines, spec.stages, whole, copies)


def _weight(program: Program, step: StepSpec) -> str:
    """The name of the weight that a step reads, if it reads one with a name."""
    for index in step.src:
        if index >= 0:
            spec = program.tensors[index]
            if spec.name and program.buffers[spec.buffer].usage == "weights":
                return spec.name
    return ""


def _node(program: Program, step: StepSpec) -> Tensor:
    """A step as a node, which is what `work` takes."""

    def tensor(index: int) -> Tensor | None:
        if index < 0:
            return None
        spec = program.tensors[index]
        return Tensor(spec.dtype, spec.ne, nb=spec.nb, name=spec.name)

    made = tensor(step.dst)
    assert made is not None
    made.op, made.params = step.op, step.params
    made.src = tuple(tensor(s) for s in step.src)
    return made


def _type(node: Tensor) -> str:
    """The type that decides how fast an op is."""
    first = node.src[0] if node.src else None
    if node.op.name in _TYPE_OF_RESULT or first is None:
        return node.dtype.name
    if node.op.name == "FLASH_ATTN_EXT" and node.src[1] is not None:
        return node.src[1].dtype.name
    return first.dtype.name


def _roof(node: Tensor) -> str:
    """Products of blocks are done with 8-bit numbers, those of bf16 activations with bf16."""
    x = node.src[1] if len(node.src) > 1 and node.op.name.startswith("MUL_MAT") else None
    if x is not None and x.dtype.is_quantized:
        return "int8"
    return "bf16" if x is not None and x.dtype.name == "bf16" else "f32"


def _sizes(
    split: _Split, program: Program, values: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    key = tuple(values[name] for name in program.symbols)
    if key not in split.sizes:
        found = [work(node, values) for node in split.nodes]
        split.sizes[key] = (
            np.array([w.nbytes for w in found], np.float64),
            np.array([w.flops for w in found], np.float64),
        )
    return split.sizes[key]


def _stage_times(
    spans: NDArray[np.int64], stages: Iterable[tuple[int, int]]
) -> Iterable[tuple[int, int, float]]:
    """(first step, last step + 1, seconds) of each stage: from the end of the one before, of which
    the first begins with its first step, to the end of its last step on any thread."""
    begun = spans[:, :, 0][spans[:, :, 0] > 0]
    last = int(begun.min()) if begun.size else 0
    for begin, end in stages:
        done = max(int(spans[begin:end, :, 1].max(initial=0)), last)
        yield begin, end, (done - last) * 1e-9
        last = done


def _without_layer(name: str) -> str:
    """`ffn_up-3` -> `ffn_up-*`; `blk.3.x` -> `blk.*.x`."""
    return re.sub(r"(?<=[._-])\d+", "*", name)


def _line_json(line: Line, peaks: Peaks) -> dict[str, Any]:
    least, bound = line.least_seconds(peaks)
    return {
        "op": line.op, "type": line.type, "device": line.device, "name": line.name,
        "steps": line.steps, "calls": line.calls, "seconds": line.seconds, "busy": line.busy,
        "bytes": line.nbytes, "flops": line.flops, "bytes_per_second": line.bandwidth,
        "flops_per_second": line.rate, "intensity": line.intensity, "roof": line.roof,
        "bound": bound, "of_roof": least / line.seconds if line.seconds else 0.0,
    }  # fmt: skip
