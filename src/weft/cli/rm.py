"""`weft rm` removes models that were downloaded."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.console import say
from weft.cli.modelfile import kept_model
from weft.llm.cached_models import remove_model
from weft.tables import size_text


def rm(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names as weft list shows them.")
    ],
) -> None:
    """Remove models that were downloaded. Files that are named by a path stay."""
    for name in names:
        if (kept := kept_model(name)) is not None:
            kept.unlink()
            say(f"{name} is removed; its model stays")
            continue
        for model in remove_model(name):
            say(f"{model.name} is removed: {size_text(model.nbytes)}")
