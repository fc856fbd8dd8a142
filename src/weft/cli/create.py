"""`weft create` keeps a model with its settings, from a Modelfile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import note, say
from weft.cli.model_file import find_model
from weft.cli.modelfile import NAME, kept_folder, modelfiles_of, read_modelfile, with_settings
from weft.errors import FormatError
from weft.files import write_text


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that commands take.")],
    file: Annotated[
        Path,
        typer.Option("--file", "-f", metavar="FILE", help="FROM, SYSTEM, PARAMETER and others."),
    ] = Path("Modelfile"),
) -> None:
    """Keep a model with its settings, from a Modelfile: weft chat NAME."""
    name = name.removesuffix(":latest")
    if not NAME.fullmatch(name):
        raise FormatError(f"{name!r:.60} is no name: write letters, digits, -, _ and .")
    made = read_modelfile(file)
    kept = kept_folder() / name
    if kept.resolve() in {path.resolve() for path in modelfiles_of(made.model)}:
        raise FormatError(f"{file}: FROM {made.model} is {name} itself; create another name")
    find_model(with_settings(made.model, (), escaped=False)[0])  # raises if there is none
    kept_folder().mkdir(parents=True, exist_ok=True)
    write_text(kept, made.text())
    if made.go:
        note("TEMPLATE is in Go's language; the model's own template writes chats", "yellow")
    say(f"{name} is kept; weft chat {name} and weft serve {name} begin with its settings")
