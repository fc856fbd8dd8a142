"""The command table and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import typer

from weft.cli.bench import bench
from weft.cli.calibrate import calibrate
from weft.cli.chat import chat
from weft.cli.console import errors, text_out
from weft.cli.devices import devices
from weft.cli.diff import diff
from weft.cli.doctor import doctor
from weft.cli.embed import embed
from weft.cli.explain import explain
from weft.cli.export import export
from weft.cli.inspect import inspect
from weft.cli.perplexity import perplexity
from weft.cli.quantize import quantize
from weft.cli.run import run
from weft.cli.serve import serve
from weft.cli.tokenize import tokenize
from weft.errors import WeftError
from weft.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="weft",
    help="Runs models on the devices this machine has, and says why each op runs where it does.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    *(run, chat, serve, embed, perplexity, tokenize, bench, inspect, explain, diff),
    export,
    *(devices, doctor, calibrate, quantize),
)
for command in COMMANDS:
    app.command()(command)


def _version(show: bool) -> None:
    if show:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Without the place in the code, which says nothing to a user."""
    text_out.end_line()
    errors.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)


def main() -> None:
    """Entry point of the `weft` command: 0 done, 1 an error that a message explains, 2 wrong usage,
    130 interrupted."""
    warnings.showwarning = _show_warning
    try:
        app()
    except WeftError as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        sys.exit(130)
    except BrokenPipeError:
        # the reader of a pipe left; close quietly, as other tools do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
