"""The options of `weft bench` that differ from those of other commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from weft.cli.command import DEVICES

__all__ = ["BenchDevices", "BenchNoEffect", "device_sets"]


def device_sets(texts: Sequence[str]) -> list[str | None]:
    """The devices of each measurement, as names with commas; None: the default devices.

    `-dev opencl:0,cpu` is one set, as for every command. If a set is written with `/`, or is
    `none` or `auto`, commas separate sets: `-dev opencl:0/cpu,none`."""
    sets: list[str | None] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        several = "/" in text or not {"none", "auto"}.isdisjoint(parts)
        for names in parts if several else [text]:
            sets.append(None if names == "auto" else names.replace("/", ","))
    return sets


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
