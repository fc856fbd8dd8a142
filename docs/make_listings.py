"""Runs the commands in the ```console blocks of pages, and writes what they print below them.

python docs/make_listings.py docs/how-placement-works.md

A line that begins with `$ ` is a command, which runs in the folder of the page's examples: `weft`
in this process, and the part behind a `|` in bash.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from weft.cli import main

ROOT = Path(__file__).parents[1]
FOLDERS = {"how-placement-works.md": ROOT / "examples/placement"}
"""Where the commands of a page are run."""

_BLOCK = re.compile(r"(?<=```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)


def page(text: str) -> str:
    """The page with what its commands print now."""
    return _BLOCK.sub(lambda found: "".join(_listings(found[0])), text)


def _listings(block: str) -> list[str]:
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return [f"{command}\n{_printed(command[2:])}" for command in commands]


def _printed(command: str) -> str:
    """What a command prints."""
    first, _, following = command.partition(" | ")
    words = shlex.split(first)
    if words[0] != "weft":
        return _in_bash(command)
    sys.argv = words
    with redirect_stdout(StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    return _in_bash(following, out.getvalue()) if following else out.getvalue()


def _in_bash(command: str, typed: str = "") -> str:
    return subprocess.run(
        ["bash", "-c", command], input=typed, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]]:
        os.chdir(FOLDERS[path.name])
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
