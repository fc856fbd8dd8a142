"""The options of kept prefixes: how much host memory and disk they may take, and how often the
state of a text is copied."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from weft.errors import ContextError, FormatError
from weft.options import MODEL, Option, option
from weft.records import dataclass
from weft.schedule.profile import parse_size


@dataclass(frozen=True, slots=True)
class PrefixOptions:
    """What is kept of texts beside the cache; see `PREFIX_OPTIONS`. Raises ContextError for a value
    out of range."""

    cache_ram: int = 1 << 30
    """Maximum number of bytes of host memory for texts and checkpoints; 0: none are kept."""
    ctx_checkpoints: int = 32
    """Maximum number of checkpoints for each sequence of the context; 0: none."""
    checkpoint_every: int = 8192
    """A checkpoint at every multiple of so many tokens; 0: only where messages and prompts end."""
    cache_dir: Path | None = None
    """Folder that keeps texts when the process ends; None: there is none."""
    cache_dir_size: int = 8 << 30
    """Maximum number of bytes of the files in `cache_dir`."""

    def __post_init__(self) -> None:
        for name in ("cache_ram", "ctx_checkpoints", "checkpoint_every", "cache_dir_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ContextError(f"is {value!r}; it must be 0 or more", argument=name)


class PrefixArguments(TypedDict, total=False):
    """The arguments of `LLM` that say what is kept of texts; see `PREFIX_OPTIONS`."""

    cache_ram: int | str
    ctx_checkpoints: int
    checkpoint_every: int
    cache_dir: str | os.PathLike[str] | None
    cache_dir_size: int | str


PREFIX_OPTIONS: dict[str, Option] = {
    "cache_ram": option(
        "1GiB",
        'Most bytes of host memory, or a size such as "4G", for texts that had to leave the '
        "cache and for checkpoints of recurrent states; those used longest ago go first. 0: none.",
        "--cache-ram -cram", MODEL, "MIB",
        help="Most MiB of host memory for texts that leave the cache and for checkpoints of "
        "recurrent states; default: 1024; 0: none.",
    ),
    "ctx_checkpoints": option(
        32, "Most checkpoints for each sequence: copies of recurrent states, or of the cells of a "
        "sliding window, to which a text can go back. 0: none.",
        "--ctx-checkpoints -ctxcp --swa-checkpoints", MODEL,
        help="Most checkpoints for each text: recurrent states to which it can go back; 0: none.",
    ),
    "checkpoint_every": option(
        8192, "A prompt has a checkpoint at every multiple of so many tokens, besides those where "
        "messages and the prompt end. 0: only there.",
        "--checkpoint-every --checkpoint-every-n-tokens -cpent", MODEL,
        help="A prompt has a checkpoint every so many tokens, besides those where messages end; "
        "0: only there.",
    ),
    "cache_dir": option(
        None,
        "Folder in which texts are kept when they leave the cache and at the end, for the next "
        "process with the same model; None: nothing is written.", "--cache-dir", MODEL, "DIR",
        help="Folder in which texts are kept for the next start with the same model.",
    ),
    "cache_dir_size": option(
        "8GiB",
        "Most bytes of the files in `cache_dir`, or a size; those used longest ago are removed.",
        "--cache-dir-size", MODEL, "SIZE",
        help="Most bytes of the files in --cache-dir; default: 8GiB.",
    ),
}  # fmt: skip
"""Every key of `PrefixArguments`, with default and meaning."""


def prefix_options(arguments: Mapping[str, Any]) -> tuple[PrefixOptions, dict[str, Any]]:
    """The options of kept prefixes among `arguments`, and all other arguments. Raises ContextError
    for a value that cannot be."""
    given = {name: arguments[name] for name in PREFIX_OPTIONS if name in arguments}
    rest = {name: value for name, value in arguments.items() if name not in PREFIX_OPTIONS}
    for name in ("cache_ram", "cache_dir_size"):
        if name in given:
            try:
                given[name] = parse_size(given[name])
            except FormatError as error:
                raise ContextError(f": {error}", argument=name) from None
    if given.get("cache_dir") is not None:
        given["cache_dir"] = Path(given["cache_dir"])
    return PrefixOptions(**given), rest
