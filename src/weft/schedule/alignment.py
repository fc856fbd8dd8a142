"""Brings a log of ggml and a plan, or two logs, into one form, so that what differs can be told.

Devices, nodes and copies of the log get the names that they have on the other side. Views go, as a
log has none. Sizes that a log rounds count as the same where the other side's would be printed the
same way.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from weft.graph.op import OPS
from weft.graph.ops.activations import GluOp, UnaryOp
from weft.schedule.ggml_log import CUT, SOURCE, device_of

Plan = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]

_OP_CUT = 10
"""Characters of an op that a log has."""
_OPS = {op.name[:_OP_CUT]: kind for kind, ops in (("GLU", GluOp), ("UNARY", UnaryOp)) for op in ops}
"""Name of a function in a log -> the op that has it."""
_INPUTS = {
    "inp_tokens": "tokens", "inp_pos": "positions", "attn_inp_kq_mask": "mask", "KQ_mask": "mask",
    "attn_inp_k_idxs": "cells", "inp_out_ids": "out_ids",
}  # fmt: skip
"""Name of an input in llama.cpp -> its name in weft's graphs."""
_UNNAMED = re.compile(r"(node|leaf)_\d+( |$)|\(|$")
_WEIGHT = re.compile(r"(?:\S{1,8}: )?weight (\S+) lives ")
_LAYER = re.compile(r"-(\d{1,9})\b")
_BUFFERS = {"copies": "compute", "experts": "weights"} | {
    buffer: buffer for buffer in ("weights", "cache", "compute", "output")
}
"""Buffer of a plan -> the buffer of llama.cpp that has those bytes."""


def is_log(plan: Plan) -> bool:
    """Whether data comes from a log of ggml."""
    return isinstance(plan, Mapping) and plan.get("source") == SOURCE


def aligned(a: Plan, b: Plan) -> tuple[Plan, Plan]:
    """Both sides in one form; two plans as they are.

    A log stands beside the plan for batches of its size. Where both sides are logs, the second one
    gets the names that the first one has."""
    if not (is_log(a) or is_log(b)) or a.get("aligned"):
        return a, b
    log, other = (b, a) if is_log(b) else (a, b)
    devices = _devices(log, other)
    whole = other
    if not is_log(other) and log["max_tokens"]:
        fitting = [p for p in (other, *other.get("smaller", ())) if
                   p["max_tokens"] >= log["max_tokens"]]  # fmt: skip
        other = {**other, **min(fitting, key=lambda p: p["max_tokens"], default=other)}
    one, two = _aligned_graphs(log, other, devices)
    smaller: list[tuple[Any, Any]] = []
    for small in log.get("smaller", ()):
        same = [p for p in whole.get("smaller", ()) if p["max_tokens"] == small["max_tokens"]]
        smaller += [_aligned_graphs(small, p, devices) for p in same]
        if not same and _shape(small) != _shape(log):
            smaller.append((_aligned_graphs(small, small, devices)[0], None))
    keys = [key for key in log["options"] if key in other.get("options", {})]
    beside = {
        side: {
            "smaller": [pair[side] for pair in smaller if pair[side] is not None],
            "options": {key: plan["options"][key] for key in keys},
            "memory": memory,
            "aligned": True,
        }
        for side, plan, memory in zip(
            (0, 1), (log, other), _memory(log, other, devices), strict=True
        )
    }
    one |= beside[0]
    two |= beside[1]
    one["names"] = devices
    known = {device["name"]: device for device in other["devices"]}
    mapped = {devices.get(d["name"], d["name"]): d for d in log["devices"]}
    one["devices"] = [known.get(n, mapped.get(n)) for n in sorted(
        mapped, key=lambda n: [*known, *mapped].index(n))]  # fmt: skip
    if log["n_gpu_layers"] == "":
        two["n_gpu_layers"] = ""
    return (two, one) if is_log(b) else (one, two)


def _shape(plan: Plan) -> list[str]:
    return [split["device"] for split in plan["splits"]]


def _devices(log: Plan, other: Plan) -> dict[str, str]:
    """The name on the other side for each device of a log: CUDA0 is cuda:0, CPU the last device;
    the others are paired in their order."""
    names = [device["name"] for device in other["devices"]]
    short = {re.sub(r"\W", "", name).lower(): name for name in names}
    found = {}
    for device in log["devices"]:
        name = device["name"]
        same = name if name in names else short.get(re.sub(r"\W", "", name).lower())
        if same is None and name == "CPU":
            same = names[-1]
        if same is not None:
            found[name] = same
    left = [name for name in names if name not in found.values()]
    if not is_log(other):
        left = left[: len(names) - 1] if names[-1] not in left else left[:-1]
    theirs = sorted(
        device["name"] for device in log["devices"]
        if device["name"] not in found and device["kind"] == "GPU"
    )  # fmt: skip
    return found | dict(zip(theirs, left, strict=False))


def _aligned_graphs(
    log: Plan, other: Plan, devices: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    one, two = (
        dict(plan) | {"splits": [dict(split) | {"nodes": _without_views(split)} for split in
                                 plan["splits"]]}
        for plan in (log, other)
    )  # fmt: skip
    if not any(split["nodes"] for split in log["splits"]):  # only splits, or no graph at all
        two["splits"] = [split | {"nodes": []} for split in two["splits"]] if log["splits"] else []
    for split in one["splits"]:
        split["device"] = devices.get(split["device"], split["device"])
        for node in split["nodes"]:
            node["device"] = devices.get(node["device"], node["device"])
        split["inputs"] = [
            dict(row) | {"from": devices.get(row["from"], row["from"])} for row in split["inputs"]
        ]
    old = [{id(node): node["name"] for node in _nodes(plan)} for plan in (one, two)]
    for number, (theirs, ours) in enumerate(_pairs(_nodes(one), _nodes(two))):
        _unite(theirs, ours)
        theirs["match"] = ours["match"] = number
    for plan, names, cut in ((one, old[0], CUT), (two, old[1], None)):
        new: dict[str, str] = {}  # names of nodes repeat; a copy is of the last one before it
        for split in plan["splits"]:
            split["inputs"] = [
                dict(row) | {"name": new.get(row["name"][:cut], row["name"])}
                for row in split["inputs"]
            ]
            new |= {names[id(node)]: node["name"] for node in split["nodes"]}
    _unite_copies(one, two)
    counts = log.get("counts", {})
    for plan, before, side in ((one, log, 0), (two, other, 1)):
        inputs = [row for split in plan["splits"] for row in split["inputs"]]
        totals = {"splits": len(plan["splits"]), "nodes": len(_nodes(plan))}
        if not log["splits"] and side:
            totals = {key: before["totals"][key] for key in totals}
        totals |= {key: both[0] for key, both in counts.items() if not log["splits"] and not side}
        plan["totals"] = {key: n for key, n in totals.items() if log["splits"] or key in counts}
        if log["splits"]:
            plan["totals"] |= {
                "copies": len(inputs), "copied_bytes": sum(row["bytes"] for row in inputs)
            }  # fmt: skip
    return one, two


def _without_views(split: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Copies of the nodes of a split that do something."""
    return [
        dict(node) for node in split["nodes"]
        if (op := OPS.get(node["op"])) is None or not op.is_view
    ]  # fmt: skip


def _nodes(plan: Plan) -> list[dict[str, Any]]:
    return [node for split in plan["splits"] for node in split["nodes"]]


def _pairs(
    theirs: list[dict[str, Any]], ours: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The nodes of both sides that are the same: by name and op, then by the weight that decided
    and op, then by layer and op, then by op where both sides have equally many that are left."""
    pairs = []
    waiting_theirs, waiting_ours = dict(enumerate(theirs)), dict(enumerate(ours))
    for keys in (_names, _weights, _layers, _ops):
        their_keys, our_keys = keys(theirs), keys(ours)
        numbers: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        for number in waiting_ours:
            numbers[our_keys[number]].append(number)
        counts = Counter(their_keys[number] for number in waiting_theirs)
        odd = {key for key, n in counts.items() if n != len(numbers[key])}
        for number in list(waiting_theirs):
            key = their_keys[number]
            if key is not None and numbers[key] and not (keys is _ops and key in odd):
                pairs.append((waiting_theirs.pop(number), waiting_ours.pop(numbers[key].popleft())))
    return pairs


def _op(node: Mapping[str, Any]) -> str:
    cut = str(node["op"])[:_OP_CUT]
    return cut if node["op"] in OPS else _OPS.get(cut, cut)


def _names(nodes: Rows) -> list[Hashable]:
    return [
        None if _UNNAMED.match(node["name"]) else (node["name"][:CUT], _op(node)) for node in nodes
    ]


def _weights(nodes: Rows) -> list[Hashable]:
    found = [_WEIGHT.match(node["why"]) for node in nodes]
    return [
        None if weight is None else (weight[1][:CUT], _op(node))
        for weight, node in zip(found, nodes, strict=True)
    ]


def _layers(nodes: Rows) -> list[Hashable]:
    """The layer of each node, by its name or the next one that tells, and its op."""
    layer: int | None = None
    keys: list[Hashable] = []
    for node in reversed(nodes):
        found = _LAYER.search(node["name"])
        layer = layer if found is None else int(found[1])
        keys.append((layer, _op(node)))
    return keys[::-1]


def _ops(nodes: Rows) -> list[Hashable]:
    return [_op(node) for node in nodes]


def _unite(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Gives a node the same name on both sides, and the same words for the same cause."""
    name = ours["name"]
    if _UNNAMED.match(name) and not _UNNAMED.match(theirs["name"]):
        name = f"{name} ({theirs['name']})"
    theirs["name"] = ours["name"] = name
    theirs["op"] = ours["op"]
    alike = not (theirs["cause"] and ours["cause"])  # one was built without causes
    alike = alike or theirs["cause"] == ours["cause"]
    if alike and theirs["device"] == ours["device"]:
        theirs["why"] = ours["why"]
        return
    for node in (theirs, ours):
        if node["cause"]:
            node["why"] = f"{node['cause']}: {node['why']}"
    if alike and theirs["cause"]:
        theirs["why"] = ""  # the words of `ours` say it with whole names


def _unite_copies(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Gives copies to the same device the same names: by name, inputs also by size and
    order."""
    waiting: defaultdict[str, list[Any]] = defaultdict(list)
    for split in two["splits"]:
        waiting[split["device"]] += split["inputs"]
    nodes = {node["name"] for plan in (one, two) for node in _nodes(plan)}
    left = []
    for split in one["splits"]:
        there = waiting[split["device"]]
        for row in split["inputs"]:
            called = row["name"], _INPUTS.get(row["name"])
            same = next((other for other in there if other["name"] in called), None)
            if same is not None:
                there.remove(same)
                row["name"] = same["name"]
                _unite_sizes(row, same)
            elif row["name"] not in nodes:
                left.append((row, there))
    for row, there in left:
        same = next((o for o in there if _is_size(row, o) and o["name"] not in nodes), None)
        if same is not None:
            there.remove(same)
            row["name"] = same["name"]
            _unite_sizes(row, same)


def _unite_sizes(row: dict[str, Any], other: Mapping[str, Any]) -> None:
    row["from"] = row["from"] or other["from"]
    if _is_size(row, other):
        row |= {"bytes": other["bytes"], "rounded": other.get("rounded", 1)}


def _is_size(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a log prints these bytes as it does the bytes of `row`."""
    return bool(row["bytes"] <= other["bytes"] < row["bytes"] + row.get("rounded", 1))


def _memory(
    log: Plan, other: Plan, devices: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The bytes of each buffer of each device on both sides."""
    theirs = _sums(log["memory"], lambda memory: devices.get(at := device_of(
        memory, [d["name"] for d in log["devices"]]), at))  # fmt: skip
    if is_log(other):
        ours = _sums(other["memory"], lambda memory: device_of(
            memory, [d["name"] for d in other["devices"]]))  # fmt: skip
    else:
        ours = _sums(other.get("memory", ()), lambda memory: _holder(memory, other["devices"]))
    for key, row in theirs.items():
        if key in ours and abs(row["bytes"] - ours[key]["bytes"]) * 2 <= row["rounded"]:
            row["bytes"] = ours[key]["bytes"]
    if not theirs:
        return [], []
    return list(theirs.values()), list(ours.values())


def _holder(memory: str, devices: Iterable[Mapping[str, Any]]) -> str | None:
    """The last device of a plan that has a memory, also where its name says how weights lie."""
    holders = [d["name"] for d in devices if memory.startswith(d["memory"])]
    return holders[-1] if holders else None


def _sums(rows: Rows, device: Any) -> dict[tuple[str, str], dict[str, Any]]:
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        buffer, memory = _BUFFERS.get(row["buffer"]), device(row["memory"])
        if buffer is None or memory is None:
            continue
        one = sums.setdefault(
            (buffer, memory), {"buffer": buffer, "memory": memory, "bytes": 0, "rounded": 0}
        )
        one["bytes"] += row["bytes"]
        one["rounded"] += row.get("rounded", 0)
        one |= {key: row[key] for key in ("ggml",) if key in row}
    return sums
