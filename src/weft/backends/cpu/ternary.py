"""The method by which ternary weights are multiplied: integer dot products or lookups in tables.

The machine and the shape decide which is faster, so it is measured: for a few milliseconds, once
per machine, build, number of threads, type and shape. A file in the user's cache folder keeps the
result.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from weft.backends.cpu.products import Product, layouts_of, time_product, weight_buffer
from weft.backends.cpu.record import entries_of, machine_key
from weft.dtype import DType
from weft.errors import DeviceError, FormatError
from weft.files import write_text
from weft.flags import FLAGS
from weft.native import _native
from weft.program import Layout

Method = Literal["table", "multiply"]
METHODS: tuple[Method, ...] = ("table", "multiply")

_SECONDS = 0.004
"""Seconds of measuring, for each method."""
_BUFFER = 48 << 20
_TABLE_LEAD = 1.15
"""The factor by which tables must be faster than dot products. Each product of a model builds its
own tables, with a barrier of its own, which measuring a single product does not show."""
_LOCK = Lock()
_known: dict[tuple[str, str], Method] = {}
"""The methods that this process has measured or read, by file and name."""


def method_file() -> Path:
    """The file that keeps the choices."""
    return Path(FLAGS.cache) / "ternary.json"


def choose_method(
    target: str, dtype: DType, rows: int, depth: int, pool: _native.ThreadPool
) -> Method:
    """The faster method for single columns, unless `WEFT_TERNARY` names one.

    Raises DeviceError for an unknown value of that variable."""
    setting = FLAGS.ternary or "auto"
    if setting not in (*METHODS, "auto"):
        raise DeviceError(f"WEFT_TERNARY is {setting!r}; it may be auto, {' or '.join(METHODS)}")
    layouts = layouts_of(target, dtype, rows, depth)
    if "lookup" not in layouts:
        return "multiply"
    if setting != "auto":
        return METHODS[METHODS.index(setting)]
    file = method_file()
    name = f"{target} {pool.size} threads {dtype.name} {rows}x{depth}"
    with _LOCK:
        key = (str(file), name)
        method = _known.get(key) or _read(file).get(name)
        if method not in METHODS:
            method = _measure(target, Product(dtype, rows, depth, 1), pool)
            _write(file, name, method)
        _known[key] = METHODS[METHODS.index(method)]
        return _known[key]


def forget() -> None:
    """Drops the methods that this process has in memory; the file stays."""
    with _LOCK:
        _known.clear()


def _measure(target: str, product: Product, pool: _native.ThreadPool) -> Method:
    """Measures both methods in turn, so that both meet the same disturbances."""
    layouts = layouts_of(target, product.dtype, product.rows, product.depth)
    plain: Layout = "interleaved" if "interleaved" in layouts else "rows"
    stored = _native.lookup_bytes(product.dtype.id, product.rows, product.depth)
    buffer = weight_buffer(max(_BUFFER, stored))
    table = multiply = float("inf")
    for _ in range(2):
        both: tuple[Layout, ...] = (plain, "lookup")
        for layout in both:
            timing = time_product(product, layout, target, pool, buffer, _SECONDS / 2)
            if layout == "lookup":
                table = min(table, timing.seconds)
            else:
                multiply = min(multiply, timing.seconds)
    return "table" if table * _TABLE_LEAD < multiply else "multiply"


def _read(file: Path) -> dict[str, Any]:
    """The choices of this machine and build; empty for a file that cannot be read."""
    mine = entries_of(file).get(machine_key(), {})
    return mine if isinstance(mine, dict) else {}


def _write(file: Path, name: str, method: Method) -> None:
    """Stores a choice; with a folder that cannot be written, the next process measures again."""
    entries = entries_of(file)
    mine = entries.get(machine_key())
    entries[machine_key()] = (mine if isinstance(mine, dict) else {}) | {name: method}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(entries, indent=1))
    except (OSError, FormatError):
        return
