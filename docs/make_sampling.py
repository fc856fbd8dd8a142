"""Writes the table of options in docs/sampling.md, from the fields of `SamplingParams`.

python docs/make_sampling.py docs/sampling.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from weft.llm.sampling import SAMPLING_OPTIONS

BEGIN = "<!-- the table: made by `make docs` -->\n"
END = "<!-- the end of the table -->\n"


def table() -> str:
    """A row an option."""
    rows = ["| field | flag | default | what it does |", "|---|---|---|---|"]
    for name, option in SAMPLING_OPTIONS.items():
        flags = ", ".join(f"`{flag}`" for flag in option.flags)
        rows.append(f"| `{name}` | {flags} | {_value(option.default)} | {option.about} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def _value(default: object) -> str:
    if isinstance(default, tuple):
        return " ".join(f"`{text}`" for text in default).replace("\n", "\\n")
    return "none" if default is None else f"{default:g}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
