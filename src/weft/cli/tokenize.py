"""`weft tokenize` shows the tokens of a text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.model_file import ModelFile, takes_model
from weft.cli.text_input import read_text
from weft.errors import ContextError
from weft.frontends.models import open_model
from weft.llm import Tokenizer

__all__ = ["tokenize"]


@takes_model
def tokenize(
    model: ModelFile,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The text; without it, or with -, standard input."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The text, as without a flag.")
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", hidden=True, help="Read the text from standard input.")
    ] = False,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the text here.")] = None,
    bos: Annotated[
        bool, typer.Option("--bos/--no-bos", help="Add BOS and EOS if the model expects them.")
    ] = True,
    special: Annotated[
        bool,
        typer.Option(
            "--special/--no-special", "--parse-special/--no-parse-special", show_default=False,
            help="Read names of control tokens as these tokens, which is the default.",
        ),
    ] = True,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids only, as a list.")] = False,
    count: Annotated[
        bool, typer.Option("--count", "--show-count", help="Print how many there are.")
    ] = False,
    no_effect: Annotated[
        bool, typer.Option("--log-disable", "--no-escape", hidden=True)
    ] = False,
) -> None:  # fmt: skip
    """Show the tokens of a text: id and piece, one a line."""
    if sum(source is not None for source in (text, prompt, file)) + stdin > 1:
        raise ContextError("give the text as an argument or with -p, --file or --stdin, not both")
    text = read_text("-" if stdin else text if prompt is None else prompt, file)
    with open_model(model) as opened:
        tokenizer = Tokenizer.from_gguf(opened)
        tokens = tokenizer.encode(text, add_special=bos, parse_special=special)
        if ids:
            print(json.dumps(tokens))
        elif not count:
            for id_ in tokens:
                piece = tokenizer.piece(id_, special=True)
                sys.stdout.write(f"{id_:>7}  {_shown(piece)}\n")
    if count:
        print(len(tokens))


def _shown(piece: bytes) -> str:
    """A piece in quotes, with control characters escaped."""
    try:
        return repr(piece.decode())
    except UnicodeDecodeError:  # part of a character
        return repr(piece)
