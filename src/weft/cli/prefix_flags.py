"""The options that say what is kept of texts beside the cache, as llama.cpp spells them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import MODEL, usage_error
from weft.cli.replaced import parameters_of, replaces
from weft.cli.unused_options import UNUSED, Unused
from weft.errors import FormatError
from weft.llm.cache.prefix_options import PrefixOptions
from weft.schedule.profile import parse_size

__all__ = ["UNUSED_BY_WRITERS", "prefix_flags", "without_kept"]

_DEFAULTS = PrefixOptions()


def without_kept(options: tuple[Unused, ...]) -> tuple[Unused, ...]:
    """Options without an effect, for commands with those of this module."""
    return (
        *(option for option in options if "--cache-ram" not in option.flags),
        Unused(
            ("-cms", "--checkpoint-min-step"),
            ("256", "8192"),
            "there are checkpoints where messages end, and with --checkpoint-every N at every N "
            "tokens",
        ),
    )


UNUSED_BY_WRITERS = without_kept(UNUSED)
"""Options of llama.cpp without an effect on commands that write texts."""


def _mebibytes(text: str | int) -> int:
    """Bytes of a number of MiB, or of a size with a unit."""
    plain = str(text).strip()
    return _size("--cache-ram", f"{plain}MiB" if plain.isdigit() else plain)


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except FormatError:
        hint = "MiB, e.g. 8192, or a size such as 8GiB" if flag == "--cache-ram" else "e.g. 8GiB"
        raise usage_error(f"{flag} {text}: give a limit, {hint}; 0: nothing is kept") from None


CacheRam = Annotated[
    int | None,
    typer.Option(
        "--cache-ram", "-cram", parser=_mebibytes, metavar="MIB", rich_help_panel=MODEL,
        help="Most MiB of host memory for texts that leave the cache and for checkpoints of "
        "recurrent states; default: 1024; 0: none.",
    ),
]  # fmt: skip
CtxCheckpoints = Annotated[
    int,
    typer.Option(
        "--ctx-checkpoints", "-ctxcp", "--swa-checkpoints", rich_help_panel=MODEL,
        help="Most checkpoints for each text: recurrent states to which it can go back; 0: none.",
    ),
]  # fmt: skip
CheckpointEvery = Annotated[
    int,
    typer.Option(
        "--checkpoint-every", "--checkpoint-every-n-tokens", "-cpent", rich_help_panel=MODEL,
        help="A prompt has a checkpoint every so many tokens, besides those where messages end; 0: "
        "only there.",
    ),
]  # fmt: skip
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir", metavar="DIR", rich_help_panel=MODEL,
        help="Folder in which texts are kept for the next start with the same model.",
    ),
]  # fmt: skip
CacheDirSize = Annotated[
    int | None,
    typer.Option(
        "--cache-dir-size", metavar="SIZE", rich_help_panel=MODEL,
        parser=lambda text: _size("--cache-dir-size", str(text)),
        help="Most bytes of the files in --cache-dir; default: 8GiB.",
    ),
]  # fmt: skip


def _arguments(
    cache_ram: CacheRam = None,
    ctx_checkpoints: CtxCheckpoints = _DEFAULTS.ctx_checkpoints,
    checkpoint_every: CheckpointEvery = _DEFAULTS.checkpoint_every,
    cache_dir: CacheDir = None,
    cache_dir_size: CacheDirSize = None,
) -> dict[str, Any]:
    """The arguments of `LLM` and `ServeOptions`."""
    if ctx_checkpoints < 0:
        raise usage_error(f"--ctx-checkpoints {ctx_checkpoints}: give 0 or more")
    if checkpoint_every < -1:
        raise usage_error(f"--checkpoint-every {checkpoint_every}: give a number of tokens")
    ram = _DEFAULTS.cache_ram if cache_ram is None else cache_ram
    size = _DEFAULTS.cache_dir_size if cache_dir_size is None else cache_dir_size
    return {
        "cache_ram": ram,
        "ctx_checkpoints": ctx_checkpoints,
        "checkpoint_every": max(checkpoint_every, 0),
        "cache_dir": cache_dir,
        "cache_dir_size": size,
    }


prefix_flags = replaces("kept", parameters_of(_arguments), _arguments)
"""Replaces the parameter `kept` of a command by the options of this module."""
