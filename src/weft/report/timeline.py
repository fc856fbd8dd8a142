"""The timeline of profiles as data for the page: rows of slices, steps and their share of the roof.

Times are nanoseconds from the first slice. In a row, `begin` has the distance of each slice from
the begin of the one before, which compresses well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.errors import named
from weft.execute.profile_lines import Line
from weft.execute.profile_results import ProfileResults
from weft.execute.profile_table import advice, heading, op_rows, tensor_rows, wait_rows
from weft.execute.profile_trace import Slice, Trace

MOST_SLICES = 120_000
"""Slices in a page, some 2 MB of it. Beyond that the last runs of each test are left out."""

_SLOWEST = 40
_BEFORE = ("runs", "host", "host copies")
_IN_DEVICE = ("splits", "waits", "stages", "kernels", "copies")


def timeline_data(
    profiles: Sequence[ProfileResults], trace: Trace | None, most: int = MOST_SLICES
) -> dict[str, Any]:
    """The page's data of profiles that share `trace`; without it, tables only.

    `tests` has each profile: `name`, `begin` and `end`, `runs` and how many of them `shown`,
    `heading` (sentences), the tables `ops`, `waits` and `tensors` (rows of text, the first names
    the columns), and `steps`: a column for each figure of a call (nanoseconds, bytes, operations,
    share of the roof, -1: not known, and what limits it). `steps` names the steps. `rows` has the
    slices; `about` of a slice numbers an entry of `abouts`: its stage, split or bytes, and its
    `steps` by number."""
    slices = sorted(trace.slices, key=lambda s: s.start) if trace is not None else []
    ends = {id(p): _end_within(p, slices, most // max(len(profiles), 1)) for p in profiles}
    origin = slices[0].start if slices else 0
    times = [(p.begin, ends[id(p)]) for p in profiles]
    kept = [s for s in slices if any(begin <= s.start and s.end <= end for begin, end in times)]
    names, abouts, steps = _Numbers(), _Numbers(), _Numbers()
    tests: list[dict[str, Any]] = []
    for profile in profiles:
        end = ends[id(profile)]
        shown = sum(s.kind == "run" and profile.begin <= s.start and s.end <= end for s in slices)
        about = {"name": profile.name, "runs": profile.runs, "seconds": profile.seconds}
        about |= {"begin": profile.begin - origin, "end": end - origin, "shown": shown}
        tables = {"ops": op_rows(profile), "tensors": tensor_rows(profile, _SLOWEST)}
        tables["waits"] = wait_rows(profile, _SLOWEST)
        tests.append(about | {"heading": [*heading(profile), *_advice(profile)]} | tables)
    rows_of: dict[str, list[Slice]] = {}
    for one in kept:
        rows_of.setdefault(one.row, []).append(one)
    data = [
        _row(row, rows_of[row], origin, names, abouts, steps)
        for row in sorted(rows_of, key=_place_of_row)
    ]
    for test, profile in zip(tests, profiles, strict=True):
        test["steps"] = _figures(profile, steps.keys)
    return {
        "tests": tests,
        "rows": data,
        "names": names.keys,
        "abouts": [dict(about) for about in abouts.keys],
        "steps": steps.keys,
        "left_out": len(slices) - len(kept) + (0 if trace is None else trace.dropped),
    }


def _advice(profile: ProfileResults) -> list[str]:
    return [named(advice(profile), str)] if profile.busiest else []


class _Numbers:
    """Numbers things in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __getitem__(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    @property
    def keys(self) -> list[Any]:
        return list(self._numbers)


def _figures(profile: ProfileResults, labels: Sequence[str]) -> dict[str, list[Any]]:
    """A column for each figure of the steps with these labels; 0 where a step did not run."""
    lines: dict[str, Line] = {}
    for line in profile.lines:
        if line.label in lines:
            lines[line.label].add(line)
        else:
            lines[line.label] = replace(line)
    columns: dict[str, list[Any]] = {
        key: [] for key in ("calls", "ns", "bytes", "flops", "roof", "bound")
    }
    for label in labels:
        line = lines.get(label) or Line("", "", "")
        calls = max(line.calls, 1)
        least, bound = line.least_seconds(profile.peaks)
        known = bool(line.seconds and line.roof and line.nbytes)
        columns["calls"].append(line.calls)
        columns["ns"].append(round(line.seconds / calls * 1e9))
        columns["bytes"].append(round(line.nbytes / calls))
        columns["flops"].append(round(line.flops / calls))
        columns["roof"].append(round(least / line.seconds, 3) if known else -1)
        columns["bound"].append((line.roof if bound == "compute" else bound) if known else "")
    return columns


def _end_within(profile: ProfileResults, slices: Sequence[Slice], most: int) -> int:
    """The end of the last run of a profile up to which it has at most `most` slices; at least one
    run is kept."""
    own = [s for s in slices if profile.begin <= s.start and s.end <= profile.end]
    if len(own) <= most:
        return profile.end
    starts = [s.start for s in own]
    runs = [s.end for s in own if s.kind == "run"]
    fitting = [end for end in runs if bisect_right(starts, end) <= most]
    return max(fitting, default=min(runs, default=profile.end))


def _row(
    row: str,
    slices: Sequence[Slice],
    origin: int,
    names: _Numbers,
    abouts: _Numbers,
    steps: _Numbers,
) -> dict[str, Any]:  # fmt: skip
    begins = [s.start - origin for s in slices]
    return {
        "name": row,
        "begin": [b - a for a, b in zip([0, *begins], begins, strict=False)],
        "length": [s.end - s.start for s in slices],
        "title": [names[s.name] for s in slices],
        "kind": [names[s.kind] for s in slices],
        "about": [abouts[_about(s.args, steps)] for s in slices],
    }


def _about(args: Mapping[str, Any], steps: _Numbers) -> tuple[tuple[str, Any], ...]:
    """The arguments of a slice with numbers of steps instead of their texts, as a key."""
    return tuple(
        ("steps", tuple(steps[label] for label in value))
        if key == "steps" and not isinstance(value, int)
        else ("steps", (steps[value],))
        if key == "step"
        else ("count" if key == "steps" else key, value)
        for key, value in args.items()
    )


def _place_of_row(row: str) -> tuple[int, str, int, int]:
    """Runs and the host first; then each device: its splits, waits, stages, threads or kernels,
    copies."""
    if row in _BEFORE:
        return (_BEFORE.index(row), "", 0, 0)
    device, _, what = row.rpartition(" ")
    if device == "thread":
        return (len(_BEFORE), "cpu", 3, int(what))
    place = _IN_DEVICE.index(what) if what in _IN_DEVICE else 3
    return (len(_BEFORE), device or row, place + (place >= 3), 0)
