"""The snippets of docs/cpu-graphs.md print what the page says.

`python -m tests.execute.test_cpu_graphs_page` writes what they print now into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/cpu-graphs.md"
PAIR = re.compile(r"^( *)```python\n(.*?)^\1```\n\n\1```\n(.*?)^\1```$", re.S | re.M)
MARK = "---- the next snippet"


def pairs(text: str) -> list[tuple[str, str]]:
    """Every snippet with the output below it, without indentation."""
    return [
        (textwrap.dedent(code), textwrap.dedent(output)) for _, code, output in PAIR.findall(text)
    ]


def printed(snippets: list[str]) -> list[str]:
    """What each snippet prints."""
    code = f"print({MARK!r})\n".join(snippets)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"WEFT_TERNARY": "table"}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split(f"{MARK}\n")


def test_every_snippet_prints_what_the_page_says() -> None:
    text = PAGE.read_text("utf-8")
    shown = pairs(text)
    assert len(shown) == text.count("```python") == 9
    got = printed([code for code, _ in shown])
    for (code, output), made in zip(shown, got, strict=True):
        assert made == output, f"{code}\nprints\n{made}"


def rewritten(text: str) -> str:
    """The page with what its snippets print now."""
    outputs = iter(printed([code for code, _ in pairs(text)]))

    def put(found: re.Match[str]) -> str:
        start = found.group(0)[: found.start(3) - found.start()]
        return start + textwrap.indent(next(outputs), found[1]) + f"{found[1]}```"

    return PAIR.sub(put, text)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
