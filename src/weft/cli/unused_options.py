"""Options of other engines that are taken so that their command lines work, and change nothing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from weft.cli.command import usage_error
from weft.cli.console import note
from weft.native import _native

__all__ = [
    "UNUSED_BY_BENCH",
    "Conversation",
    "Interactive",
    "NoEffect",
    "Unused",
    "note_devices",
    "note_memory",
    "note_threads",
    "note_unused",
    "require_text_only",
    "takes_layers",
    "unused_parameter",
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


@dataclass(frozen=True, slots=True)
class Unused:
    """An option that takes a value, and changes nothing."""

    flags: tuple[str, ...]
    same: tuple[str, ...]
    """Values that say what is so all the same."""
    instead: str
    """What is so, or which option of weft's says it."""


_MAPPED = "weights are mapped from the file, or repacked"
UNUSED_BY_BENCH = (
    Unused(("-mmp", "--mmap"), ("1",), _MAPPED),
    Unused(("-dio", "--direct-io"), ("0",), _MAPPED),
    Unused(("-lm", "--load-mode"), ("mmap", "auto"), _MAPPED),
    Unused(("-sm", "--split-mode"), ("layer", "none"), "a weight is on one device as a whole"),
    Unused(("-mg", "--main-gpu"), ("0",), "--devices names devices in order of priority"),
    Unused(("-ts", "--tensor-split"), ("0",), "-ngl, --fit and --place say what is where"),
    Unused(("-nopo", "--no-op-offload"), ("0",), "a device may ask for ops of others' weights"),
    Unused(("--no-host",), ("0",), "weights in host memory stay mapped"),
    Unused(("-fitt", "--fit-target"), ("0",), "--fit and --memory say what must fit"),
    Unused(("-fitc", "--fit-ctx"), ("0",), "the context is as large as the tests need"),
)
"""Of llama-bench."""


def unused_parameter(option: Unused) -> inspect.Parameter:
    """The parameter of a command that takes `option`."""
    name = option.flags[-1].strip("-").replace("-", "_")
    annotation = Annotated[list[str] | None, typer.Option(*option.flags, hidden=True)]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(f"unused_{name}", kind, default=None, annotation=annotation)


def note_unused(options: Sequence[Unused], given: Sequence[Sequence[str] | None]) -> None:
    """Says of options that were typed what is so instead."""
    for option, texts in zip(options, given, strict=True):
        values = [value for text in texts or () for value in text.split(",")]
        if any(value not in option.same for value in values):
            note(f"{option.flags[0]} {','.join(values)} changes nothing: {option.instead}")


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
