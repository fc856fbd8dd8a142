"""Prints the rows of `weft bench` as they come, as Markdown, CSV, JSON, JSON lines or SQL."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TextIO

from weft.cli.bench_rows import OWN_FIELDS, Row
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.planning.speed import speed_text


class Output(StrEnum):
    """Formats of the table."""

    md = "md"
    csv = "csv"
    json = "json"
    jsonl = "jsonl"
    sql = "sql"


class Printer(Protocol):
    """Writes a table row by row."""

    def row(self, row: Row) -> None:
        """Writes a row at once."""

    def end(self) -> None:
        """Writes the end of the table."""


class _Json:
    """Writes rows as a list of JSON objects."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._separator = out, "[\n"

    def row(self, row: Row) -> None:
        self._out.write(f"{self._separator} {json.dumps(row)}")
        self._out.flush()
        self._separator = ",\n"

    def end(self) -> None:
        self._out.write("[]\n" if self._separator == "[\n" else "\n]\n")


class _JsonLines:
    """Writes rows as one JSON object per line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def row(self, row: Row) -> None:
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    def end(self) -> None:
        pass


class _Csv:
    """Writes rows as CSV with a line of names, leaving out lists."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._fields = out, list[str]()
        self._writer = csv.writer(out, lineterminator="\n")

    def row(self, row: Row) -> None:
        flat = _flat(row)
        if not self._fields:
            self._fields = list(flat)
            self._writer.writerow(self._fields)
        self._writer.writerow([flat[name] for name in self._fields])
        self._out.flush()

    def end(self) -> None:
        pass


class _Sql:
    """Writes rows as SQL for SQLite, with llama-bench's fields only, so that both programs can
    write into one table."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._begun = out, False

    def row(self, row: Row) -> None:
        values = {name: v for name, v in _flat(row).items() if name not in OWN_FIELDS}
        if not self._begun:
            columns = ",\n".join(f"  {name} {_sql_type(v)}" for name, v in values.items())
            self._out.write(f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);\n\n")
            self._begun = True
        texts = ", ".join(f"'{_quoted(v)}'" for v in values.values())
        self._out.write(f"INSERT INTO llama_bench ({', '.join(values)}) VALUES ({texts});\n")
        self._out.flush()

    def end(self) -> None:
        pass


def _flat(row: Row) -> Row:
    """The values that fit into a cell, with 1 and 0 for switches."""
    return {
        name: int(v) if isinstance(v, bool) else v
        for name, v in row.items()
        if not isinstance(v, list | dict)
    }


def _sql_type(value: Any) -> str:
    return "INTEGER" if isinstance(value, int) else "REAL" if isinstance(value, float) else "TEXT"


def _quoted(value: Any) -> str:
    return str(value).replace("'", "''")


_TITLES = {
    "n_gpu_layers": "ngl", "n_threads": "threads", "no_kv_offload": "nkvo", "flash_attn": "fa",
    "embeddings": "embd", "devices": "dev", "no_op_offload": "nopo",
}  # fmt: skip
_LEFT = ("model", "backend", "cpu_mask", "devices", *CacheTypes._fields)
_WIDTHS = {"size": 10, "params": 8, "t/s": 16}
"""Least widths of columns, in characters."""
_DISPENSABLE = ("params", "size", "backend")
"""Columns that narrow terminals do without, the first one first."""


class _Markdown:
    """Writes rows as a table for people, with the options that vary and the speed."""

    def __init__(
        self, out: TextIO, options: Iterable[str], wide: Mapping[str, int], screen: int | None
    ) -> None:
        """`screen`: letters of a line of the terminal; None: there is none."""
        self._out, self._wide, self._screen = out, wide, screen
        self._columns = ["model", "size", "params", "backend", *options, "test", "t/s"]
        self._widths: list[int] = []

    def row(self, row: Row) -> None:
        if not self._widths:
            self._begin(row)
        self._line([_cell(row, column) for column in self._columns])
        self._out.flush()

    def end(self) -> None:
        pass

    def _begin(self, first: Row) -> None:
        widths = {column: self._width(column, _cell(first, column)) for column in self._columns}
        for name in _DISPENSABLE:
            if self._screen is not None and sum(widths.values()) + 3 * len(widths) >= self._screen:
                del widths[name]
        self._columns, self._widths = list(widths), list(widths.values())
        self._line([_TITLES.get(column, column) for column in self._columns])
        rules = [
            "-" * width if column in _LEFT else "-" * (width - 1) + ":"
            for width, column in zip(self._widths, self._columns, strict=True)
        ]
        self._line(rules)

    def _width(self, column: str, cell: str) -> int:
        least = max(_WIDTHS.get(column, 0), self._wide.get(column, 0))
        return max(len(_TITLES.get(column, column)), len(cell), least)

    def _line(self, cells: Sequence[str]) -> None:
        padded = [
            text.ljust(width) if column in _LEFT else text.rjust(width)
            for text, width, column in zip(cells, self._widths, self._columns, strict=True)
        ]
        self._out.write("| " + " | ".join(padded) + " |\n")


def _cell(row: Row, column: str) -> str:
    if column == "model":
        return str(row["model_type"])
    if column == "size":
        size = row["model_size"]
        return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
    if column == "params":
        n = row["model_n_params"]
        return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.2f} M"
    if column == "t/s":
        return f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"
    value = row[column]
    return str(int(value) if isinstance(value, bool) else value)


def speeds_text(rows: Sequence[Row], writes: bool = True) -> str:
    """The speeds of the tests of one context in words; a model that does not write has no
    answers."""
    of_one = "answers" if writes else "single tokens"
    each = []
    for row in rows:
        if row["n_prompt"] and row["n_gen"]:
            what = row["test"]
        else:
            what = f"{'prompts' if row['n_prompt'] else of_one} ({row['test']})"
        each.append(f"{speed_text(row['avg_ts'])} tokens/s for {what}")
    return ", ".join(each)


class SpeedsFirst:
    """Keeps the rows of a table back until the last one is there, and writes the speeds in words
    before them."""

    def __init__(self, table: Printer, out: TextIO, writes: bool = True) -> None:
        self._table, self._out, self._rows = table, out, list[Row]()
        self._writes = writes

    def row(self, row: Row) -> None:
        """Keeps a row."""
        self._rows.append(row)

    def end(self) -> None:
        """Writes everything."""
        if self._rows:
            self._out.write(
                f"{self._rows[0]['model_type']}: {speeds_text(self._rows, self._writes)}\n\n"
            )
        for row in self._rows:
            self._table.row(row)
        self._table.end()


def make_printer(
    output: Output,
    out: TextIO,
    options: Iterable[str],
    wide: Mapping[str, int],
    screen: int | None = None,
) -> Printer:
    """`options`: fields that a table for people shows; `wide`: letters of its widest cells, as far
    as they are known before; `screen`: letters of a line where `out` is a terminal."""
    if output is Output.md:
        return _Markdown(out, options, wide, screen)
    kinds: dict[Output, Callable[[TextIO], Printer]] = {
        Output.csv: _Csv,
        Output.json: _Json,
        Output.jsonl: _JsonLines,
        Output.sql: _Sql,
    }
    return kinds[output](out)
