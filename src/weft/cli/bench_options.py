"""The options of `weft bench` that differ from the options of other commands."""

from __future__ import annotations

from collections.abc import Sequence


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
