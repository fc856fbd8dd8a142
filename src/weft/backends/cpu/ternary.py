"""How ternary weights are multiplied: by integer dot products or by lookups in tables.

Which is faster depends on the machine and on the shape, so that it is measured: for a few
milliseconds, once per machine, build, number of threads, type and shape. A file in the user's cache
folder keeps what was found.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from weft.backends.cpu.products import Product, layouts_of, time_product, weight_buffer
from weft.backends.cpu.record import machine_key
from weft.dtype import DType
from weft.errors import DeviceError, FormatError
from weft.files import write_text
from weft.flags import FLAGS
from weft.native import _native
from weft.program import Layout

__all__ = ["Method", "choose_method", "method_file"]

Method = Literal["table", "multiply"]
METHODS: tuple[Method, ...] = ("table", "multiply")

_SECONDS = 0.004
"""Of measuring, for each method."""
_BUFFER = 48 << 20
_TABLE_LEAD = 1.15
"""How much faster than multiplying tables must be: each product of a model builds its own, with a
barrier of its own, which one product alone does not show."""
_LOCK = Lock()
_known: dict[tuple[str, str], Method] = {}
"""What this process has found out or read, by file and name."""


def method_file() -> Path:
    """Where choices are kept."""
    return Path(FLAGS.cache) / "ternary.json"


def choose_method(
    target: str, dtype: DType, rows: int, depth: int, pool: _native.ThreadPool
) -> Method:
    """The faster method for single columns; `WEFT_TERNARY` has the first word.

    Raises DeviceError for a value of that variable that is none."""
    wanted = FLAGS.ternary or "auto"
    if wanted not in (*METHODS, "auto"):
        raise DeviceError(f"WEFT_TERNARY is {wanted!r}; it may be auto, {' or '.join(METHODS)}")
    layouts = layouts_of(target, dtype, rows, depth)
    if "lookup" not in layouts:
        return "multiply"
    if wanted != "auto":
        return METHODS[METHODS.index(wanted)]
    file = method_file()
    name = f"{target} {pool.size} threads {dtype.name} {rows}x{depth}"
    with _LOCK:
        key = (str(file), name)
        found = _known.get(key) or _read(file).get(name)
        if found not in METHODS:
            found = _measure(target, Product(dtype, rows, depth, 1), pool)
            _write(file, name, found)
        _known[key] = METHODS[METHODS.index(found)]
        return _known[key]


def forget() -> None:
    """Forgets what this process knows; the file stays."""
    with _LOCK:
        _known.clear()


def _measure(target: str, product: Product, pool: _native.ThreadPool) -> Method:
    """Alternating, so that both meet the same disturbances."""
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
    """The choices of this machine and build; none from a file that cannot be read."""
    mine = _entries(file).get(machine_key(), {})
    return mine if isinstance(mine, dict) else {}


def _entries(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, name: str, method: Method) -> None:
    """A folder that cannot be written only means that the next process measures again."""
    found = _entries(file)
    mine = found.get(machine_key())
    found[machine_key()] = (mine if isinstance(mine, dict) else {}) | {name: method}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(found, indent=1))
    except (OSError, FormatError):
        return
