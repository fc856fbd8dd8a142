"""The argument that names a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.llm.hub import local_path

__all__ = ["ModelFile"]

ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", parser=local_path, help="A GGUF file, or hf:OWNER/NAME[:QUANT]."
    ),
]
