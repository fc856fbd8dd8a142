"""The differences between two plans that `weft explain --save` wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from weft.errors import FormatError
from weft.schedule.describe import FORMAT


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """The differences of two plans, one a line; empty where the plans are alike.

    They are weights and nodes that changed device, nodes that changed cause, nodes of one plan
    only, the number of nodes that moved between each pair of devices, totals and memory. Raises
    FormatError for data that is not such a plan."""
    for plan in (a, b):
        if not isinstance(plan, Mapping) or plan.get("format") != FORMAT:
            raise FormatError(
                f"not a plan of format {FORMAT}; write one with `weft explain MODEL --save FILE`"
            )
    try:
        return "\n".join(_lines(a, b))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"a plan of format {FORMAT} lacks a field: {error}") from error


def _lines(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    lines = []
    old_devices, new_devices = (", ".join(d["name"] for d in p["devices"]) for p in (a, b))
    if old_devices != new_devices:
        lines.append(f"devices: {old_devices} -> {new_devices}")
    lines += _moved_leaves(a, b)
    lines += _splits(a, b)
    lines += _smaller(a, b)
    lines += _memory(a, b)
    return lines


def _splits(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    lines = _moved_nodes(a, b)
    old_totals, new_totals = _totals(a), _totals(b)
    for what, old_total in old_totals.items():
        if old_total != new_totals.get(what, old_total):  # an older file has fewer
            lines.append(f"{what.replace('_', ' ')}: {old_total:,} -> {new_totals[what]:,}")
    return lines


def _smaller(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The differences between the plans for smaller batches, where both have them."""
    lines = []
    before, after = ({p["max_tokens"]: p for p in plan.get("smaller", ())} for plan in (a, b))
    for n in sorted(before | after, reverse=True):
        if n in before and n in after:
            changes = _splits(before[n], after[n])
            if changes:
                lines += [f"batches of up to {n}:", *("  " + line for line in changes)]
        else:
            lines.append(f"{'-' if n in before else '+'} a plan for batches of up to {n}")
    return lines


def _totals(plan: Mapping[str, Any]) -> dict[str, int]:
    return {k: n for k, n in plan["totals"].items() if k != "least_copied_bytes"}


def _moved_leaves(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, what in (("weights", "weight"), ("caches", "cache")):
        before = {w["name"]: w["device"] for w in a.get(key, ())}
        for w in b.get(key, ()):
            old = before.get(w["name"], w["device"])
            if old != w["device"]:
                lines.append(f"{what} {w['name']}: {old} -> {w['device']} memory")
    return lines


def _moved_nodes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    lines = []
    moves: Counter[tuple[str, str]] = Counter()
    before, after = nodes_by_name(a), nodes_by_name(b)
    for key, old in before.items():
        new = after.get(key)
        if new is None:
            lines.append(f"- {old['name']} ({old['op']}) on {old['device']}")
        elif old["device"] != new["device"]:
            moves[old["device"], new["device"]] += 1
            lines.append(f"{old['name']}: {old['device']} -> {new['device']} ({new['why']})")
        elif old["why"] != new["why"]:
            lines.append(f"{old['name']}: {old['device']}, {old['why']} -> {new['why']}")
    for key, new in after.items():
        if key not in before:
            lines.append(f"+ {new['name']} ({new['op']}) on {new['device']}")
    for (old_device, new_device), n in moves.items():
        lines.append(f"moved: {n} node{'s' if n > 1 else ''} from {old_device} to {new_device}")
    return lines


def _memory(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    def sizes(plan: Mapping[str, Any]) -> dict[tuple[str, str], int]:
        return {(row["buffer"], row["memory"]): row["bytes"] for row in plan.get("memory", ())}

    before, after = sizes(a), sizes(b)
    lines = []
    for key in before | after:
        old, new = before.get(key, 0), after.get(key, 0)
        if old != new:
            lines.append(f"{key[0]} in {key[1]} memory: {old:,} -> {new:,} B")
    return lines


def nodes_by_name(plan: Mapping[str, Any]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Nodes by name and, because names may repeat, by their order among nodes of that name."""
    by_name: dict[tuple[str, int], Mapping[str, Any]] = {}
    counts: dict[str, int] = {}
    for split in plan["splits"]:
        for node in split["nodes"]:
            name = node["name"]
            by_name[(name, counts.get(name, 0))] = node
            counts[name] = counts.get(name, 0) + 1
    return by_name
