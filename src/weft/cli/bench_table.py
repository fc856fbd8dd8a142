"""The rows of `weft bench` as Markdown, JSON or CSV."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from typing import Any

__all__ = ["print_rows"]

_COLUMNS = ("model", "size", "params", "backend", "threads", "n_ubatch", "fa", "ngl", "test", "t/s")
_IF_THEY_DIFFER = ("n_ubatch", "fa", "ngl")
_LEFT = ("model", "backend")


def print_rows(rows: list[dict[str, Any]], output: str) -> None:
    """Prints rows with their `speeds`, of which mean and deviation are made."""
    for row in rows:
        speeds = row.pop("speeds")
        row["avg_ts"] = statistics.fmean(speeds)
        row["stddev_ts"] = statistics.stdev(speeds) if len(speeds) > 1 else 0.0
        row["samples_ts"] = speeds
    if output == "json":
        print(json.dumps(rows, indent=1))
    elif output == "csv":
        _print_csv(rows)
    else:
        _print_markdown(rows)


def _print_csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.writer(sys.stdout)
    fields = [k for k in rows[0] if k != "samples_ts"]
    writer.writerow(fields)
    for row in rows:
        writer.writerow([row[k] for k in fields])


def _print_markdown(rows: list[dict[str, Any]]) -> None:
    columns = [c for c in _COLUMNS if c not in _IF_THEY_DIFFER or len({r[c] for r in rows}) > 1]
    cells = [columns] + [[_cell(row, column) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for number, line in enumerate(cells):
        padded = [
            text.ljust(width) if column in _LEFT else text.rjust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        print("| " + " | ".join(padded) + " |")
        if number == 0:
            rule = ["-" * w if c in _LEFT else "-" * (w - 1) + ":"
                    for w, c in zip(widths, columns, strict=True)]  # fmt: skip
            print("| " + " | ".join(rule) + " |")


def _cell(row: dict[str, Any], column: str) -> str:
    if column == "size":
        return f"{row['size'] / 2**20:.2f} MiB"
    if column == "params":
        return f"{row['params'] / 1e6:.2f} M"
    if column == "t/s":
        return f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"
    return str(row[column])
