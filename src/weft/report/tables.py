"""The table of tensors of one graph: what each is, where it lies, how long, and why.

It is data by columns, which compress well. A row is an entry of the schedule's plan lists: leaves
first (weights, caches, inputs), then the nodes in the order in which they run.
"""

from __future__ import annotations

from typing import Any

from weft.allocate.lifetime import Lifetimes, lifetimes
from weft.compiler import Plan
from weft.errors import ScheduleError
from weft.graph.size import upper
from weft.graph.tensor import Tensor, shape_text
from weft.report.layers import layers_data
from weft.schedule import Schedule
from weft.schedule.cause import code_meaning
from weft.schedule.describe import cause_code, cause_of, cause_text, name_of, refused
from weft.schedule.passes import passes_of

COLUMNS = (
    "name", "op", "type", "shape", "formula", "bytes", "device", "split", "time", "cause", "why",
    "refused", "src", "view", "kind", "memory", "arena", "chunk", "offset", "start", "end",
)  # fmt: skip
"""The columns of a table of tensors.

name     unique within the graph
shape    sizes, innermost first, with the names of symbols
formula  bytes with the names of symbols; the same as `bytes` where nothing is symbolic
bytes    at the largest values of the symbols
device   number of the device, or -1
split    number of the split that computes it, or -1
time     position in the run, or -1: nothing computes it
cause    the scheduler's code; `why` is the same in words
refused  sentences of devices that do not take it, by the name of the device; null: none
src      rows of what it reads or copies; view: row of the tensor whose memory it shares, or -1
kind     weights, cache, input, node, copy, dep (a copy's source is kept until then), keep
memory   name of the memory
arena    number of the arena; -1: it has memory of its own. In an arena: chunk, offset in bytes, and
         the times start to end, both included, in which the bytes are in use
"""


def regime_data(plan: Plan) -> dict[str, Any]:
    """A graph's placement and memory as data for the page: symbols, splits, totals, arenas,
    tensors, and the placement step by step."""
    schedule = plan.schedule
    about = schedule.to_json()
    for split in about["splits"]:
        del split["nodes"]  # the table has them
    memory = plan.allocation
    tensors = _Table(plan).columns()
    return {
        "symbols": [[s.name, s.min, s.max] for s in schedule.graph.symbols.values()],
        "splits": about["splits"],
        "totals": about["totals"],
        "rewrites": about.get("rewrites"),
        "general": about.get("general"),
        "predicted": about.get("predicted"),
        "inputs": {n: name_of(schedule.final_of(t)) for n, t in schedule.graph.inputs.items()},
        "outputs": {n: name_of(schedule.final_of(t)) for n, t in schedule.graph.outputs.items()},
        "arenas": [
            {
                "memory": arena.buffer_type.name,
                "bytes": arena.size,
                "chunks": list(arena.chunks),
                "lower_bound": arena.lower_bound,
                "planner": arena.planner,
                "alignment": arena.buffer_type.alignment,
            }
            for arena in memory.arenas
        ],
        "times": len(schedule.plan_nodes),
        "causes": {code: code_meaning(code) for code in sorted(set(tensors["cause"]) - {""})},
        "layers": layers_data(tensors, about["splits"]),
        "tensors": tensors,
        "passes": _passes(schedule),
    }


def _passes(schedule: Schedule) -> dict[str, Any]:
    """The placement step by step, or `why` there is none."""
    try:
        return passes_of(schedule).to_dict()
    except ScheduleError as error:
        return {"why": str(error)}


def unique_names(rows: list[Tensor]) -> list[str]:
    """A name for each tensor that no other of them has."""
    names: list[str] = []
    count: dict[str, int] = {}
    taken = set()
    for tensor in rows:
        name = base = name_of(tensor)
        while name in taken:
            count[base] = count.get(base, 1) + 1
            name = f"{base} ({count[base]})"
        taken.add(name)
        names.append(name)
    return names


def times_in_use(life: Lifetimes) -> dict[Tensor, tuple[int, int]]:
    """The first and the last time at which each tensor has its bytes. Tensors that share an item
    have them one after the other."""
    spans = {}
    for item in (item for items in life.items for item in items):
        starts = [life.spans[tensor][0] for tensor in item.tensors]
        ends = [*(start - 1 for start in starts[1:]), item.end]
        for tensor, start, end in zip(item.tensors, starts, ends, strict=True):
            spans[tensor] = (start, max(start, end))
    return spans


class _Table:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.schedule: Schedule = plan.schedule
        self.life: Lifetimes = lifetimes(plan.schedule)
        rows = dict.fromkeys((*plan.schedule.plan_leaves, *plan.schedule.plan_nodes))
        for node in plan.schedule.plan_nodes:  # weights that no list has
            rows.update(dict.fromkeys(s for s in (*node.src, node.view_src) if s is not None))
        nodes = dict.fromkeys(plan.schedule.plan_nodes)
        self.rows = [*(t for t in rows if t not in nodes), *nodes]
        self.index = {tensor: i for i, tensor in enumerate(self.rows)}
        self.time = {tensor: i for i, tensor in enumerate(plan.schedule.plan_nodes)}
        self.by_name = {node.name: node for node in plan.schedule.graph.nodes}
        self.joined = {done.node: done.name for done in plan.schedule.rewritten}
        self.spans = times_in_use(self.life)
        self.split = {t: n for n, s in enumerate(plan.schedule.splits) for t in s.nodes}
        for n, split in enumerate(plan.schedule.splits):
            self.split |= {copy: n for _, copy in split.copies}
        self.backend = dict(
            zip(plan.schedule.plan_nodes, plan.schedule.plan_node_backends, strict=True)
        ) | dict(zip(plan.schedule.plan_leaves, plan.schedule.plan_leaf_backends, strict=True))

    def columns(self) -> dict[str, list[Any]]:
        """The table; see `COLUMNS`."""
        names = unique_names(self.rows)
        rows = [self._row(t, n) for t, n in zip(self.rows, names, strict=True)]
        return {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}

    def _row(self, t: Tensor, name: str) -> tuple[Any, ...]:
        schedule = self.schedule
        origin = self._origin(t)
        base = t if t.view_src is None else t.view_src
        at = self.plan.allocation.place.get(t)
        arena, chunk, offset = (at.arena, at.chunk, at.offset) if at else (-1, -1, -1)
        start, end = self.spans.get(t, (-1, -1)) if at else (-1, -1)
        nbytes = t.nbytes
        size = at.size if at else upper(nbytes)
        known, added = cause_of(schedule, origin) is not None, t in schedule.added
        return (
            name, t.op.name, t.dtype.name, shape_text(t),
            size if isinstance(nbytes, int) else str(nbytes), size,
            self._device(t, origin), self.split.get(t, -1), self.time.get(t, -1),
            cause_code(schedule, origin), self._why(t, origin) if known else "",
            (refused(schedule, origin) or None) if known and t.src and not added else None,
            [self.index[s] for s in self._sources(t)],
            -1 if t.view_src is None else self.index.get(t.view_src, -1),
            self._kind(t), self._memory(base), arena, chunk, offset, start, end,
        )  # fmt: skip

    def _origin(self, t: Tensor) -> Tensor:
        """The tensor of the graph whose place was decided: for a node that joins several, the one
        of its name."""
        origin = self.schedule.origin.get(t, t)
        known = origin in self.schedule.cause_of or t not in self.time
        return origin if known else self.by_name.get(t.name, origin)

    def _why(self, t: Tensor, origin: Tensor) -> str:
        text = cause_text(self.schedule, origin)
        fused = t.op is not origin.op or t in self.schedule.added
        rewrite = self.joined.get(t.name) if fused else None
        return f"{text}; several ops joined into one ({rewrite})" if rewrite else text

    def _sources(self, t: Tensor) -> list[Tensor]:
        """The sources of a node; for a copy the tensor that it is made of."""
        role = self.schedule.roles.get(t)
        if role is not None and role.kind == "copy":
            of = [self.schedule.final_of(tensor) for tensor in role.of]
            return [tensor for tensor in of if tensor in self.index]
        return [s for s in t.src if s is not None]

    def _device(self, t: Tensor, origin: Tensor) -> int:
        number = self.backend.get(t, -1)
        return number if number >= 0 else self.schedule.backend_of.get(origin, -1)

    def _kind(self, t: Tensor) -> str:
        role = self.schedule.roles.get(t)
        if role is not None:
            return role.kind
        if t in self.time and "input" not in t.flags:
            return "node"
        if t.buffer is not None:
            return "weights" if t.buffer.usage == "weights" else "cache"
        return "input" if "input" in t.flags else "leaf"

    def _memory(self, base: Tensor) -> str:
        at = self.plan.allocation.place.get(base)
        if at is not None:
            return str(self.plan.allocation.arenas[at.arena].buffer_type.name)
        layout = self.plan.layouts.get(base)
        if layout is not None:
            return str(layout.name)
        if base.buffer is None:
            return ""
        return str((base.buffer.type or self.schedule.backends[-1].buffer_type).name)
