"""Options of `weft bench` that mean something else there, or take lists of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from weft.cli.command import DEVICES

__all__ = ["BenchDevices", "BenchNoEffect", "device_sets"]


def device_sets(texts: Sequence[str]) -> list[str | None]:
    """The devices of each measurement, with commas; None: those there are by default.

    `-dev opencl:0,cpu` is one set, as for every command. Where a set is written with `/`, or is
    `none` or `auto`, commas stand between sets: `-dev opencl:0/cpu,none`."""
    found: list[str | None] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        several = "/" in text or not {"none", "auto"}.isdisjoint(parts)
        for names in parts if several else [text]:
            found.append(None if names == "auto" else names.replace("/", ","))
    return found


BenchDevices = Annotated[
    str | None,
    typer.Option(
        "--devices", "--device", "-dev", parser=device_sets, metavar="NAMES",
        rich_help_panel=DEVICES,
        help="Devices, highest priority first, e.g. opencl:0,cpu; several sets as "
        "opencl:0/cpu,none.",
    ),
]  # fmt: skip
BenchNoEffect = Annotated[
    bool,
    typer.Option(
        *("--warmup", "--perf", "--no-perf", "--color", "-co", "--log-disable"), hidden=True
    ),
]
