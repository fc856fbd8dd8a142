"""`weft bench --kernel` compares the ways to multiply with weights of a format."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from weft.backends.cpu.peaks import measure_peaks
from weft.backends.cpu.products import Product, Timing, layouts_of, time_product, weight_buffer
from weft.backends.cpu.record import best_target
from weft.backends.cpu.threads import ThreadOptions
from weft.cli.console import wide
from weft.dtype import DTYPES, DType
from weft.errors import ContextError
from weft.flags import FLAGS
from weft.native import _native
from weft.program import Layout

DEFAULT_SHAPE = "2048x2048,8192x2048,2048x8192"
DEFAULT_COLUMNS = "1,2,4,8,512"
DEFAULT_FORMATS = "tq1_0,tq2_0,i2_s"
METHODS: dict[Layout, str] = {"rows": "multiply, rows", "interleaved": "multiply, panels",
                              "levels": "multiply, levels", "lookup": "table"}  # fmt: skip

_BUFFER = 128 << 20
_SECONDS = 0.06
_FIELDS = ("format", "shape", "columns", "method", "us", "GB/s", "GOP/s", "ratio", "spread")


def bench_kernels(
    shapes: str, columns: str, formats: str, repetitions: int, options: ThreadOptions, output: str
) -> None:
    """Measures and prints every combination; `ratio` compares with rows as they are in a file.

    The methods of a product take turns, `repetitions` times, and the median is printed. Raises
    ContextError for a malformed shape or number, and for an unknown format."""
    products = [
        Product(dtype, rows, depth, n)
        for dtype in _formats(formats)
        for rows, depth in _shapes(shapes)
        for n in _numbers(columns)
    ]
    for product in products:
        product.check()
    target = FLAGS.target or best_target()
    pool, _ = options.make_pool()
    rows = [row for product in products for row in _compare(product, target, pool, repetitions)]
    if output == "json":
        print(json.dumps(rows, indent=1))
    elif output == "csv":
        writer = csv.DictWriter(sys.stdout, _FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    else:
        peaks = measure_peaks(pool.size, target)
        _print(rows, str(peaks))


def _compare(
    product: Product, target: str, pool: _native.ThreadPool, repetitions: int
) -> Iterator[dict[str, Any]]:
    """Measures a product; yields a row for each method."""
    layouts = layouts_of(target, product.dtype, product.rows, product.depth)
    size = product.dtype.row_bytes(product.depth) * product.rows
    buffer = weight_buffer(max(_BUFFER, 3 * size + 64))
    timings: dict[Layout, list[Timing]] = {layout: [] for layout in layouts}
    for _ in range(repetitions):
        for layout in layouts:
            timings[layout].append(time_product(product, layout, target, pool, buffer, _SECONDS))
    plain = _median(timings["rows"]).seconds
    for layout in layouts:
        timing = _median(timings[layout])
        seconds = sorted(t.seconds for t in timings[layout])
        yield {
            "format": product.dtype.name,
            "shape": f"{product.rows}x{product.depth}",
            "columns": product.columns,
            "method": METHODS[layout],
            "us": round(timing.seconds * 1e6, 1),
            "GB/s": round(timing.read / 1e9, 1),
            "GOP/s": round(timing.rate / 1e9, 1),
            "ratio": round(plain / timing.seconds, 2),
            "spread": round(seconds[-1] / seconds[0], 2),
        }


def _median(timings: list[Timing]) -> Timing:
    return sorted(timings, key=lambda t: t.seconds)[len(timings) // 2]


def _print(rows: list[dict[str, Any]], heading: str) -> None:
    out = wide(False)
    out.print(heading, markup=False, soft_wrap=True, style="dim")
    table = Table(box=None, pad_edge=False)
    for name in _FIELDS:
        left = name in ("format", "shape", "method")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    last = None
    for row in rows:
        product = (row["format"], row["shape"], row["columns"])
        best = max(r["ratio"] for r in rows if _product(r) == product)
        shown = [str(row[name]) for name in _FIELDS]
        if product == last:
            shown[:3] = ["", "", ""]
        last = product
        table.add_row(*shown, style="bold" if row["ratio"] == best else "")
    out.print(table)


def _product(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["format"], row["shape"], row["columns"])


def _formats(text: str) -> list[DType]:
    formats = []
    for name in text.split(","):
        if name.strip() not in DTYPES or not DTYPES[name.strip()].block:
            raise ContextError(f"--formats: there is no format {name.strip()!r}")
        formats.append(DTYPES[name.strip()])
    return formats


def _numbers(text: str) -> list[int]:
    numbers = []
    for part in text.split(","):
        if not part.strip().isdigit() or int(part) < 1:
            raise ContextError(f"--columns takes numbers of at least 1, got {part.strip()!r}")
        numbers.append(int(part))
    return numbers


def _shapes(text: str) -> list[tuple[int, int]]:
    shapes = []
    for part in text.split(","):
        rows, by, depth = part.strip().partition("x")
        if not by or not rows.isdigit() or not depth.isdigit():
            raise ContextError(f"--shape takes ROWSxDEPTH, e.g. 2048x8192, got {part.strip()!r}")
        shapes.append((int(rows), int(depth)))
    return shapes
