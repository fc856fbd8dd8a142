"""Two plans side by side as data for the page: what moved, from where to where, and why.

Both plans are data that `weft explain --save` or `--json` wrote. Nodes are the same where their
names are, as for `weft diff`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.errors import FormatError
from weft.records import dataclass
from weft.schedule.describe import FORMAT as PLAN_FORMAT
from weft.schedule.diff import diff, nodes_by_name
from weft.version import __version__

_NAMED = 400
"""Names that a group of the page lists; it counts the others."""

Plan = Mapping[str, Any]


def diff_data(a: Plan, b: Plan, names: Sequence[str] = ("A", "B")) -> dict[str, Any]:
    """The data of the report of two plans, which `names` name.

    Keys are `kind` ("diff"), `title`, `names`, `text` (the lines of `weft diff`), `devices` of both
    plans, `facts` and `options` ([what, a, b]), `memory` ([buffer, memory, bytes a, bytes b]),
    `leaves` (groups of weights and caches that moved), and `pairs`: for each size of batches the
    `totals`, both `sides` (splits and nodes) and `groups` of nodes that moved or changed.

    Raises FormatError for data that is not such a plan."""
    lines = diff(a, b).splitlines()
    try:
        return _data(a, b, names, lines)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise FormatError(f"a plan of format {PLAN_FORMAT} lacks a field: {error}") from error


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
        "facts": [[what, fact, _facts(b)[what]] for what, fact in _facts(a).items()],
        "options": _options(a, b),
        "memory": _memory(a, b),
        "leaves": [group.data() for group in _grouped(_moved_leaves(a, b))],
        "pairs": [
            {
                "label": label,
                "totals": [
                    [what.replace("_", " "), int(one["totals"][what]), int(other["totals"][what])]
                    for what in one["totals"]
                    if what in other["totals"]
                ],
                "sides": [_side(one, other, numbers), _side(other, one, numbers)],
                "groups": [group.data() for group in _grouped(_changed_nodes(one, other))],
            }
            for label, one, other in _pairs(a, b)
        ],
    }


def _facts(plan: Plan) -> dict[str, str]:
    predicted = plan.get("predicted")
    return {
        "model": str((plan.get("model") or {}).get("file", "")),
        "devices": ", ".join(d["name"] for d in plan["devices"]),
        "layers on a device": str(plan.get("n_gpu_layers", "")),
        "predicted seconds": f"{predicted['seconds']:.4g}" if predicted else "",
    }


def _pairs(a: Plan, b: Plan) -> Iterator[tuple[str, Plan, Plan]]:
    """The plans for the largest batches, and those for smaller ones that both have."""
    yield "the largest batches", a, b
    before, after = ({p["max_tokens"]: p for p in plan.get("smaller", ())} for plan in (a, b))
    for n in sorted(before.keys() & after.keys(), reverse=True):
        yield f"batches of up to {n} token{'s' if n > 1 else ''}", before[n], after[n]


def _options(a: Plan, b: Plan) -> list[list[str]]:
    before, after = (plan.get("options") or {} for plan in (a, b))
    keys = dict.fromkeys((*before, *after))
    rows = [[key, str(before.get(key, "")), str(after.get(key, ""))] for key in keys]
    return [row for row in rows if row[1] != row[2]]


def _memory(a: Plan, b: Plan) -> list[list[Any]]:
    def sizes(plan: Plan) -> dict[tuple[str, str], int]:
        return {(r["buffer"], r["memory"]): int(r["bytes"]) for r in plan.get("memory", ())}

    before, after = sizes(a), sizes(b)
    return [[*key, before.get(key, 0), after.get(key, 0)] for key in before | after]


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


@dataclass(frozen=True, slots=True)
class _Change:
    """The change of a node, weight or cache between two plans."""

    what: str
    """`moved`, `why` (the cause changed), `gone` or `new`."""
    name: str
    kind: str
    """Op of a node; `weight` or `cache`."""
    before: str
    """Device, or empty."""
    after: str
    why_before: str = ""
    why_after: str = ""
    refused: str = ""
    """The sentence with which the device of before refuses the node in the other plan."""
    rank: int = 0
    """0 for what decides for itself, 1 for what follows a neighbour, 2 for views."""


def _changed_nodes(a: Plan, b: Plan) -> Iterator[_Change]:
    before, after = nodes_by_name(a), nodes_by_name(b)
    for key, old in before.items():
        new = after.get(key)
        if new is None:
            yield _Change("gone", old["name"], old["op"], old["device"] or "", "", old["why"])
            continue
        devices = old["device"] or "", new["device"] or ""
        if devices[0] != devices[1]:
            refused = new["refused"].get(devices[0], "")
            yield _Change(
                "moved", old["name"], old["op"], *devices, old["why"], new["why"], refused,
                _rank(new["cause"]),
            )  # fmt: skip
        elif old["why"] != new["why"]:
            yield _Change("why", old["name"], old["op"], *devices, old["why"], new["why"])
    for key, new in after.items():
        if key not in before:
            yield _Change("new", new["name"], new["op"], "", new["device"] or "", "", new["why"])


def _moved_leaves(a: Plan, b: Plan) -> Iterator[_Change]:
    for key, kind in (("weights", "weight"), ("caches", "cache")):
        before = {row["name"]: row["device"] for row in a.get(key, ())}
        for row in b.get(key, ()):
            old = before.get(row["name"], row["device"])
            if old != row["device"]:
                yield _Change("moved", row["name"], kind, old, row["device"])


@dataclass(slots=True)
class _Group:
    """Changes that are alike but for numbers of layers."""

    first: _Change
    like: tuple[str, ...]
    names: list[str]

    def data(self) -> dict[str, Any]:
        """A row of the page."""
        name, kind, before, after, why_before, why_after, refused = self.like[1:]
        return {
            "what": self.first.what, "name": name, "kind": kind, "from": before, "to": after,
            "why_before": why_before, "why_after": why_after, "refused": refused,
            "n": len(self.names), "names": self.names[:_NAMED],
        }  # fmt: skip


def _grouped(changes: Iterator[_Change]) -> list[_Group]:
    """Groups of changes: moved, new, gone, and other reasons; in each group the causes of others
    come first, then changes with the most names."""
    groups: dict[tuple[str, ...], _Group] = {}
    for change in changes:
        like = (
            change.what, _any(change.name), change.kind, change.before, change.after,
            _any(change.why_before), _any(change.why_after), _any(change.refused),
        )  # fmt: skip
        groups.setdefault(like, _Group(change, like, [])).names.append(change.name)
    order = ("moved", "new", "gone", "why")
    return sorted(
        groups.values(), key=lambda g: (order.index(g.first.what), g.first.rank, -len(g.names))
    )


def _rank(code: str) -> int:
    return {"2": 1, "3": 1, "4": 2}.get(code[:1], 0)


def _any(text: str) -> str:
    """A text in which numbers in names are `*`."""
    return re.sub(r"(?<=[._-])\d+", "*", str(text))
