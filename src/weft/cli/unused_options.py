"""Options of other engines that are taken so that their command lines work, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from weft.cli.command import usage_error
from weft.cli.console import note
from weft.native import _native

__all__ = [
    "Conversation",
    "Interactive",
    "NoEffect",
    "note_devices",
    "note_memory",
    "note_threads",
    "require_text_only",
    "takes_layers",
]

NoEffect = Annotated[
    bool,
    typer.Option(
        *("--mmap", "--jinja", "--no-jinja", "--warmup", "--no-warmup", "--perf", "--no-perf"),
        *("--color", "-co", "--log-disable", "--simple-io", "--cont-batching", "-cb"),
        hidden=True,
        help="Says what is so all the same, or what there is none of.",
    ),
]

Interactive = Annotated[
    bool,
    typer.Option(
        *("-cnv", "--conversation", "-i", "--interactive", "-st", "--single-turn"), hidden=True
    ),
]
Conversation = Annotated[
    str | None,
    typer.Option("-sys", "--system-prompt", "--system", hidden=True, metavar="TEXT"),
]
"""What makes a conversation elsewhere."""

_IN_HOST_MEMORY = ("cpu", "blas")
_NEED_CPU = ("blas", "opencl")
_STAND_ALONE = ("cpu", "reference", "null")
"""Devices behind which no other is needed."""


def require_text_only(system: str | None, interactive: bool) -> None:
    """Raises a usage error where a conversation is asked of a command that continues texts."""
    if system is not None:
        raise usage_error("weft run continues a text and has no --system; weft chat has one")
    if interactive:
        raise usage_error("weft run continues a text; a conversation is weft chat")


def note_memory(mlock: bool, no_mmap: bool) -> None:
    """Says what --mlock and --no-mmap do not do."""
    if mlock:
        note("--mlock changes nothing: weights are not locked in memory")
    if no_mmap:
        note("--no-mmap changes nothing: weights are mapped from the file, or repacked")


def note_threads(**threads: int | None) -> None:
    """Warns of more threads than there are processors."""
    there = _native.usable_processors()
    for flag, n in threads.items():
        if n is not None and n > there:
            note(
                f"-{flag} {n} is more than the {there} processors there are; threads beyond them "
                "take memory and wait for each other",
                style="yellow",
            )


def note_devices(names: Sequence[str]) -> None:
    """Says what a list of devices does not: that nothing is computed, or that the cpu helps."""
    families = [name.partition(":")[0] for name in names]
    if "null" in families:
        note("the device null computes nothing; what comes out means nothing", style="yellow")
    if families and families[-1] in _NEED_CPU and "cpu" not in families:
        note(f"cpu is added behind {names[-1]}, for what that does not run")


def takes_layers(names: Sequence[str], n: int | None) -> bool:
    """Whether one of the devices has memory of its own, for `n` layers; says so where none has."""
    families = [name.partition(":")[0] for name in names]
    if any(f not in _IN_HOST_MEMORY for f in families[:-1]) or families[-1] not in (
        *_IN_HOST_MEMORY, *_STAND_ALONE,
    ):  # fmt: skip
        return True
    if n is not None and n > 0:
        note(
            f"-ngl {n} changes nothing: no device of {', '.join(names)} has "
            "memory of its own; `weft devices` lists those there are, --devices names them",
            style="yellow",
        )
    return False
