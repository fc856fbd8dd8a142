"""The options that name other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import DEVICES
from weft.flags import FLAGS

__all__ = ["MachineKeyFile", "Machines", "machine_key", "machines_of"]

MachineKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--machine-key-file", "--key-file", metavar="FILE", rich_help_panel=DEVICES,
        help="File with the key that machines share (`weft worker --make-key`). Default: the "
        "value of WEFT_MACHINE_KEY.",
    ),
]  # fmt: skip
Machines = Annotated[
    str | None,
    typer.Option(
        "--machines", metavar="HOST:PORT,...", rich_help_panel=DEVICES,
        help="Workers (`weft worker`) that take layers, in front of --devices; or ray, or "
        "ray:ADDRESS, for the nodes of a Ray cluster.",
    ),
]  # fmt: skip


def machine_key(file: Path | None) -> bytes | None:
    """The key in a file, else in WEFT_MACHINE_KEY; None where there is neither."""
    from weft.links.keys import key_from_text, read_key

    if file is not None:
        return read_key(file)
    return key_from_text(FLAGS.machine_key, "WEFT_MACHINE_KEY") if FLAGS.machine_key else None


def machines_of(text: str | None, key_file: Path | None) -> dict[str, Any]:
    """The arguments of `LLM` for `--machines` and its key."""
    if text is None:
        return {}
    names = [name.strip() for name in text.split(",") if name.strip()]
    return {"machines": names, "machine_key": machine_key(key_file)}
