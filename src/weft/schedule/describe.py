"""A schedule as plain data: devices, splits, each node's device and cause, totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from weft.backends.base import Backend
from weft.graph.graph import Graph
from weft.graph.host import HOST
from weft.graph.rewrite import Rewritten
from weft.graph.size import lower
from weft.graph.tensor import Tensor, shape_text
from weft.schedule.cause import ADDED, COPY, DESTINATION, INPUT, OFFLOADED, VIEWED, Cause
from weft.schedule.parts import Prediction, Role, Split

FORMAT = "weft-plan-1"
"""The format of `to_json`; it changes when the keys do."""


class Placed(Protocol):
    """The fields of a schedule that descriptions read."""

    @property
    def graph(self) -> Graph: ...
    @property
    def backends(self) -> tuple[Backend, ...]: ...
    @property
    def n_copies(self) -> int: ...
    @property
    def cur_copy(self) -> int: ...
    @property
    def backend_of(self) -> dict[Tensor, int]: ...
    @property
    def cause_of(self) -> dict[Tensor, Cause]: ...
    @property
    def refusals(self) -> dict[tuple[Tensor, int], str]: ...
    @property
    def splits(self) -> list[Split]: ...
    @property
    def origin(self) -> dict[Tensor, Tensor]: ...
    @property
    def roles(self) -> dict[Tensor, Role]: ...
    @property
    def notes(self) -> dict[Tensor, str]: ...
    @property
    def added(self) -> dict[Tensor, Tensor]: ...
    @property
    def rewritten(self) -> list[Rewritten]: ...
    @property
    def generalized(self) -> list[tuple[str, str]]: ...
    @property
    def predicted(self) -> Prediction | None: ...


def name_of(tensor: Tensor) -> str:
    """The tensor's name, or its op where it has none."""
    return tensor.name or tensor.op.name.lower()


def cause_text(schedule: Placed, tensor: Tensor) -> str:
    """The reason why `tensor` is where it is, with the names of the tensors that decided."""
    text = _cause(schedule, tensor)
    note = schedule.notes.get(tensor)
    return text if note is None else f"{text}: {note}"


def _cause(schedule: Placed, tensor: Tensor) -> str:
    cause = cause_of(schedule, tensor)
    if cause is None:
        return "not assigned"
    if cause is ADDED:
        return f"its device adds it for {name_of(schedule.added[tensor])}"
    if cause in (DESTINATION, VIEWED):
        base = tensor if tensor.view_src is None else tensor.view_src
        if base.buffer is not None:
            what = "it" if base is tensor else name_of(base)
            return f"{what} lives in {_memory(base)} memory"
        return f"the tensor it views, {name_of(base)}, is there"
    if cause.weight is not None:
        weight = tensor.src[cause.weight]
        assert weight is not None
        lives = f"weight {name_of(weight)} lives in {_memory(weight)} memory"
        asked = cause.rule == OFFLOADED.rule
        return f"asked for by the device; {lives}" if asked else lives
    if cause is INPUT:
        return "it is an input, the last device holds those"
    return cause.meaning


def cause_code(schedule: Placed, tensor: Tensor) -> str:
    """The cause as the reference prints it, such as `1.wgt0`; empty where there is none."""
    cause = cause_of(schedule, tensor)
    return "" if cause is None else cause.code


def cause_of(schedule: Placed, tensor: Tensor) -> Cause | None:
    """The cause of a tensor of the graph, or of one that the scheduler or a device has added."""
    cause = schedule.cause_of.get(schedule.origin.get(tensor, tensor))
    if cause is not None:
        return cause
    if tensor in schedule.added:
        return ADDED
    role = schedule.roles.get(tensor)
    return COPY if role is not None and role.kind == "copy" else None


def device_of(schedule: Placed, tensor: Tensor) -> int:
    """The number of the device of such a tensor; -1: it has none."""
    role = schedule.roles.get(tensor)
    if role is not None:
        return role.backend
    tensor = schedule.added.get(tensor, tensor)
    if tensor in schedule.added:  # a chain of added nodes
        return device_of(schedule, tensor)
    return schedule.backend_of.get(schedule.origin.get(tensor, tensor), -1)


def _memory(tensor: Tensor) -> str:
    buffer_type = tensor.buffer.type if tensor.buffer is not None else None
    return "host" if buffer_type is None else str(buffer_type.name)


def refused(schedule: Placed, node: Tensor) -> dict[str, str]:
    """The sentence with which each other device refuses `node`, by device name.

    Devices that the passes had no reason to try are tried here."""
    if node.op.is_view:
        return {}
    sentences = {}
    own = schedule.backend_of.get(node, -1)
    for b, backend in enumerate(schedule.backends):
        # the host device refuses everything but functions, which explains nothing
        if b == own or (backend.name == "host" and node.op is not HOST):
            continue
        sentence = schedule.refusals.get((node, b))
        if sentence is None:
            support = backend.supports_op(node)
            if support.ok:
                continue
            sentence = support.why or f"does not run {node.op.name}"
        sentences[backend.name] = sentence
    return sentences


def to_json(schedule: Placed) -> dict[str, Any]:
    """The schedule as plain data: `format`, `devices`, `splits` and `totals`.

    A split has its device, node range (`end` is after the last), inputs and nodes. An input has its
    `bytes` at the symbols' maxima and `least_bytes` at their minima. A node has its device, cause,
    cause in words, and the refusals of other devices."""
    names = [b.name for b in schedule.backends]

    def device(tensor: Tensor) -> str | None:
        index = schedule.backend_of.get(tensor, -1)
        return None if index < 0 else names[index]

    def node_data(i: int) -> dict[str, Any]:
        node = schedule.graph.nodes[i]
        what = {"index": i, "name": node.name, "op": node.op.name, "shape": shape_text(node)}
        where = {"type": node.dtype.name, "device": device(node)}
        cause = {"cause": cause_code(schedule, node), "why": cause_text(schedule, node)}
        return what | where | cause | {"refused": refused(schedule, node)}

    def input_data(t: Tensor) -> dict[str, Any]:
        bounds = {"bytes": t.max_bytes, "least_bytes": lower(t.nbytes)}
        return {"name": t.name, "from": device(t)} | bounds

    splits = [
        {
            "split": number,
            "device": names[split.backend],
            "start": split.start,
            "end": split.end,
            "inputs": [input_data(t) for t in split.inputs],
            "nodes": [node_data(i) for i in range(split.start, split.end)],
        }
        for number, split in enumerate(schedule.splits)
    ]
    data = {
        "format": FORMAT,
        "devices": [
            {"name": b.name, "kind": b.kind, "memory": b.buffer_type.name}
            for b in schedule.backends
        ],
        "n_copies": schedule.n_copies,
        "splits": splits,
        "totals": _totals(schedule.splits, schedule.graph),
    }
    if schedule.rewritten:
        counts = Counter(r.name for r in schedule.rewritten)
        removed = sum(r.removed for r in schedule.rewritten)
        data["rewrites"] = {"counts": dict(counts), "removed_nodes": removed}
    if schedule.generalized:
        data["general"] = [
            {"op": op, "as": general, "count": n}
            for (op, general), n in Counter(schedule.generalized).items()
        ]
    if schedule.predicted is not None:
        data["predicted"] = schedule.predicted.to_json()
    return data


def _totals(splits: Sequence[Split], graph: Graph) -> dict[str, int]:
    """Counts: `nodes` of the graph, `views` among them, `ops` that run after others were fused."""
    crossing = [t for split in splits for t in split.inputs]
    return {
        "splits": len(splits),
        "nodes": len(graph.nodes),
        "views": sum(node.op.is_view for node in graph.nodes),
        "ops": sum(split.n_ops for split in splits),
        "copies": len(crossing),
        "copied_bytes": sum(t.max_bytes for t in crossing),
        "least_copied_bytes": sum(lower(t.nbytes) for t in crossing),
    }
