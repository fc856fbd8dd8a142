"""What moved between two plans, as `Schedule.to_json` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.errors import FormatError
from weft.schedule.explain import FORMAT

__all__ = ["diff"]


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Nodes that changed device or cause, nodes of one plan only, and the totals; empty where the
    plans are alike. Raises FormatError for data that is not such a plan."""
    for plan in (a, b):
        if not isinstance(plan, Mapping) or plan.get("format") != FORMAT:
            raise FormatError(f"not a plan of format {FORMAT}; save one with to_json")
    try:
        return "\n".join(_lines(a, b))
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"a plan of format {FORMAT} lacks a field: {error}") from error


def _lines(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    lines = []
    before, after = _nodes(a), _nodes(b)
    for key, old in before.items():
        new = after.get(key)
        if new is None:
            lines.append(f"- {old['name']} ({old['op']}) on {old['device']}")
        elif old["device"] != new["device"]:
            lines.append(f"{old['name']}: {old['device']} -> {new['device']} ({new['why']})")
        elif old["why"] != new["why"]:
            lines.append(f"{old['name']}: {old['device']}, {old['why']} -> {new['why']}")
    for key, new in after.items():
        if key not in before:
            lines.append(f"+ {new['name']} ({new['op']}) on {new['device']}")
    for what, old_total in a["totals"].items():
        if old_total != b["totals"][what]:
            lines.append(f"{what.replace('_', ' ')}: {old_total:,} -> {b['totals'][what]:,}")
    return lines


def _nodes(plan: Mapping[str, Any]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """By name; of several with one name, by their order too."""
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    seen: dict[str, int] = {}
    for split in plan["splits"]:
        for node in split["nodes"]:
            name = node["name"]
            found[(name, seen.get(name, 0))] = node
            seen[name] = seen.get(name, 0) + 1
    return found
