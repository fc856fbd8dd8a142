"""The tables of `compare.py`, from what it measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

NOT_THE_SAME = 0.05
"""Engines whose logits differ by more do not compute the same model."""

START = (
    ("resident", "resident memory, MiB", 2**20),
    ("anonymous", "of it not mapped from files, MiB", 2**20),
    ("start", "start of process to first token, s", 1),
    ("seconds", "start of loading to first token, s", 1),
)


def print_tables(report: dict[str, Any]) -> None:
    """Prints header, tables and footnotes."""
    print(f"{report['cpu']}, {report['cores']} cores, {report['system']}")
    for name, about in report["engines"].items():
        print(f"{name} {about['version']} ({about['kernels'].strip(' |')})")
    clock = ", seconds of the processor" if report["processor_time"] else ""
    threads = f"{report['threads']} threads{clock}"
    print(f"weft commit {report['commit']}, model {report['shape']}, {threads}")
    print(f"{report['repetitions']} repetitions: median ± half of the range")
    print(f"$ {report['command']}")
    print()
    speed = [row for result in report["formats"] for row in _speed(report, result)]
    if speed:
        peers = [cell for name in report["peers"] for cell in (f"{name} t/s", "ratio")]
        _table(["format", "test", "weft t/s", "llama.cpp t/s", "ratio", *peers, "weft of peak",
                "llama.cpp of peak"], speed)  # fmt: skip
    rest = [row for r in report["formats"] for row in (*_start(r), *_scaling(report, r))]
    if rest:
        _table(["format", "what", "weft", "llama.cpp", "ratio"], rest)
    for result in report["formats"]:
        for line in _notes(result):
            print(f"{result['format']}: {line}")


def median(values: Sequence[float] | None) -> float | None:
    """None where nothing was measured."""
    return statistics.median(values) if values else None


def _peaks(peaks: dict[str, float | None]) -> str:
    units = {"read": "GB/s", "int8": "GOP/s", "f32": "GFLOP/s", "bf16": "GFLOP/s"}
    return ", ".join(f"{k} {_number(v and v / 1e9)} {units[k]}" for k, v in peaks.items())


def _speed(report: dict[str, Any], result: dict[str, Any]) -> list[list[str]]:
    rows = []
    ours, theirs = _engines(result)
    for test, n in (("pp", report["n_prompt"]), ("tg", report["n_gen"])):
        if test not in ours and test not in theirs:
            continue
        a, b = median(ours.get(test)), median(theirs.get(test))
        flash = theirs.get("flash", {}).get(test)
        mark = "" if flash is None else " (flash)" if flash else " (no flash)"
        cells = [_spread(ours.get(test)), _spread(theirs.get(test)) + mark, _ratio(a, b)]
        for name in report["peers"]:
            speeds = result["engines"][name].get(test)
            cells += [_spread(speeds), _ratio(a, median(speeds))]
        shares = [_share(speed, test, result) for speed in (a, b)]
        rows.append([_label(result), f"{test}{n}", *cells, *shares])
    return rows


def _share(speed: float | None, test: str, result: dict[str, Any]) -> str:
    """How much of the machine a speed is: of its operations for prompts, else of its reads."""
    peaks = result.get("peaks") or {}
    kind = "read" if test == "tg" else peak_kind(result["format"], peaks)
    peak, work = peaks.get(kind), result["read" if test == "tg" else "ops"]
    return f"{100 * speed * work / peak:.0f}% {kind}" if speed and peak else "-"


def peak_kind(format: str, peaks: dict[str, float | None]) -> str:
    """The kind of products whose peak a format's prompts are compared with."""
    if format == "bf16" and peaks.get("bf16"):
        return "bf16"
    return "f32" if format in ("bf16", "f16", "f32") else "int8"


def _start(result: dict[str, Any]) -> list[list[str]]:
    ours, theirs = _engines(result)
    rows = []
    for key, label, unit in START:
        a, b = median(ours.get(key)), median(theirs.get(key))
        if a is not None or b is not None:
            cells = [_number(a and a / unit), _number(b and b / unit), _ratio(a, b)]
            rows.append([_label(result), label, *cells])
    resident = [median(e.get("resident")) for e in (ours, theirs)]
    if resident[0] is not None:
        shares = [r and r / result["file"] for r in resident]
        rows.append([_label(result), "resident memory / file", *map(_number, shares), ""])
    return rows


def _scaling(report: dict[str, Any], result: dict[str, Any]) -> list[list[str]]:
    gains = []
    for engine in _engines(result):
        one, all_ = median(engine.get("pp_one")), median(engine.get("pp_all"))
        gains.append(all_ / one if one and all_ else None)
    if gains == [None, None]:
        return []
    label = f"pp{report['n_prompt']}, {report['threads']} threads / 1"
    return [[_label(result), label, *map(_number, gains), _ratio(*gains)]]


def _notes(result: dict[str, Any]) -> list[str]:
    lines = [f"{name} failed: {why}" for name, why in result["errors"].items()]
    theirs = _engines(result)[1]
    if result.get("peaks"):
        lines.append("peaks of the machine beside it: " + _peaks(result["peaks"]))
    nmse = result.get("nmse")
    if nmse is not None:
        errors = [f"{n} {e['nmse']:.1e}" for n, e in result["engines"].items() if "nmse" in e]
        lines.append(
            f"logits of 32 tokens apart by NMSE {nmse:.1e}; "
            f"from those with float32 activations: {', '.join(errors)}"
        )
        if not nmse <= NOT_THE_SAME:
            lines.append("THE ENGINES DO NOT COMPUTE THE SAME: this comparison means nothing")
    lines += [f"llama.cpp: {note}" for note in theirs.get("notes", ())]
    return lines


def _engines(result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    engines = result["engines"]
    return engines["weft"], engines.get("llama.cpp", {})


def _label(result: dict[str, Any]) -> str:
    peer = result.get("peer_format")
    return result["format"] + (f" / {peer}" if peer else "")


def _spread(values: Sequence[float] | None) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ± {(max(values) - min(values)) / 2:.1f}"


def _ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.2f}x" if a and b else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _table(head: list[str], rows: list[list[str]]) -> None:
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for number, line in enumerate(lines):
        cells = [c.ljust(w) if i < 2 else c.rjust(w)
                 for i, (c, w) in enumerate(zip(line, widths, strict=True))]  # fmt: skip
        print("| " + " | ".join(cells) + " |")
        if number == 0:
            rule = ["-" * w if i < 2 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
            print("| " + " | ".join(rule) + " |")
    print()
