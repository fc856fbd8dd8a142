"""Two plans side by side as data for the page: what moved, from where to where, and why.

Both plans are data that `weft explain --save` or `--json` wrote, or a log of ggml. Nodes are the
same where they are for `weft diff`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft.schedule.alignment import is_log
from weft.schedule.diff import (
    Change,
    beside,
    changed_copies,
    changed_nodes,
    complete,
    diff,
    facts_of,
    grouped,
    memory_of,
    moved_leaves,
    nodes_by_name,
    options_of,
    reference_bytes,
    totals_of,
)
from weft.tables import count_text
from weft.version import __version__

_NAMED = 400
"""Names that a group of the page lists; it counts the others."""

Plan = Mapping[str, Any]


def diff_data(a: Plan, b: Plan, names: Sequence[str] = ("A", "B")) -> dict[str, Any]:
    """The data of the report of two plans, which `names` name.

    Keys are `kind` ("diff"), `title`, `names`, `text` (the lines of `weft diff`), `devices` of both
    plans, `facts` and `options` ([what, a, b]), `memory` ([buffer, memory, bytes a, bytes b]),
    `reference` (beside a log: memory -> bytes of ggml's allocator), `rounded` (a log is among
    them), `leaves` (groups of weights and caches that moved), and `pairs`: for each size of batches
    the `totals`, both `sides` (splits and nodes), `groups` of nodes that moved or changed and
    `copies` that differ.

    Raises FormatError for data that is not such a plan."""
    a, b = beside(a, b)
    with complete():
        return _data(a, b, names, diff(a, b).splitlines())


def _data(a: Plan, b: Plan, names: Sequence[str], lines: list[str]) -> dict[str, Any]:
    devices = {d["name"]: dict(d) for plan in (a, b) for d in plan["devices"]}
    numbers = {name: i for i, name in enumerate(devices)}
    return {
        "kind": "diff",
        "title": f"{names[0]} and {names[1]}",
        "weft": __version__,
        "names": list(names),
        "text": lines,
        "devices": list(devices.values()),
        "facts": facts_of(a, b),
        "options": options_of(a, b),
        "memory": [list(row) for row in memory_of(a, b)],
        "reference": reference_bytes(a, b),
        "rounded": is_log(a) or is_log(b),
        "leaves": _rows(moved_leaves(a, b)),
        "pairs": [
            {
                "label": label,
                "totals": [list(row) for row in totals_of(one, other)],
                "sides": [_side(one, other, numbers), _side(other, one, numbers)],
                "groups": _rows(changed_nodes(one, other)),
                "copies": _rows(changed_copies(one, other)),
            }
            for label, one, other in _pairs(a, b)
        ],
    }


def _pairs(a: Plan, b: Plan) -> Iterator[tuple[str, Plan, Plan]]:
    """The plans for the largest batches, and those for smaller ones that both have."""
    yield "the largest batches", a, b
    before, after = ({p["max_tokens"]: p for p in plan.get("smaller", ())} for plan in (a, b))
    for n in sorted(before.keys() & after.keys(), reverse=True):
        yield f"batches of up to {count_text(n, 'token')}", before[n], after[n]


def _side(plan: Plan, other: Plan, devices: Mapping[str, int]) -> dict[str, Any]:
    """Splits, and columns of nodes in the order of the run; `moved` is 1 where the other plan has
    the node elsewhere, 2 where it has none of that name."""
    theirs = nodes_by_name(other)
    columns: dict[str, list[Any]] = {key: [] for key in ("op", "device", "split", "moved")}
    split_of = [n for n, split in enumerate(plan["splits"]) for _ in split["nodes"]]
    for (key, node), split in zip(nodes_by_name(plan).items(), split_of, strict=True):
        there = theirs.get(key)
        columns["op"].append(node["op"])
        columns["device"].append(devices.get(node["device"], -1))
        columns["split"].append(split)
        moved = 2 if there is None else int(there["device"] != node["device"])
        columns["moved"].append(moved)
    return {
        "splits": [
            {
                "device": split["device"],
                "inputs": [
                    {"name": i["name"], "from": i["from"], "bytes": int(i["bytes"])}
                    for i in split["inputs"]
                ],
            }
            for split in plan["splits"]
        ],
        "nodes": columns,
    }


def _rows(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """The rows of a table of changes, grouped."""
    return [
        {
            "what": one.what, "name": one.name, "kind": one.kind, "from": one.before,
            "to": one.after, "why_before": one.why_before, "why_after": one.why_after,
            "refused": one.refused, "n": len(group.names), "names": group.names[:_NAMED],
        }
        for group in grouped(changes)
        for one in [group.shown]
    ]  # fmt: skip
