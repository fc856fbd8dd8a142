"""Runs the commands of a tutorial in a folder, in their order.

A block ```sh is given to bash as it is, and each `$ ` line of a block ```console; what stands below
such a line must be printed, with `...` for lines that are left out. A block with `title="NAME"` is
written to that file. An HTML comment before a block changes what is done with it:

    <!-- not run: REASON -->
    <!-- stays until it prints: TEXT -->    runs beside the blocks below, from when it prints TEXT
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.listings import missing

_BLOCK = re.compile(
    r"(?:^<!-- (.*?) -->\n)?^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.S | re.M
)
NOT_RUN, STAYS = "not run: ", "stays until it prints: "
PATIENCE = 120
"""Seconds that a program may take until it prints what is waited for."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    mark: str
    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page that name a language."""
    return [Block(*(part or "" for part in found)) for found in _BLOCK.findall(page)]


def run(page: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Does what the page says; raises AssertionError where a command fails or prints otherwise."""
    with contextlib.ExitStack() as staying:
        for block in blocks(page):
            if block.mark.startswith(NOT_RUN):
                continue
            if block.file:
                path = folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, "utf-8")
            elif block.mark.startswith(STAYS):
                text = block.mark.removeprefix(STAYS)
                staying.enter_context(_staying(block.text, text, folder, environment))
            elif block.language == "sh":
                _printed(block.text, folder, environment)
            else:
                assert block.language == "console", (
                    f"what is done with a block of {block.language}?"
                )
                for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                    command, _, shown = part.partition("\n")
                    printed = _printed(command, folder, environment)
                    said = missing(shown, printed)
                    assert said is None, f"$ {command}\n{said}\nis not in\n{printed}"


def _printed(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What commands print; each must succeed."""
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=environment, text=True, check=False,
        stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def _staying(
    command: str, text: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """A program that runs within the `with`, from when it has printed `text`."""
    log = folder / f"staying-{len(list(folder.glob('staying-*')))}.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=out, stderr=out
        )
    try:
        until = time.monotonic() + PATIENCE
        while text not in log.read_text("utf-8"):
            assert process.poll() is None and time.monotonic() < until, log.read_text("utf-8")
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
