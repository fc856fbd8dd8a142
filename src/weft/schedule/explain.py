"""A schedule in words: the table of splits and nodes, everything about a single tensor, and the
listing of what runs."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from weft.errors import ScheduleError
from weft.flags import FLAGS
from weft.graph.tensor import Tensor, shape_text
from weft.schedule.cause import code_meaning
from weft.schedule.describe import (
    Placed,
    cause_code,
    cause_text,
    device_of,
    name_of,
    refused,
    to_json,
)
from weft.tables import count_text, size_text

_WIDE = 100
"""Minimum number of columns at which a line has a node's whole name and the code of its cause."""
_SHORT = {
    r"^weight (\S+) lives in \S+ memory$": r"weight \1",
    r"^(\S+) lives in \S+ memory$": r"\1 is there",
    r"^a neighbour is there, and the device runs it": "a neighbour is there",
    r"^the tensor it views, (\S+), is there$": r"it views \1",
}

# A line with fewer free columns than this continues its text in the next line.
_LEAST_TEXT = 24


def table(schedule: Placed, width: int | None = None) -> str:
    """The devices, the splits, their nodes and the totals as text.

    A split has its device, node range and inputs with bytes; a node has a line with device, cause
    and refusals. Nothing is cut: lines longer than `width` are broken."""
    return "\n".join(table_lines(to_json(schedule), width))


def table_lines(
    data: Mapping[str, Any], width: int | None = None, *, nodes: bool = True,
    in_short: bool = False, fold: bool = False,
) -> list[str]:  # fmt: skip
    """The table of a result of `to_json`; without `nodes` it has splits and totals only.

    Lines longer than `width` are broken. With `in_short` a node has one line, in which the cause is
    short and long names are cut; with `fold`, of nodes that repeat, as in equal layers, the first
    ones alone are there."""
    lines = ["devices: " + ", ".join(f"{d['name']} ({d['kind']})" for d in data["devices"])]
    rows = [node for split in data["splits"] for node in split["nodes"]]
    narrow = in_short and width is not None and width < _WIDE
    name_width = min(18 if narrow else 40, max((len(r["name"]) for r in rows), default=0))
    op_width = max((len(r["op"]) for r in rows), default=0)
    device_width = max(len(d["name"]) for d in data["devices"])
    keys = {id(split): [node_key(node) for node in split["nodes"]] for split in data["splits"]}
    whole = [(split["device"], len(split["inputs"]), keys[id(split)]) for split in data["splits"]]
    for split, more in folded(data["splits"], whole, 1 if fold else 0):
        if more:
            first = split["split"]
            lines += [""] if nodes else []
            lines.append(f"splits {first}..{first + more.hidden - 1}: the {more.text('split')}")
            continue
        heading = f"split {split['split']}: {split['device']}, {_range(split)}"
        if not nodes:
            lines.append(heading + _copies(split["inputs"]))
            continue
        lines += ["", heading]
        for entry in split["inputs"]:
            copied = f"{entry['name']} from {entry['from']} ({_bytes(entry)})"
            lines += _broken("  copies ", copied, width)
        for r, more in folded(split["nodes"], keys[id(split)], LEAST_FOLD if fold else 0):
            if more:
                last = r["index"] + more.hidden - 1
                lines.append(f"  {r['index']:>5}..{last}: the {more.text('node')}")
                continue
            head = (
                f"  {r['index']:>5}  {_cut(r['name'], name_width):<{name_width}}  "
                f"{r['op']:<{op_width}}  {r['device'] or '-':<{device_width}}  "
            )
            head += "" if narrow else f"{r['cause']:<6}  "
            if in_short and width is not None:
                lines.append(_cut(head + _in_short(r["why"]), width).rstrip())
            else:
                lines += _broken(head, r["why"], width)
            for name, reason in r["refused"].items():
                lines += _broken(f"         {name} refused: ", reason, width)
    if in_short and nodes and not narrow:
        for line in _legend(rows):
            lines += _broken("", line, width)
    lines.append("")
    for line in _total_lines(data):
        lines += _broken("", line, width)
    return lines


LEAST_FOLD = 8
"""Minimum number of nodes of a layer that is left out because it repeats the one before."""

_MOST_FOLD = 2000
"""Maximum number of nodes of such a layer, which bounds the time of the search."""


class Fold(NamedTuple):
    """Rows that are left out, as they repeat the `period` rows before them."""

    period: int
    times: int

    @property
    def hidden(self) -> int:
        """The number of rows that are left out."""
        return self.period * self.times

    def text(self, what: str) -> str:
        """The fold in words, such as `28 nodes before, 3 more times (--nodes lists all)`."""
        rows = f"{self.period} {what}s" if self.period > 1 else what
        times = f"{count_text(self.times, 'more time')}"
        return f"{rows} before, {times} (--nodes lists all)"


def node_key(row: Mapping[str, Any]) -> tuple[str, str | None, str]:
    """What is equal in nodes that are alike: numbers in names do not count."""
    words = re.sub(r"\d+", "#", f"{row['name']} {row['op']} {row['why']}")
    return words, row["device"], str(row["refused"])


def folded(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[Any], least: int
) -> Iterator[tuple[Mapping[str, Any], Fold | None]]:
    """The rows, of which those with the keys of the rows just before them are left out, with a fold
    beside the first one. A period has `least` rows or more; 0: nothing is left out."""
    place = 0
    while place < len(rows):
        longest = min((len(rows) - place) // 3, _MOST_FOLD)
        for period in range(least, longest + 1) if least else ():
            end = place
            while end + period < len(rows) and keys[end] == keys[end + period]:
                end += 1
            times = (end - place) // period + 1
            if times > 2:
                yield from ((row, None) for row in rows[place : place + period])
                yield rows[place + period], Fold(period, times - 1)
                place += period * times
                break
        else:
            yield rows[place], None
            place += 1


def _legend(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The meaning of each code among the causes of these rows."""
    codes = sorted({row["cause"] for row in rows} - {""})
    if codes:
        yield ""
        yield "codes before the reasons: the pass of the scheduler that decided, and its rule"
    for code in codes:
        yield f"  {code:<6}  {code_meaning(code)}"


def _copies(inputs: Sequence[Mapping[str, Any]]) -> str:
    """The number and the bytes of the tensors that a split copies."""
    if not inputs:
        return ""
    sums = {key: sum(entry[key] for entry in inputs) for key in ("bytes", "least_bytes")}
    return f", {len(inputs)} cop{'y' if len(inputs) == 1 else 'ies'} of {_bytes(sums)}"


def _in_short(why: str) -> str:
    """A cause without the words that its line repeats."""
    for long, short in _SHORT.items():
        why = re.sub(long, short, why)
    return why


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _range(split: Mapping[str, Any]) -> str:
    first, last = split["start"], split["end"] - 1
    if last < first:
        return "no nodes"
    return f"node {first}" if first == last else f"nodes {first}..{last}"


def _bytes(entry: Mapping[str, Any]) -> str:
    most, least = entry["bytes"], entry["least_bytes"]
    return f"{most:,} B" if most == least else f"{least:,} to {most:,} B"


def _total_lines(data: Mapping[str, Any]) -> list[str]:
    t = data["totals"]
    copied = _bytes({"bytes": t["copied_bytes"], "least_bytes": t["least_copied_bytes"]})
    lines = [
        f"total: {count_text(t['splits'], 'split')}, {t['nodes']} nodes, "
        f"{t['copies']} copies, {copied} copied per pass",
        ops_text(t),
    ]
    if "rewrites" in data:
        counts = ", ".join(f"{name} {n}" for name, n in data["rewrites"]["counts"].items())
        lines.append(f"fused: {counts}")
    if "general" in data:
        forms = (f"{f['count']} {f['op']} as {f['as']}" for f in data["general"])
        lines.append(f"in general form: {', '.join(forms)}")
    if "predicted" in data:
        lines.append(prediction_text(data["predicted"]))
    return lines


def ops_text(totals: Mapping[str, int]) -> str:
    """How many ops run of a graph, and what its other nodes are."""
    nodes, views, ops = (totals[key] for key in ("nodes", "views", "ops"))
    joined = nodes - views - ops
    others = [f"{views} {_be(views)} views"] if views else []
    others += [f"{joined} {_be(joined)} joined with these"] if joined > 0 else []
    rest = f"; of the other nodes {', '.join(others)}" if others else ""
    return f"{count_text(ops, 'op')} run{'s' if ops == 1 else ''}{rest}"


def _be(n: int) -> str:
    return "is" if n == 1 else "are"


def prediction_text(p: Mapping[str, Any]) -> str:
    """A result of `Prediction.to_json` as a line."""
    devices = ", ".join(f"{seconds_text(s)} on {name}" for name, s in p["by_device"].items())
    return (
        f"predicted: {seconds_text(p['seconds'])} per {p['of']} ({devices}; copies "
        f"{seconds_text(p['copies'])}, starting splits {seconds_text(p['splits'])})"
    )


def seconds_text(seconds: float) -> str:
    """Seconds as text, such as `12.3 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs" if seconds else "0"


def _broken(head: str, text: str, width: int | None) -> list[str]:
    """`head` and `text` in one line, or in as many lines as `width` needs."""
    if width is None or len(head) + len(text) <= width:
        return [(head + text).rstrip()]
    room = width - len(head)
    if room < _LEAST_TEXT:
        return [head.rstrip(), *_indented(text, 12, width)]
    first, *following = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return [head + first, *(" " * len(head) + line for line in following)]


def _indented(text: str, indent: int, width: int) -> list[str]:
    room = max(width - indent, _LEAST_TEXT)
    return [" " * indent + line for line in textwrap.wrap(text, room, break_on_hyphens=False)]


def why(schedule: Placed, name: str) -> str:
    """Everything known about one tensor of the graph, by its name or by the number of its node.

    That is its device, its cause, the refusals of the other devices, its split, and the copies that
    its readers use instead. Raises ScheduleError for a name the graph does not have."""
    every, nodes = [*schedule.graph.tensors, *schedule.added], schedule.graph.nodes
    tensors = [t for t in every if t.name == name]
    if not tensors and re.fullmatch(r"[0-9]{1,9}", name) and int(name) < len(nodes):
        tensors = [nodes[int(name)]]
    if not tensors:
        near = get_close_matches(name, [t.name for t in every], 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ScheduleError(
            f"the graph has no tensor called {name!r}{hint}; a node of its {len(nodes)} may be "
            "named by its number, from 0"
        )
    return "\n".join(line for tensor in tensors for line in _why_lines(schedule, tensor))


def _why_lines(schedule: Placed, tensor: Tensor) -> list[str]:
    own = device_of(schedule, tensor)
    where = "no device" if own < 0 else schedule.backends[own].name
    code = cause_code(schedule, tensor)
    lines = [
        f"{name_of(tensor)}: {tensor.op.name} {tensor.dtype.name}{shape_text(tensor)} on {where}",
        f"  because ({code or '-'}) {cause_text(schedule, tensor)}",
    ]
    if tensor in schedule.added:
        return lines
    refusals = refused(schedule, tensor)
    for b, other in enumerate(schedule.backends):
        if other.name in refusals:
            lines.append(f"  {other.name} refused: {refusals[other.name]}")
        elif b != own and tensor.src and not tensor.op.is_view:
            lines.append(f"  {other.name} runs it, too{_would_copy(schedule, tensor, b)}")
    for number, split in enumerate(schedule.splits):
        name = schedule.backends[split.backend].name
        if tensor in schedule.graph.nodes[split.start : split.end]:
            lines.append(f"  runs in split {number} ({name})")
        if tensor in split.inputs:
            lines.append(f"  copied to {name} before split {number} ({tensor.max_bytes:,} B)")
    return lines


def _would_copy(schedule: Placed, node: Tensor, backend: int) -> str:
    """The copies that `node` would need on `backend`, with every other tensor where it is."""
    there = schedule.backends[backend]
    foreign: list[Tensor] = []
    for src in node.src:
        if src is None or src in foreign:
            continue
        base = src if src.view_src is None else src.view_src
        if base.buffer is not None:
            memory = base.buffer.type or schedule.backends[-1].buffer_type
        else:
            at = schedule.backend_of.get(src, -1)
            if at in (-1, backend):
                continue
            memory = schedule.backends[at].buffer_type
        if not there.supports_buffer_type(memory):
            foreign.append(src)
    if not foreign:
        return ""
    total = sum(src.max_bytes for src in foreign)
    names = ", ".join(name_of(src) for src in foreign)
    return f"; it would read copies of {names} ({total:,} B)"


def print_listing(schedule: Placed) -> None:
    """Prints the listing to stderr where WEFT_SCHED_DEBUG asks for it."""
    if FLAGS.sched_debug > 0:
        print(listing(schedule, nodes=FLAGS.sched_debug > 1), file=sys.stderr, flush=True)


def listing(schedule: Placed, *, nodes: bool = True) -> str:
    """A schedule as it runs: a line for each split, with the tensors that are copied for it.

        ## split 1: cpu, 3 inputs: [x (64 B)] [node_4 (1.5 KiB)]
        node   12  MUL_MAT     ffn_up-0        f32[32, 4]    512 B  cpu 2.sup: blk.0.ffn_up [cpu] ..

    Unlike `table` it shows the nodes that run, after copies were added and nodes fused, and gives
    the causes as codes. `nodes` adds a line for each node except views, with its bytes, device and
    cause, and its sources with their devices."""
    devices = [backend.name for backend in schedule.backends]
    n_ops = sum(split.n_ops for split in schedule.splits)
    parts = "split" if len(schedule.splits) == 1 else "splits"
    head = f"graph of {n_ops} ops in {len(schedule.splits)} {parts} on {', '.join(devices)}"
    if schedule.n_copies > 1:
        head += f", copy {schedule.cur_copy} of {schedule.n_copies}"
    lines = [head]
    number = 0
    for i, split in enumerate(schedule.splits):
        inputs = " ".join(f"[{t.name} ({size_text(t.max_bytes, 1)})]" for t in split.inputs)
        count = len(split.inputs)
        what = f", {count_text(count, 'input')}: {inputs}" if count else ""
        lines.append(f"## split {i}: {devices[split.backend]}{what}")
        for node in split.nodes:
            if nodes and not node.op.is_view:
                lines.append(_node_line(schedule, node, number, split.backend))
            number += 1
    return "\n".join(lines)


def _node_line(schedule: Placed, node: Tensor, number: int, backend: int) -> str:
    cause = cause_code(schedule, node)
    device = schedule.backends[backend].name
    sources = " ".join(_sources(schedule, node))
    return (
        f"node {number:>4}  {node.op.name:<14} {node.name:<24} {node.dtype.name}{shape_text(node)} "
        f"{size_text(node.max_bytes, 1)} {device} {cause or '-'}: {sources}"
    )


def _sources(schedule: Placed, node: Tensor) -> Iterator[str]:
    for src in node.src:
        if src is None:
            yield "-"
            continue
        index, why = device_of(schedule, src), cause_code(schedule, src)
        where = "-" if index < 0 else schedule.backends[index].name
        yield f"{src.name or '?'} [{where} {why or '-'}]"
