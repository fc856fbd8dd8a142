"""Prints README.md with its list of architectures made anew:

python docs/make_readme.py > new.md && mv new.md README.md
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from weft.llm.models import ARCHITECTURES

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "Architectures, by their names in GGUF files:", "All scenarios of the"


def made(text: str) -> str:
    """`text` with the names of all architectures between BEGIN and END."""
    names = f"{BEGIN} {', '.join(sorted(ARCHITECTURES))}."
    lines = textwrap.wrap(names, 103, break_long_words=False, break_on_hyphens=False)
    lines[-1] += f" {END}"
    pattern = rf"{re.escape(BEGIN)}.*?{re.escape(END)}"
    return re.sub(pattern, lambda _: "\n".join(lines), text, flags=re.DOTALL)


if __name__ == "__main__":
    print(made(README.read_text("utf-8")), end="")
