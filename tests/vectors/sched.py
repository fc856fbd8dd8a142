"""Reader of the golden scheduler cases and comparison with weft's planner.

The format is in FORMAT.md beside the cases. A case describes buffer types, backends (as rule lists)
and graphs; here they become stub objects, graphs of real tensors, and a driver that calls the
planner as the reference's scheduler was called.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.allocate import GraphAllocator
from weft.backends.base import YES, BackendBase, Support
from weft.dtype import find_dtype
from weft.graph.graph import Graph
from weft.graph.op import Op, find_op
from weft.graph.tensor import Buffer, Tensor
from weft.schedule import PlannerState, Schedule, schedule
from weft.schedule.describe import cause_code
from weft.schedule.result import Role

__all__ = ["SET_ASIDE", "Driver", "GraphCase", "load_cases", "make_backends", "run_case"]

SET_ASIDE: dict[str, str] = {}
"""Cases that are not followed, with the reason. None: even what stale memory of the reference
decides (QUIRKS 10 and 15) is followed by `PlannerState`."""

Json = Mapping[str, Any]


def load_cases(path: Path) -> Iterator[dict[str, Any]]:
    """The cases of a `cases.jsonl.gz`."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


# -- stubs


class StubBufferType:
    """A buffer type of a case: FORMAT.md 1.1."""

    def __init__(self, spec: Json) -> None:
        self.name: str = spec["name"]
        self.device = self.name
        self.alignment: int = spec["alignment"]
        self.max_size: int | None = spec["max_size"]
        self.is_host: bool = spec["is_host"]
        self.row_pad: int | None = spec.get("quant_row_pad")
        self.expand: Mapping[str, int] = spec.get("alloc_expand") or {}

    def alloc_size(self, tensor: Tensor) -> int:
        size = tensor.max_bytes
        if self.row_pad and tensor.dtype.is_quantized and tensor.ne[0] % self.row_pad:
            missing = self.row_pad - tensor.ne[0] % self.row_pad
            size += missing // tensor.dtype.block * tensor.dtype.bytes
        return size + self.expand.get(tensor.op.name, 0)


class StubBackend(BackendBase):
    """A backend of a case: FORMAT.md 1.2."""

    def __init__(self, spec: Json, buffer_types: Sequence[StubBufferType]) -> None:
        self.name: str = spec["name"]
        self.kind: Any = spec["dev_type"]
        self.buffer_type: Any = buffer_types[spec["buft"]]
        self._reads = [buffer_types[i] for i in spec["supports_bufts"]]
        self._supports: Sequence[Json] = spec["supports_op"]
        self._offloads: Sequence[Json] = spec["offload_op"]
        self._buffer_types = buffer_types
        self.deps: Sequence[tuple[Tensor, Tensor]] = ()

    def supports_op(self, node: Tensor) -> Support:
        return YES if self._allowed(self._supports, node) else Support(False, "no rule allows it")

    def offload_op(self, node: Tensor) -> bool:
        return self._allowed(self._offloads, node)

    def supports_buffer_type(self, buffer_type: Any) -> bool:
        return any(buffer_type is known for known in self._reads)

    def allocation_deps(self, nodes: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        here = set(nodes)
        return [(tensor, until) for tensor, until in self.deps if until in here]

    def _allowed(self, rules: Sequence[Json], node: Tensor) -> bool:
        for rule in rules:
            if self._matches(rule, node):
                return bool(rule["allow"])
        return False

    def _matches(self, rule: Json, node: Tensor) -> bool:
        src0 = node.src[0] if node.src else None
        if "ops" in rule and not ({node.op.name, "*"} & set(rule["ops"])):
            return False
        if "min_ne" in rule and node.ne[rule["min_ne"][0]] < rule["min_ne"][1]:
            return False
        if "min_batch" in rule and _batch(node) < rule["min_batch"]:
            return False
        if "src0_types" in rule and (src0 is None or src0.dtype.name not in rule["src0_types"]):
            return False
        if "src0_bufts" not in rule:
            return True
        types = [self._buffer_types[i] for i in rule["src0_bufts"]]
        return src0 is not None and src0.buffer is not None and src0.buffer.type in types


def _batch(node: Tensor) -> int:
    ne: Any = node.ne
    match node.op.name:
        case "GET_ROWS":
            return 0
        case "MUL_MAT":
            return ne[1]
        case "MUL_MAT_ID" | "ROPE" | "ROPE_BACK":
            return ne[2]
    return ne[1] * ne[2] * ne[3]


def make_backends(case: Json) -> tuple[list[StubBufferType], list[StubBackend]]:
    """The stub buffer types and backends of a case."""
    buffer_types = [StubBufferType(spec) for spec in case["bufts"]]
    return buffer_types, [StubBackend(spec, buffer_types) for spec in case["backends"]]


class GraphCase:
    """One instance of a graph of a case: `tensors` by id, the `graph`, user assignments, deps."""

    def __init__(self, spec: Json, buffer_types: Sequence[StubBufferType]) -> None:
        self.tensors: list[Tensor] = []
        for t in spec["tensors"]:
            self._add(t, buffer_types)
        for t, tensor in zip(spec["tensors"], self.tensors, strict=True):
            tensor.src = tuple(None if s is None else self.tensors[s] for s in t.get("src", ()))
            if "view_src" in t:
                tensor.view_src = self.tensors[t["view_src"]]
        self.id_of = {tensor: i for i, tensor in enumerate(self.tensors)}
        self.graph = Graph(*(self.tensors[i] for i in spec["outputs"]))
        self.assigned = {
            tensor: t["backend"]
            for t, tensor in zip(spec["tensors"], self.tensors, strict=True)
            if "backend" in t
        }
        self.deps = [(self.tensors[a], self.tensors[b]) for a, b in spec.get("alloc_deps", ())]

    def _add(self, t: Json, buffer_types: Sequence[StubBufferType]) -> None:
        tensor = Tensor(
            find_dtype(t["type"]),
            tuple(t["ne"]),
            nb=tuple(t["nb"]),
            name=t["name"],
            op=_op(t["op"]),
            view_offs=t.get("view_offs", 0),
            flags=frozenset(t.get("flags", ())),
        )
        if "buffer" in t:
            tensor.buffer = Buffer(t["buffer"]["usage"], buffer_types[t["buffer"]["buft"]])
        self.tensors.append(tensor)


_OTHER_OPS: dict[str, Op] = {}


def _op(name: str) -> Op:
    """The row of the op table; an op that weft lacks gets a row of its own, as nothing but its
    name matters to the planner (the reference's training ops may run in place)."""
    try:
        return find_op(name)
    except Exception:
        if name not in _OTHER_OPS:
            inplace = name in ("SILU_BACK", "RMS_NORM_BACK", "SOFT_MAX_BACK")
            _OTHER_OPS[name] = Op(name, -1, 0, 10, can_inplace=inplace)
        return _OTHER_OPS[name]


# -- the scheduler, as the reference's is called


class Driver:
    """One scheduler: planner state, allocator, and the public calls."""

    def __init__(self, case: Json) -> None:
        self.buffer_types, self.backends = make_backends(case)
        self.op_offload: bool = case["op_offload"]
        self.state = PlannerState(case["n_copies"])
        self.allocator = GraphAllocator([b.buffer_type for b in self.backends])
        self.backends_changed = False
        self.realloc = False
        self.sizes: list[int] = []

    def step(self, call: str, spec: Json) -> tuple[GraphCase, Schedule]:
        """One recorded call on a fresh instance of the graph."""
        self.state.reset()
        instance = GraphCase(spec, self.buffer_types)
        self.state.assigned.update(instance.assigned)
        for backend in self.backends:
            backend.deps = instance.deps
        return instance, getattr(self, "_" + call)(instance)

    def _split(self, instance: GraphCase) -> Schedule:
        state = self.state
        scheduled = schedule(
            instance.graph,
            self.backends,
            op_offload=self.op_offload,
            n_copies=state.n_copies,
            cur_copy=state.cur_copy,
            assign=state.assigned,
            first_backend=state.first_backend,
        )
        state.record(scheduled)
        return scheduled

    def _alloc(self, instance: GraphCase) -> Schedule:
        self.state.begin()
        scheduled = self._split(instance)
        self.backends_changed = self.state.backends_changed(scheduled)
        self.realloc = self.allocator.alloc(scheduled, backends_changed=self.backends_changed)
        self.state.is_allocated = True
        return scheduled

    def _reserve(self, instance: GraphCase) -> Schedule:
        self.state.synchronize()
        scheduled = self._split(instance)
        self.allocator.reserve(scheduled)
        self.state.reset()
        return scheduled

    def _reserve_size(self, instance: GraphCase) -> Schedule:
        self.state.reset()
        self.state.synchronize()
        scheduled = self._split(instance)
        self.sizes = self.allocator.measure(scheduled)
        return scheduled


# -- comparison


def run_case(case: Json) -> tuple[bool, str]:
    """Whether weft plans the case as the reference did; the message names what differs first."""
    try:
        _run(case)
    except _Differs as difference:
        return False, f"{case['id']}: {difference}"
    return True, ""


class _Differs(Exception):
    pass


def _run(case: Json) -> None:
    driver = Driver(case)
    if "steps" in case:
        for number, step in enumerate(case["steps"]):
            if step["call"] == "reset":
                driver.state.reset()
            elif step["call"] == "sync":
                driver.state.synchronize()
            else:
                _run_step(driver, step, case["graphs"][step["graph"]], f"step {number}: ")
    else:
        expect = case["expect"]
        graph = {k: expect[k] for k in ("nodes", "leafs", "auto_names") if k in expect}
        step = {"call": "alloc", "expect": expect}
        spec = {k: case[k] for k in ("tensors", "outputs", "alloc_deps") if k in case}
        _run_step(driver, step, spec | graph, "")


def _run_step(driver: Driver, step: Json, spec: Json, where: str) -> None:
    allocs = dict(driver.allocator.buffer_allocs)
    instance, scheduled = driver.step(step["call"], spec)
    got = _observe(driver, instance, scheduled)
    got["buffer_allocs"] = _new_allocs(driver, allocs)
    expect = dict(step["expect"])
    for key in ("nodes", "leafs", "auto_names"):
        if key in spec:
            expect[key] = spec[key]
    for key, want in expect.items():
        have = got[key]
        if key == "named":
            have = {i: _record_of(driver, instance, scheduled, int(i)) for i in want}
        elif key == "graph_copy" and "n_nodes" in want:
            have = {
                "size": have["size"],
                "n_nodes": len(have["nodes"]),
                "n_leafs": len(have["leafs"]),
            }
        elif key == "auto_names":
            have = {i: instance.tensors[int(i)].name for i in want}
        if have != want:
            raise _Differs(where + _difference(key, want, have))


def _difference(path: str, want: Any, have: Any) -> str:
    """The innermost place where two values differ."""
    if isinstance(want, dict) and isinstance(have, dict) and want.keys() == have.keys():
        for key in want:
            if want[key] != have[key]:
                return _difference(f"{path}.{key}", want[key], have[key])
    if isinstance(want, list) and isinstance(have, list):
        for i, (a, b) in enumerate(zip(want, have, strict=False)):
            if a != b:
                return _difference(f"{path}[{i}]", a, b)
        if len(want) != len(have):
            path += " (length)"
            want, have = len(want), len(have)
    return f"{path}: the reference has {want!r}, weft {have!r}"


def _observe(driver: Driver, instance: GraphCase, scheduled: Schedule) -> dict[str, Any]:
    """Everything that a case may record about a step, in the case's notation."""
    ids = instance.id_of
    graph = instance.graph
    copies = _copies(instance, scheduled)
    records = driver.allocator.records
    return {
        "nodes": [ids[t] for t in graph.nodes],
        "leafs": [ids[t] for t in graph.leaves],
        "auto_names": None,
        "named": None,
        "cur_copy": scheduled.cur_copy,
        "n_splits": len(scheduled.splits),
        "tensor_backend": [scheduled.backend_of.get(t, -1) for t in instance.tensors],
        "tensor_cause": [cause_code(scheduled, t) for t in instance.tensors],
        "splits": [
            {
                "backend_id": s.backend,
                "i_start": s.start,
                "i_end": s.end,
                "inputs": [ids[t] for t in s.inputs],
            }
            for s in scheduled.splits
        ],
        "copies": copies,
        "rewired": _rewired(instance, scheduled),
        "graph_inputs": [ids[t] for t in scheduled.graph_inputs],
        "graph_copy": {
            "size": scheduled.graph_size,
            "nodes": [_entry(t, instance, scheduled) for t in scheduled.plan_nodes],
            "node_backend_ids": scheduled.plan_node_backends,
            "leafs": [_entry(t, instance, scheduled) for t in scheduled.plan_leaves],
            "leaf_backend_ids": scheduled.plan_leaf_backends,
        },
        "alloc": {
            "nodes": [None if r is None else list(r) for r in records.nodes],
            "leafs": [None if r is None else list(r) for r in records.leaves],
        },
        "buffers": [
            {"size": size, "chunks": chunks, "planned": planned}
            for size, chunks, planned in zip(
                driver.allocator.sizes,
                driver.allocator.buffers,
                driver.allocator.planned,
                strict=True,
            )
        ],
        "realloc": driver.realloc,
        "backend_ids_changed": driver.backends_changed,
        "sizes": driver.sizes,
    }


def _copies(instance: GraphCase, scheduled: Schedule) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for (tensor, backend, number), copy in scheduled.copies.items():
        named: list[Any] = [None, ""]
        if copy is not tensor:
            named = [copy.name, scheduled.cause_of[copy].code]
        rows.append([instance.id_of[tensor], backend, number, *named])
    return sorted(rows, key=lambda row: row[:3])


def _rewired(instance: GraphCase, scheduled: Schedule) -> list[list[Any]]:
    """Read off the final tensors, so that what runs is compared, not only the map."""
    name_of = {copy: key for key, copy in scheduled.copies.items() if copy is not key[0]}
    rows: list[list[Any]] = []
    for node in instance.graph.nodes:
        final = scheduled.final_of(node)
        for j, (before, after) in enumerate(zip(node.src, final.src, strict=True)):
            if after in name_of:
                tensor, backend, number = name_of[after]
                entry = ["copy", instance.id_of[tensor], backend, number]
                rows.append([instance.id_of[node], j, entry])
                if scheduled.rewired[(node, j)] is not after:
                    raise _Differs(f"{node.name}: the map of rewired sources is wrong")
            elif before is not None and scheduled.final_of(before) is not after:
                raise _Differs(f"{node.name}: source {j} is not the final tensor of its source")
    return rows


def _entry(tensor: Tensor, instance: GraphCase, scheduled: Schedule) -> Any:
    role: Role | None = scheduled.roles.get(tensor)
    ids = instance.id_of
    if role is None:
        return ids[scheduled.origin.get(tensor, tensor)]
    if role.kind == "dep":
        return ["dep", ids[role.of[0]]]
    if role.kind == "copy":
        return ["copy", ids[role.of[0]], role.backend, role.copy]
    return ["keep", [ids[t] for t in role.of]]


def _record_of(
    driver: Driver, instance: GraphCase, scheduled: Schedule, number: int
) -> list[int] | None:
    position = scheduled.plan_nodes.index(scheduled.final_of(instance.tensors[number]))
    record = driver.allocator.records.nodes[position]
    return None if record is None else list(record)


def _new_allocs(driver: Driver, before: Mapping[int, int]) -> list[int]:
    counts = [0] * len(driver.buffer_types)
    for backend, total in driver.allocator.buffer_allocs.items():
        index = driver.buffer_types.index(driver.backends[backend].buffer_type)
        counts[index] += total - before.get(backend, 0)
    return counts
