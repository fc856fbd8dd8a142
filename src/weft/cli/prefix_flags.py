"""The options that say what is kept of texts beside the cache, as llama.cpp spells them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cli.command import usage_error
from weft.cli.groups import Group
from weft.cli.unused_options import UNUSED, Unused
from weft.errors import FormatError
from weft.llm.cache.prefix_options import PREFIX_OPTIONS
from weft.schedule.profile import parse_size


def without_kept(options: tuple[Unused, ...]) -> tuple[Unused, ...]:
    """Options without an effect, for commands with the options of this module."""
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


class PrefixFlags(Group):
    """What is kept of texts. The command gets the arguments of `LLM` and `ServeOptions`."""

    table = PREFIX_OPTIONS
    cache_ram: str | None = None
    ctx_checkpoints: int
    checkpoint_every: int
    cache_dir: Path | None
    cache_dir_size: str | None = None

    def made(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments; raises a usage error for one that cannot be."""
        if self.ctx_checkpoints < 0:
            raise usage_error(f"--ctx-checkpoints {self.ctx_checkpoints}: give 0 or more")
        if self.checkpoint_every < -1:
            every = self.checkpoint_every
            raise usage_error(f"--checkpoint-every {every}: give a number of tokens")
        ram = (self.cache_ram or "1024").strip()
        size = self.cache_dir_size or "8GiB"
        hint = "MiB, e.g. 8192, or a size such as 8GiB"
        return {
            "cache_ram": _size("--cache-ram", f"{ram}MiB" if ram.isdigit() else ram, ram, hint),
            "ctx_checkpoints": self.ctx_checkpoints,
            "checkpoint_every": max(self.checkpoint_every, 0),
            "cache_dir": self.cache_dir,
            "cache_dir_size": _size("--cache-dir-size", size, size, "e.g. 8GiB"),
        }


def _size(flag: str, size: str, typed: str, hint: str) -> int:
    try:
        return parse_size(size)
    except FormatError:
        raise usage_error(f"{flag} {typed}: give a limit, {hint}; 0: nothing is kept") from None
