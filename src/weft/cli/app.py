"""The command table and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft.cli.console import errors, text_out
from weft.errors import WeftError

__all__ = ["COMMANDS", "app", "run_command"]

COMMANDS = {
    "run": "Generate text; the plan and the speed go to stderr.",
    "chat": "Talk with a model; /help lists the commands.",
    "serve": "Serve a model over the OpenAI API.",
    "embed": "Print embeddings of texts.",
    "perplexity": "Say how well a model predicts a text.",
    "tokenize": "Show the tokens of a text: id and piece, one a line.",
    "bench": "Measure tokens per second.",
    "inspect": "Show the metadata, tensors, types and sizes of a GGUF file.",
    "explain": "Show where everything would run, and why.",
    "diff": "Show what differs between two plans.",
    "export": "Write a model for ExecuTorch.",
    "devices": "List devices.",
    "doctor": "Check every kernel against the baseline and NumPy.",
    "calibrate": "Measure what ops and copies cost here.",
    "quantize": "Write a model again with its matrices in another type.",
}
"""Each command and what it does. `weft.cli.NAME` has a function of the same name, which is imported
when the command is called, with what it needs alone."""

_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Loaded(Mapping[str, Any]):
    """The commands as click has them, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        alone = typer.Typer(**_SETTINGS)
        alone.command(name)(getattr(import_module(f"weft.cli.{name}"), name))
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    """The table of commands; help of all is printed without importing one."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Loaded()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="weft",
    help="Runs models on the devices this machine has, and says why each op runs where it does.",
    no_args_is_help=True,
    cls=_Commands,
    **_SETTINGS,
)


def _version(show: bool) -> None:
    if show:
        from weft.version import __version__

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


def run_command() -> None:
    """Runs what the command line says; ends with SystemExit unless all went well."""
    warnings.showwarning = _show_warning
    try:
        app()
    except WeftError as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:
        # the reader of a pipe left; close quietly, as other tools do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
