"""`weft tokenize` shows the tokens of a text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.groups import Group, grouped
from weft.cli.model_file import ModelFile, takes_model
from weft.cli.text_input import read_text
from weft.errors import ContextError
from weft.frontends.models import open_model
from weft.llm import Tokenizer
from weft.options import option


class TokenizeFlags(Group):
    """The options of `weft tokenize`."""

    prompt: str | None = option(None, "The text, as without a flag.", "--prompt -p")
    stdin: bool = option(False, "Read the text from standard input.", hidden=True)
    file: Path | None = option(None, "Read the text here.", "--file -f")
    bos: bool = option(True, "Add BOS and EOS if the model expects them.", "--bos/--no-bos")
    special: bool = option(
        True, "Read names of control tokens as these tokens, which is the default.",
        "--special/--no-special --parse-special/--no-parse-special", show_default=False,
    )  # fmt: skip
    ids: bool = option(False, "Print the ids only, as a list.")
    count: bool = option(False, "Print how many there are.", "--count --show-count")
    no_effect: bool = option(False, "", "--log-disable --no-escape", hidden=True)


@takes_model
@grouped
def tokenize(
    model: ModelFile,
    own: TokenizeFlags,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The text; without it, or with -, standard input."),
    ] = None,
) -> None:
    """Show the tokens of a text: id and piece, one a line."""
    if sum(source is not None for source in (text, own.prompt, own.file)) + own.stdin > 1:
        raise ContextError("give the text as an argument or with -p, --file or --stdin, not both")
    text = read_text("-" if own.stdin else text if own.prompt is None else own.prompt, own.file)
    with open_model(model) as opened:
        tokenizer = Tokenizer.from_gguf(opened)
        tokens = tokenizer.encode(text, add_special=own.bos, parse_special=own.special)
        if own.ids:
            print(json.dumps(tokens))
        elif not own.count:
            for id_ in tokens:
                piece = tokenizer.piece(id_, special=True)
                sys.stdout.write(f"{id_:>7}  {_shown(piece)}\n")
    if own.count:
        print(len(tokens))


def _shown(piece: bytes) -> str:
    """A piece in quotes, with control characters escaped."""
    try:
        return repr(piece.decode())
    except UnicodeDecodeError:  # part of a character
        return repr(piece)
