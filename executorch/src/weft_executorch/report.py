"""A .pte file as the data of `weft.report`: a table of tensors for each delegated part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.dtype import dtype_from_id
from weft.errors import FormatError
from weft.report.layers import layers_data
from weft.version import __version__
from weft_executorch.describe import describe, describe_text, read_blob
from weft_executorch.pte import read_pte

__all__ = ["report_data"]

_DEVICE = "weft"
_MEMORY = ("arena", "constant", "state", "input", "output")
_KINDS = {"constant": "weights", "state": "cache", "input": "input"}
_ABOUT = {
    "arena": "results on the way, planned when the file was made",
    "constant": "weights, in the file's data",
    "state": "kept between calls",
    "input": "given by the caller, used where it lies",
    "output": "given by the caller, written where it lies",
}


def report_data(path: str | Path) -> dict[str, Any]:
    """The data of a file's report, see `weft.report.programs.program_data`; `left_out` has what the
    exporter left to others.

    Raises FormatError for a file that is not a .pte."""
    about = describe(path)
    sizes: dict[tuple[str, object], int] = {}
    scratch = 0
    regimes = []
    for method in read_pte(path)[1]:
        parts = [d.data for d in method.delegates if d.backend == "WeftBackend"]
        for number, data in enumerate(parts):
            blob = read_blob(data)
            label = f"{method.name}, part {number}" if len(parts) > 1 else method.name
            try:
                regimes.append({"label": label, "max_tokens": None, "together": False,
                                **_Part(blob).data()})  # fmt: skip
                sizes |= _sizes(blob, len(regimes))
                scratch = max(scratch, blob.workBytes)
            except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as e:
                raise FormatError(f"the delegated data is damaged: {e!r}") from None
    totals: Counter[str] = Counter()
    for (kind, _), size in sizes.items():
        totals[kind] += size
    memory = [
        {"buffer": kind, "memory": _DEVICE, "bytes": n, "about": _ABOUT[kind]}
        for kind, n in totals.items()
    ]
    memory.append(
        {"buffer": "scratch", "memory": "threads", "bytes": scratch, "about": "of the kernels"}
    )
    return {
        "kind": "program",
        "title": Path(path).name,
        "weft": __version__,
        "devices": [{"name": _DEVICE, "kind": "CPU", "memory": "arena"}],
        "memory": memory,
        "text": describe_text(about, False).splitlines(),
        "regimes": regimes,
        "left_out": [row for method in about["methods"] for row in method["left_out"]],
        "sliders": None,
    }


def _sizes(blob: Any, part: int) -> dict[tuple[str, object], int]:
    """Bytes of each buffer of a part, by its kind and what it is: parts share constants by their
    keys, and states by their names where the file says so."""
    sizes: dict[tuple[str, object], int] = {}
    for number, buffer in enumerate(blob.buffers):
        kind = _MEMORY[buffer.memory]
        shared = {"constant": buffer.key, "state": buffer.name if blob.shareState else None}
        which = shared.get(kind) or (part, number)
        sizes[kind, which] = buffer.size
    return sizes


class _Part:
    """A delegated part as a table: what it is given first, then its steps.

    A blob names memory, not views: a step that reads bytes in the arena reads what the last step
    wrote there."""

    def __init__(self, blob: Any) -> None:
        self.blob = blob
        self.at = [s.max for s in blob.symbols]
        self.memory = [_MEMORY[b.memory] for b in blob.buffers]
        written = {step.dst for step in blob.steps}
        read = dict.fromkeys(s for step in blob.steps for s in step.src if s >= 0)
        self.leaves = [
            t for t in read
            if t not in written and self.memory[blob.tensors[t].buffer] in _KINDS
        ]  # fmt: skip
        self.rows = {t: i for i, t in enumerate(self.leaves)}
        self.names: Counter[str] = Counter()
        self.values: dict[int, int] = {}  # of expressions

    def data(self) -> dict[str, Any]:
        blob, first = self.blob, len(self.leaves)
        sources = self._sources()
        last = list(range(len(sources)))
        for step, reads in enumerate(sources):
            for row in reads:
                if row >= first:
                    last[row - first] = step
        rows = [self._row(t, "", -1, [], -1) for t in self.leaves]
        for number, step in enumerate(blob.steps):
            op = _text(blob.ops[step.op])
            end = last[number] if self._is_read_inside(step.dst) else len(sources) - 1
            rows.append(self._row(step.dst, op, number, sources[number], end))
        columns = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
        splits = [
            {"split": 0, "device": _DEVICE, "start": 0, "end": len(sources), "inputs": []},
        ]
        totals = {"splits": 1, "nodes": len(sources), "views": 0, "ops": len(sources), "copies": 0,
                  "copied_bytes": 0, "least_copied_bytes": 0}  # fmt: skip
        return {
            "symbols": [[_text(s.name), s.min, s.max] for s in blob.symbols],
            "splits": splits,
            "totals": totals,
            "inputs": {},
            "outputs": {},
            "arenas": self._arenas(columns),
            "times": len(sources),
            "layers": layers_data(columns, splits),
            "tensors": columns,
        }

    def _is_read_inside(self, tensor: int) -> bool:
        return bool(self.memory[self.blob.tensors[tensor].buffer] == "arena")

    def _sources(self) -> list[list[int]]:
        """The rows that each step reads."""
        first = len(self.leaves)
        last: dict[int, list[tuple[int, int, int]]] = {}  # buffer -> (begin, end, row), newest last
        sources = []
        for number, step in enumerate(self.blob.steps):
            reads: dict[int, None] = {}
            for tensor in step.src:
                if tensor < 0:
                    continue
                row = self.rows.get(tensor)
                reads |= dict.fromkeys([row] if row is not None else self._writers(tensor, last))
            sources.append(list(reads))
            begin, end = self._range(step.dst)
            buffer = self.blob.tensors[step.dst].buffer
            kept = [w for w in last.get(buffer, []) if not (begin <= w[0] and w[1] <= end)]
            last[buffer] = [*kept, (begin, end, first + number)]
        return sources

    def _writers(self, tensor: int, last: dict[int, list[tuple[int, int, int]]]) -> list[int]:
        """The rows of the newest steps that wrote bytes of a tensor."""
        begin, end = self._range(tensor)
        hits = [
            w for w in last.get(self.blob.tensors[tensor].buffer, ()) if w[0] < end > begin < w[1]
        ]
        return [hits[-1][2]] if hits else []

    def _range(self, tensor: int) -> tuple[int, int]:
        t = self.blob.tensors[tensor]
        begin = self._value(t.offset)
        return begin, begin + self._nbytes(t)

    def _nbytes(self, t: Any) -> int:
        dtype = dtype_from_id(t.type)
        ne, nb = [self._value(n) for n in t.ne], [self._value(n) for n in t.nb]
        if dtype is None or min(ne) <= 0:
            return 0
        if dtype.block == 1:
            return dtype.bytes + sum((n - 1) * b for n, b in zip(ne, nb, strict=True))
        rows = sum((n - 1) * b for n, b in zip(ne[1:], nb[1:], strict=True))
        return ne[0] * nb[0] // dtype.block + dtype.tail + rows

    def _value(self, size: Any) -> int:
        """A size at the largest values of its symbols."""
        return int(size.value) if size.expr < 0 else self._evaluated(size.expr)

    def _evaluated(self, index: int) -> int:
        if index not in self.values:
            value = self.values[index] = self._expression(self.blob.exprs[index])
            if abs(value) >= 1 << 63:
                raise ValueError("a size has more than 64 bits")
        return self.values[index]

    def _expression(self, e: Any) -> int:
        if e.kind == 0:
            return int(e.a)
        if e.kind == 1:
            return int(self.at[e.a])
        a, b = self._evaluated(e.a), self._evaluated(e.b)
        if e.kind in (4, 5) and b == 0:
            raise ValueError("a size is divided by zero")
        return (a + b, a * b, a // (b or 1), a % (b or 1), min(a, b), max(a, b))[e.kind - 2]

    def _row(self, tensor: int, op: str, step: int, src: Sequence[int], end: int) -> dict[str, Any]:
        t = self.blob.tensors[tensor]
        memory = self.memory[t.buffer]
        in_arena = memory == "arena" and step >= 0
        dtype = dtype_from_id(t.type)
        nbytes = self._nbytes(t)
        return {
            "name": self._name(_text(t.name) or op.lower()),
            "op": op or "NONE",
            "type": f"type {t.type}" if dtype is None else dtype.name,
            "shape": _shape([self._value(n) for n in t.ne]),
            "formula": nbytes,
            "bytes": nbytes,
            "device": 0,
            "split": 0 if step >= 0 else -1,
            "time": step,
            "cause": "",
            "why": "the exporter gave it to weft" if step >= 0 else "",
            "refused": None,
            "src": list(src),
            "view": -1,
            "kind": "node" if step >= 0 else _KINDS[memory],
            "memory": memory,
            "arena": self._arena_of(t.buffer) if in_arena else -1,
            "chunk": 0 if in_arena else -1,
            "offset": self._value(t.offset) if in_arena else -1,
            "start": step if in_arena else -1,
            "end": end if in_arena else -1,
        }

    def _name(self, name: str) -> str:
        self.names[name] += 1
        return name if self.names[name] == 1 else f"{name} ({self.names[name]})"

    def _arena_of(self, buffer: int) -> int:
        return [i for i, memory in enumerate(self.memory) if memory == "arena"].index(buffer)

    def _arenas(self, columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
        sizes = [
            b.size for b, m in zip(self.blob.buffers, self.memory, strict=True) if m == "arena"
        ]
        peaks = [_peak(columns, number, len(self.blob.steps)) for number in range(len(sizes))]
        return [
            {"memory": "arena", "bytes": size, "chunks": [size], "lower_bound": min(peak, size),
             "planner": "", "alignment": 64}
            for size, peak in zip(sizes, peaks, strict=True)
        ]  # fmt: skip


def _peak(columns: dict[str, list[Any]], arena: int, steps: int) -> int:
    """The most bytes of an arena that are in use at the same time."""
    change = [0] * (steps + 1)
    for row, number in enumerate(columns.get("arena", ())):
        if number == arena:
            change[columns["start"][row]] += columns["bytes"][row]
            change[columns["end"][row] + 1] -= columns["bytes"][row]
    now = most = 0
    for one in change:
        now += one
        most = max(most, now)
    return most


def _shape(ne: Sequence[int]) -> str:
    dims = max((d + 1 for d in range(len(ne)) if ne[d] != 1), default=1)
    return f"[{', '.join(str(n) for n in ne[:dims])}]"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
