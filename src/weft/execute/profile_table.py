"""A profile as rows of text, for a terminal or a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.backends.cpu import Peaks
from weft.errors import named
from weft.execute.profile_lines import Line
from weft.execute.profile_results import ProfileResults
from weft.tables import any_layer, count_text

LEFT = frozenset({"op", "type", "device", "tensor", "bound by", "waited for"})
"""Columns that are aligned to the left; the others are figures."""

MOST_WAITS = 6
"""Number of waits that are listed."""
_SMALL = 0.005
"""Lines with less than this share of the time are added up in one."""
_NEARLY_ALL = 0.9
"""A device that works this share of the time waits for nothing that is worth a word."""

_FIGURES = ("ms/run", "share", "GB/s", "GOP/s", "op/byte", "bound by", "of roof")

Rows = list[list[str]]


def profile_text(profile: ProfileResults) -> str:
    """Heading and table by op, as plain text."""
    lines = [*heading(profile), *plain(op_rows(profile))]
    if profile.waits:
        lines += plain(wait_rows(profile, MOST_WAITS))
    if profile.busiest:
        lines.append(named(advice(profile), str))
    return "\n".join(lines)


def heading(profile: ProfileResults) -> Iterator[str]:
    """The runs, and the peak rates of the machine."""
    runs = max(profile.runs, 1)
    title = f"{profile.name}: " if profile.name else ""
    each = f"{_ms(profile.seconds / runs)} ms each"
    yield (
        f"{title}{count_text(profile.runs, 'run')}, {each}, "
        f"{count_text(profile.threads, 'thread')}, "
        f"{_waits(profile.barriers / runs)}{profile.waiting:.0%} of thread time spent waiting"
    )
    peaks = profile.peaks
    lines = profile.lines
    least = sum(line.least_seconds(peaks)[0] for line in lines)
    if profile.seconds:
        billions = profile.seconds * 1e9
        yield (
            f"in all {sum(x.nbytes for x in lines) / billions:.1f} GB/s and "
            f"{sum(x.flops for x in lines) / billions:.1f} GOP/s; at the machine's peaks a run "
            f"would take {_ms(least / runs)} ms, {least / profile.seconds:.0%} of its time"
        )
    if profile.overlap:
        yield (
            f"devices worked at the same time for {_ms(profile.overlap / runs)} ms of each run, "
            f"{profile.overlap / profile.seconds:.0%} of its time"
        )
    if len(profile.idle) > 1:
        shares = ", ".join(f"{device} {share:.0%}" for device, share in profile.idle.items())
        yield f"devices were idle: {shares}"
    if profile.clocks:
        errors = ", ".join(f"{d} {_ms(e)} ms" for d, e in profile.clocks.items())
        yield f"clocks of other machines agree with this one's to within: {errors}"
    for device, why in profile.untimed.items():
        yield f"{device} tells no times of kernels ({why}): its work is time outside of steps"
    yield f"peaks with {peaks}"


def _waits(times: float) -> str:
    """The number of times per run that threads waited for each other, as text; empty below 1."""
    if times < 0.5:
        return ""
    return f"threads waited for each other {count_text(round(times), 'time')}, "


def op_rows(profile: ProfileResults) -> Rows:
    """A row for each op and type, the slowest first; the first row names the columns."""
    lines = profile.by_op()
    several = len({line.device for line in lines}) > 1
    rows = [["op", "type", *(["device"] if several else []), "steps", *_FIGURES]]
    small: list[Line] = []
    for line in lines:
        if line.seconds < _SMALL * profile.seconds:
            small.append(line)
            continue
        device = [line.device] if several else []
        rows.append([line.op, line.type, *device, str(line.steps), *_figures(line, profile)])
    blank = [""] * (2 if several else 1)
    if small:
        steps, seconds = sum(x.steps for x in small), sum(x.seconds for x in small)
        names = count_text(len(small), "more op")
        rows.append([names, *blank, str(steps), *_time(seconds, profile)])
    rows.append(["outside of steps", *blank, "", *_time(profile.outside, profile)])
    return [row + [""] * (len(rows[0]) - len(row)) for row in rows]


def tensor_rows(profile: ProfileResults, most: int) -> Rows:
    """A row for each of the `most` slowest tensors, layers added up; the first row names the
    columns."""
    rows = [["tensor", "op", "type", "steps", *_FIGURES]]
    for line in profile.by_tensor()[:most]:
        rows.append([line.name, line.op, line.type, str(line.steps), *_figures(line, profile)])
    return rows


def wait_rows(profile: ProfileResults, most: int) -> Rows:
    """A row for each of the `most` longest waits of devices; the first row names the columns. Only
    columns where no device waits for another."""
    rows = [["device", "split", "times", "ms/run", "share", "waited for"]]
    for group in profile.waits_in_short()[:most]:
        one = group[0]
        split, text = ("" if one.split < 0 else str(one.split)), one.text
        if len({wait.split for wait in group}) > 1:
            nbytes = max(wait.nbytes for wait in group)
            split = f"{len({wait.split for wait in group})} splits"
            text = replace(one, tensor=any_layer(one.tensor), nbytes=nbytes, work=-1).text
        times = _time(sum(wait.seconds for wait in group), profile)
        count = str(sum(wait.times for wait in group))
        rows.append([one.device, split, count, *times, text])
    return rows


def advice(profile: ProfileResults) -> str:
    """A sentence that says how much of the waits more copies would hide; arguments stand in
    backquotes."""
    runs, busiest = max(profile.runs, 1), profile.busiest
    if not busiest:
        return (
            "one device did all the work: it waited for no other, and more copies (`n_copies`) "
            "would hide nothing"
        )
    busy = profile.busy[busiest]
    waited = max(profile.wall - busy, 0.0)
    begin = (
        f"{busiest} has the most work, {_ms(busy / runs)} ms of each run, and waited "
        f"{_ms(waited / runs)} ms: "
    )
    found = profile.hidden()
    if found is not None and found.seconds >= _SMALL * profile.wall:
        hides = min(found.seconds, waited)
        if_free = "" if profile.calls is not None else "if runs do not depend on each other, "
        return (
            f"{begin}{if_free}`n_copies` {found.copies} would hide "
            f"{_ms(hides / runs)} of {_ms(waited / runs)} ms"
        )
    return f"{begin}{_why_nothing(profile, busy)}"


def _why_nothing(profile: ProfileResults, busy: float) -> str:
    calls = None if profile.calls is None else [n for c in profile.calls.values() for n in c]
    if calls == []:
        return "more copies would hide nothing, as single tokens depend on each other"
    if calls is not None and max(calls) < 2:
        return (
            "more copies would hide nothing, as each call was one batch; a smaller `n_ubatch` "
            "makes several, which can overlap"
        )
    share = busy / profile.wall if profile.wall else 0.0
    waits = [group for group in profile.waits_in_short() if group[0].device == profile.busiest]
    if share < _NEARLY_ALL and waits:
        return f"more copies would hide nothing; it waited most for {waits[0][0].text}"
    return f"more copies would hide nothing, as it works {share:.0%} of the time"


def plain(rows: Rows) -> list[str]:
    """Lines of text with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = [name in LEFT for name in rows[0]]
    return [_line(row, widths, sides) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int], align_left: Sequence[bool]) -> str:
    cells = zip(row, widths, align_left, strict=True)
    return "  ".join(c.ljust(w) if on_left else c.rjust(w) for c, w, on_left in cells).rstrip()


def _time(seconds: float, profile: ProfileResults) -> list[str]:
    runs = max(profile.runs, 1)
    return [_ms(seconds / runs), f"{seconds / profile.seconds:.1%}" if profile.seconds else ""]


def _figures(line: Line, profile: ProfileResults) -> list[str]:
    """The cells from the time on. Work that fits the caches may exceed the memory's peak rate."""
    percent, bound = _of_roof(line, profile.peaks)
    return [
        *_time(line.seconds, profile),
        f"{line.bandwidth / 1e9:.1f}",
        f"{line.rate / 1e9:.1f}" if line.flops else "",
        f"{line.intensity:.1f}" if line.flops else "",
        bound,
        percent,
    ]


def _of_roof(line: Line, peaks: Peaks) -> tuple[str, str]:
    if not (line.seconds and line.nbytes and line.roof):
        return "", ""
    least, bound = line.least_seconds(peaks)
    part = least / line.seconds
    where = "caches" if part > 1 else bound if bound == "memory" else line.roof
    return f"{part:.0%}", where


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"
