"""What the subcommands share: consoles, sizes in words, option types."""

from __future__ import annotations

from rich.console import Console

from weft.flags import FLAGS

__all__ = ["console", "device_list", "errors", "size_text", "wide"]

console = Console(highlight=False)
"""Results go here (stdout)."""
errors = Console(stderr=True, highlight=False)
"""Progress, summaries and errors go here, so that stdout can be piped."""


def wide(to_error: bool = False) -> Console:
    """A console that never wraps or cuts tables when its output is not a terminal."""
    plain = Console(stderr=to_error, highlight=False)
    return plain if plain.is_terminal else Console(stderr=to_error, highlight=False, width=10_000)


def size_text(nbytes: float) -> str:
    """`1.50 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def device_list(text: str | None) -> list[str]:
    """`opencl,cpu` -> ["opencl", "cpu"]; without one WEFT_DEVICES, else the cpu."""
    chosen = text if text is not None else FLAGS.devices or "cpu"
    return [name.strip() for name in chosen.split(",") if name.strip()]
