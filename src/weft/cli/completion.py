"""`weft completion` prints scripts with which shells complete commands and options."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer
import typer.completion

_ZSH_BEGIN = """#compdef weft
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
"""
"""A zsh that has no completion yet gets it."""
_ZSH_END = """
[[ "$funcstack[1]" == _weft ]] && _weft_completion
"""
"""A file `_weft` among zsh's functions is read when it is first needed, and must answer then."""


class Shell(StrEnum):
    """The shells for which there is a script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands and options in a shell. In bash:
    eval "$(weft completion bash)"; zsh: the same with zsh; fish: weft completion fish | source.
    """
    os.environ["_WEFT_COMPLETE"] = f"source_{shell.value}"
    typer.completion.get_completion_inspect_parameters()  # registers the shells
    zsh = shell is Shell.zsh
    print(_ZSH_BEGIN if zsh else "", end="")
    try:
        context.find_root().command.main([], prog_name="weft", standalone_mode=False)
    finally:
        print(_ZSH_END if zsh else "", end="")
