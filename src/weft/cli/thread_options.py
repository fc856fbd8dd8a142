"""The options of the cpu device's threads: their number, processors, priority and waiting."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, get_args

import typer

from weft.backends.cpu import ThreadOptions
from weft.backends.cpu.threads import Priority, cpus_of_mask, cpus_of_range
from weft.cli.command import DEVICES, THREADS
from weft.errors import DeviceError

__all__ = [
    "CpuMask",
    "CpuRange",
    "CpuStrict",
    "NumaName",
    "NumaOption",
    "Poll",
    "Prio",
    "Threads",
    "ThreadsBatch",
    "thread_options",
]


class NumaName(StrEnum):
    """The ways to use several memory nodes."""

    distribute = "distribute"
    isolate = "isolate"
    numactl = "numactl"


Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", "-t", rich_help_panel=DEVICES, help="CPU threads. Default: one per core."
    ),
]
ThreadsBatch = Annotated[
    int | None,
    typer.Option(
        "--threads-batch", "-tb", rich_help_panel=DEVICES,
        help="CPU threads for prompts. Default: --threads.",
    ),
]  # fmt: skip
CpuMask = Annotated[
    str | None,
    typer.Option(
        "--cpu-mask", "-C", metavar="HEX", rich_help_panel=THREADS,
        help="Processors that threads run on, as a hex mask: 0x3.",
    ),
]  # fmt: skip
CpuRange = Annotated[
    str | None,
    typer.Option(
        "--cpu-range", "-Cr", metavar="LOW-HIGH", rich_help_panel=THREADS,
        help="The same as a range: 0-1.",
    ),
]  # fmt: skip
CpuStrict = Annotated[
    bool,
    typer.Option("--cpu-strict", rich_help_panel=THREADS, help="One processor for each thread."),
]
Prio = Annotated[
    str,
    typer.Option(
        "--prio", metavar="NAME", rich_help_panel=THREADS,
        help="normal, medium, high or realtime; or 0 to 3.",
    ),
]  # fmt: skip
Poll = Annotated[
    int,
    typer.Option(
        "--poll", rich_help_panel=THREADS,
        help="How long threads look for work before they sleep, 0 to 100.",
    ),
]  # fmt: skip
NumaOption = Annotated[
    NumaName | None,
    typer.Option(
        "--numa",
        rich_help_panel=THREADS,
        help="How threads and memory use several memory nodes.",
    ),
]


def thread_options(
    threads: int | None = None,
    threads_batch: int | None = None,
    cpu_mask: str | None = None,
    cpu_range: str | None = None,
    cpu_strict: bool = False,
    prio: str = "normal",
    poll: int = 50,
    numa: NumaName | None = None,
) -> ThreadOptions:
    """Converts the options to `ThreadOptions`; raises DeviceError for an impossible value."""
    cpus: set[int] = set()
    if cpu_mask is not None and cpu_mask not in ("0", "0x0"):  # none chosen: all
        cpus.update(cpus_of_mask(cpu_mask))
    if cpu_range is not None:
        cpus.update(cpus_of_range(cpu_range))
    names: tuple[Priority, ...] = get_args(Priority)
    numbers = {str(i): name for i, name in enumerate(names)}
    priority = next((name for name in names if name == prio), numbers.get(prio))
    if priority is None:
        raise DeviceError(f"--prio is one of {', '.join(names)} or 0..3, got {prio!r}")
    return ThreadOptions(
        n_threads=threads, n_threads_batch=threads_batch,
        cpus=tuple(sorted(cpus)) if cpus else None, strict=cpu_strict, priority=priority,
        poll=poll, numa=None if numa is None else numa.value,
    )  # fmt: skip
