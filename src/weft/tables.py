"""Tables as text for terminals and as HTML for notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

CONTROLS = {c: f"\\x{c:02x}" for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t"}
CONTROLS |= {c: f"\\u{c:04x}" for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that a terminal takes for orders or that turn the order of text, and how they are
shown (see `str.translate`)."""


def size_text(nbytes: float, digits: int = 2) -> str:
    """A number of bytes in the unit that fits, such as `1.50 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.{digits}f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.{digits}f} TiB"


def count_text(n: int, one: str, several: str = "") -> str:
    """A number of things, such as `1 copy`, `1,200 nodes`; `several` is a plural that is not one's
    with `s` or `ies`."""
    if n == 1:
        return f"1 {one}"
    return f"{n:,} {several or (f'{one[:-1]}ies' if one.endswith('y') else f'{one}s')}"


def list_text(texts: Iterable[str]) -> str:
    """Texts in one, such as `a, b and c`."""
    *before, last = [*texts] or [""]
    return f"{', '.join(before)} and {last}" if before else last


def any_layer(text: str) -> str:
    """A text in which `*` stands for numbers of layers: `blk.3.ffn_up.weight` is
    `blk.*.ffn_up.weight`, `kq-3` is `kq-*`, `cache_k_l3` is `cache_k_l*`."""
    return re.sub(r"(?<=[._-])\d+|(?<=_l)\d+", "*", text)


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()
) -> list[str]:
    """The lines of a table with a heading and columns two spaces apart.

    Columns named in `numbers` are aligned to the right."""
    cells = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(row[c]) for row in cells) for c in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if name in numbers else text.ljust(width)
            for name, text, width in zip(columns, row, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    return [line(row) for row in cells]


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Sequence[str] = (),
) -> str:
    """A table under a title, as HTML; every text is escaped."""
    align = ["right" if name in numbers else "left" for name in columns]

    def cells(tag: str, row: Sequence[object]) -> str:
        return "".join(
            f'<{tag} style="text-align:{side}">{escape(str(cell))}</{tag}>'
            for side, cell in zip(align, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', columns)}</tr></thead>"
    return (
        f'<table><caption style="text-align:left">{escape(title)}</caption>{head}'
        f"<tbody>{body}</tbody></table>"
    )
