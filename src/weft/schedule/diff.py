"""The differences between two plans that `weft explain --save` wrote, or between a plan and a log
of ggml (`ggml_log.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weft.errors import FormatError
from weft.records import dataclass
from weft.schedule.alignment import aligned, is_log
from weft.schedule.describe import FORMAT
from weft.tables import any_layer, count_text, size_text

Plan = Mapping[str, Any]

_UNITS = {
    "n_ctx": "token", "n_ubatch": "token", "n_outputs": "row", "n_seq_max": "sequence",
    "n_copies": "ubatch", "n_gpu_layers": "layer",
}  # fmt: skip
"""The unit of the number of an option."""


def diff(a: Plan, b: Plan) -> str:
    """The differences of two plans, one a line; empty where the plans are alike.

    They are options, weights and nodes that changed device, nodes that changed cause, nodes and
    copies of one plan only, the number of nodes that moved between each pair of devices, totals and
    memory. Nodes whose names differ in numbers alone, as in equal layers, share a line. A log of
    ggml (`weft.schedule.ggml_log`) may be in place of a plan. Raises FormatError for data that is
    neither."""
    a, b = beside(a, b)
    with complete():
        return "\n".join(_lines(a, b))


def beside(a: Plan, b: Plan) -> tuple[Plan, Plan]:
    """Two plans that can be compared: a log of ggml with the names of the other side. Raises
    FormatError for data that is neither."""
    for which, plan in (("first", a), ("second", b)):
        if not isinstance(plan, Mapping) or plan.get("format") != FORMAT:
            raise FormatError(
                f"the {which} is not a plan of format {FORMAT}; write one with "
                "`weft explain MODEL --save FILE`"
            )
    with complete():
        return aligned(a, b)


@contextmanager
def complete() -> Iterator[None]:
    """Raises FormatError where a block finds that a plan lacks a field."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise FormatError(f"a plan of format {FORMAT} lacks a field: {error}") from error


def _lines(a: Plan, b: Plan) -> list[str]:
    both = is_log(a) or is_log(b)
    facts = [row for row in facts_of(a, b) if all(row[1:]) or row[0] == "devices"]
    lines = [f"{what}: {old} -> {new}" for what, old, new in (*facts, *options_of(a, b))
             if old != new]  # fmt: skip
    lines += [_line(group, both) for group in grouped(moved_leaves(a, b))]
    lines += _splits(a, b, both)
    lines += _smaller(a, b, both)
    return lines + _memory(a, b, both)


def facts_of(a: Plan, b: Plan) -> list[list[str]]:
    """[what, of a, of b] for the model, devices, layers on a device and the predicted time."""

    def facts(plan: Plan) -> dict[str, str]:
        predicted = plan.get("predicted")
        layers = plan.get("n_gpu_layers", "")
        return {
            "model": str((plan.get("model") or {}).get("file", "")),
            "devices": ", ".join(d["name"] for d in plan["devices"]),
            "layers on a device": option_text("n_gpu_layers", layers),
            "predicted time": f"{predicted['seconds'] * 1e3:.4g} ms" if predicted else "",
        }

    after = facts(b)
    return [[what, fact, after[what]] for what, fact in facts(a).items()]


def options_of(a: Plan, b: Plan) -> list[list[str]]:
    """[option, of a, of b] for the options that differ, with units."""
    before, after = (plan.get("options") or {} for plan in (a, b))
    return [
        [key, option_text(key, before.get(key, "")), option_text(key, after.get(key, ""))]
        for key in dict.fromkeys((*before, *after))
        if before.get(key, "") != after.get(key, "")
    ]


def option_text(key: str, value: Any) -> str:
    """The value of an option with its unit."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, int):
        return "none" if value is None else str(value)
    if key == "expert_budget":
        return size_text(value)
    unit = _UNITS.get(key, "")
    ending = "" if not unit or value == 1 else "es" if unit.endswith("ch") else "s"
    return f"{value:,} {unit}{ending}".rstrip()


def _splits(a: Plan, b: Plan, both: bool) -> list[str]:
    nodes = list(changed_nodes(a, b))
    lines = [_line(group, both) for group in grouped(nodes)]
    lines += [_line(group, both) for group in grouped(changed_copies(a, b))]
    moves = Counter((c.before, c.after) for c in nodes if c.what == "moved")
    for (old_device, new_device), n in moves.items():
        lines.append(f"moved: {count_text(n, 'node')} from {old_device} to {new_device}")
    for what, old, new in totals_of(a, b):
        if old != new:
            figures = _sizes(old, new, not both) if "bytes" in what else f"{old:,} -> {new:,}"
            lines.append(f"{what}: {figures}")
    return lines


def totals_of(a: Plan, b: Plan) -> list[tuple[str, int, int]]:
    """(what, in a, in b) for splits, nodes and copies."""
    return [
        (what.replace("_", " "), int(n), int(b["totals"][what]))
        for what, n in a["totals"].items()
        if what != "least_copied_bytes" and what in b["totals"]  # an older file has fewer
    ]


def _sizes(old: int, new: int, exact: bool = True) -> str:
    change = f" ({new - old:+,} B)" if exact else ""
    return f"{size_text(old)} -> {size_text(new)}{change}"


def _smaller(a: Plan, b: Plan, both: bool) -> list[str]:
    """The differences between the plans for smaller batches, where both have them."""
    lines = []
    before, after = ({p["max_tokens"]: p for p in plan.get("smaller", ())} for plan in (a, b))
    for n in sorted(before | after, reverse=True):
        tokens = count_text(n, "token")
        if n in before and n in after:
            changes = _splits(before[n], after[n], both)
            if changes:
                lines += [f"batches of up to {tokens}:", *("  " + line for line in changes)]
        else:
            lines.append(f"{'-' if n in before else '+'} a plan for batches of up to {tokens}")
    return lines


def _memory(a: Plan, b: Plan, both: bool) -> list[str]:
    lines = []
    reference = reference_bytes(a, b)
    for buffer, memory, old, new in memory_of(a, b):
        if old != new:
            # a log has hundredths of a MiB
            sizes = [f"{size / (1 << 20):.2f} MiB" for size in (old, new)]
            figures = " -> ".join(sizes) if both else _sizes(old, new)
            lines.append(f"{buffer} in {memory} memory: {figures}")
            if buffer == "compute" and memory in reference:
                figure = size_text(reference[memory])
                lines.append(f"  for the plan's graph, ggml's allocator takes {figure}")
    return lines


def reference_bytes(a: Plan, b: Plan) -> dict[str, int]:
    """Memory -> bytes that ggml's allocator takes for the graphs of a plan that is beside a log;
    empty where neither is a log."""
    if not (is_log(a) or is_log(b)):
        return {}
    rows = (row for plan in (a, b) for row in plan.get("memory", ()))
    return {row["memory"]: int(row["ggml"]) for row in rows if "ggml" in row}


_NOT_SAVED = {"scratch", "prefixes"}
"""Buffers that `weft explain --json` lists and `--save` does not, because no plan decides about
them."""


def memory_of(a: Plan, b: Plan) -> list[tuple[str, str, int, int]]:
    """(buffer, memory, bytes in a, bytes in b) for every buffer of either plan."""

    def sizes(plan: Plan) -> dict[tuple[str, str], int]:
        return {(row["buffer"], row["memory"]): int(row["bytes"]) for row in plan.get("memory", ())}

    before, after = sizes(a), sizes(b)
    saved = not all(("scratch", "threads") in rows for rows in (before, after))
    rows = ((*key, before.get(key, 0), after.get(key, 0)) for key in before | after)
    return [row for row in rows if any(row[2:]) and not (saved and row[0] in _NOT_SAVED)]


def nodes_by_name(plan: Plan) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Nodes by name and, because names may repeat, by their order among nodes of that name."""
    by_name: dict[tuple[str, int], Mapping[str, Any]] = {}
    counts: dict[str, int] = {}
    for split in plan["splits"]:
        for node in split["nodes"]:
            name = node["name"]
            key = (name, counts.get(name, 0))
            if "match" in node:  # beside a log, names need not be in one order
                key = ("", node["match"])
            by_name[key] = node
            counts[name] = counts.get(name, 0) + 1
    return by_name


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a node, weight, cache or copy between two plans."""

    what: str
    """`moved`, `why` (the cause changed), `bytes`, `gone` or `new`."""
    name: str
    kind: str
    """Op of a node; `weight`, `cache` or `copy`."""
    before: str
    """Device, or empty; for a copy its source."""
    after: str
    """Device, or empty; for a copy its destination."""
    why_before: str = ""
    why_after: str = ""
    refused: str = ""
    """The sentence with which a device of one plan refuses the node in the other one."""
    rank: int = 0
    """0 for what decides for itself, 1 for what follows a neighbour, 2 for views."""


def changed_nodes(a: Plan, b: Plan) -> Iterator[Change]:
    """The nodes that moved, stayed for another cause, or are in one plan only."""
    before, after = nodes_by_name(a), nodes_by_name(b)
    for key, old in before.items():
        new = after.get(key)
        if new is None:
            yield Change("gone", old["name"], old["op"], old["device"] or "", "", old["why"])
            continue
        devices = old["device"] or "", new["device"] or ""
        if devices[0] != devices[1]:
            refusals = [
                f"{device} refuses: {sentence}"
                for node, device in ((new, devices[0]), (old, devices[1]))
                if (sentence := node["refused"].get(device))
            ]
            yield Change(
                "moved", old["name"], old["op"], *devices, old["why"], new["why"],
                "; ".join(refusals), _rank(new["cause"]),
            )  # fmt: skip
        elif old["why"] != new["why"]:
            yield Change("why", old["name"], old["op"], *devices, old["why"], new["why"])
    for key, new in after.items():
        if key not in before:
            yield Change("new", new["name"], new["op"], "", new["device"] or "", "", new["why"])


def moved_leaves(a: Plan, b: Plan) -> Iterator[Change]:
    """The weights and caches that moved."""
    for key, kind in (("weights", "weight"), ("caches", "cache")):
        before = {row["name"]: row["device"] for row in a.get(key, ())}
        for row in b.get(key, ()):
            old = before.get(row["name"], row["device"])
            if old != row["device"]:
                yield Change("moved", row["name"], kind, old, row["device"])


def changed_copies(a: Plan, b: Plan) -> Iterator[Change]:
    """The copies that one plan makes alone, and copies of other sizes."""

    def copies(plan: Plan) -> dict[tuple[str, str, str], str]:
        return {
            (row["name"], row["from"] or "", split["device"]): _copied(row)
            for split in plan["splits"]
            for row in split["inputs"]
        }

    before, after = copies(a), copies(b)
    for key in before | after:
        old, new = before.get(key, ""), after.get(key, "")
        if old != new:
            name, source, to = key
            what = "bytes" if old and new else "new" if new else "gone"
            yield Change(what, name, "copy", source, to, old, new)


def _copied(row: Mapping[str, Any]) -> str:
    """The bytes of a copy; a log rounds them down to whole KiB or MiB."""
    size, unit = int(row["bytes"]), int(row.get("rounded", 1))
    if unit == 1:
        return size_text(size)
    return f"at least {size_text(size, 0)}" if size else f"under {size_text(unit, 0)}"


@dataclass(slots=True)
class Group:
    """Changes that are alike but for numbers of layers."""

    first: Change
    like: Change
    """The first change, with `*` for the numbers in its names."""
    names: list[str]

    @property
    def shown(self) -> Change:
        """The change as people read it: with its own name where it is alone."""
        return self.first if len(self.names) == 1 else self.like


def grouped(changes: Iterable[Change]) -> list[Group]:
    """Groups of changes: moved, new, gone, other sizes and other causes; in each of these the
    causes of others come first, then changes with the most names."""
    groups: dict[Change, Group] = {}
    for change in changes:
        texts = [change.name, change.why_before, change.why_after, change.refused]
        if change.kind == "copy":  # sizes have numbers, too
            texts[:1] = [any_layer(str(change.name))]
        else:
            texts = [any_layer(str(text)) for text in texts]
        name, why_before, why_after, refused = texts
        like = Change(
            change.what, name, change.kind, change.before, change.after, why_before, why_after,
            refused,
        )  # fmt: skip
        groups.setdefault(like, Group(change, like, [])).names.append(change.name)
    order = ("moved", "new", "gone", "bytes", "why")
    return sorted(
        groups.values(), key=lambda g: (order.index(g.first.what), g.first.rank, -len(g.names))
    )


def _rank(code: str) -> int:
    return {"2": 1, "3": 1, "4": 2}.get(code[:1], 0)


def _line(group: Group, both: bool) -> str:
    """A group as a line; `both` gives the causes of both sides."""
    n = len(group.names)
    change = group.shown
    plain = change.kind not in ("weight", "cache", "copy")
    name = change.name if plain else f"{change.kind} {change.name}"
    if change.kind == "copy":
        name = f"copy of {change.name} from {change.before or '?'} to {change.after}"
    if n > 1:
        name += f" ({n} {change.kind} nodes)" if plain else f" ({n} of them)"
    match change.what, change.kind:
        case ("bytes", _):
            return f"{name}: {change.why_before} -> {change.why_after}"
        case (("gone" | "new") as what, kind):
            sign, why = ("+", change.why_after) if what == "new" else ("-", change.why_before)
            where = change.after if what == "new" else change.before
            if kind == "copy":
                return f"{sign} {name} ({why})"
            op = f" ({kind})" if n == 1 else ""
            return f"{sign} {name}{op} on {where}" + (f" ({why})" if both and why else "")
        case ("why", _):
            return f"{name}: {change.before}, {change.why_before} -> {change.why_after}"
        case (_, "weight" | "cache"):
            return f"{name}: {change.before} -> {change.after} memory"
    before = f" ({change.why_before})" if both and change.why_before else ""
    after = f" ({change.why_after})" if change.why_after else ""
    refused = f"; {change.refused}" if both and change.refused else ""
    return f"{name}: {change.before}{before} -> {change.after}{after}{refused}"
