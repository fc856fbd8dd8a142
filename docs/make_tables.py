"""Writes the tables of options in docs/sampling.md, of endpoints in docs/apis.md and of what GPUs
could do in docs/gpu.md.

python docs/make_tables.py docs/sampling.md docs/apis.md docs/gpu.md
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import gpu_counts
from weft.llm.sampling import SAMPLING_OPTIONS
from weft.serve.endpoints import ENDPOINTS

BEGIN = "<!-- the table: made by `make docs` -->\n"
END = "<!-- the end of the table -->\n"
OWNERS = {
    "model": "a model",
    "models": "a model; of several models, the server",
    "server": "the server",
}


def sampling() -> str:
    """A row for each option."""
    rows = ["| field | flag | default | what it does |", "|---|---|---|---|"]
    for name, option in SAMPLING_OPTIONS.items():
        flags = ", ".join(f"`{flag}`" for flag in option.flags)
        rows.append(f"| `{name}` | {flags} | {_value(option.default)} | {option.about} |")
    return "\n".join(rows) + "\n"


def endpoints() -> str:
    """A row for each endpoint that is listed."""
    rows = ["| endpoint | form | stream | batch | answered by |", "|---|---|---|---|---|"]
    for one in ENDPOINTS:
        if one.listed:
            path = one.path.replace(":path", "")
            marks = " | ".join("yes" if has else "" for has in (one.streams, one.batchable))
            rows.append(f"| `{one.method} {path}` | {one.shape} | {marks} | {OWNERS[one.owner]} |")
    return "\n".join(dict.fromkeys(rows)) + "\n"


TABLES = {"sampling.md": sampling, "apis.md": endpoints, "gpu.md": gpu_counts.page_tables}


def page(text: str, table: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table + END + rest.partition(END)[2]


def _value(default: object) -> str:
    if isinstance(default, tuple):
        return " ".join(f"`{text}`" for text in default).replace("\n", "\\n")
    if isinstance(default, str):
        return f"`{default}`"
    return "none" if default is None else f"{default:g}"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        text = page(path.read_text(encoding="utf-8"), TABLES[path.name]())
        path.write_text(text, encoding="utf-8")
