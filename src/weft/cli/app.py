"""The command table and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft.cli.command import UsageError, WeftCommand, in_words, usage_error
from weft.cli.console import CompileProgress
from weft.cli.foreign_options import in_place_of_command
from weft.cli.mistakes import exit_code, show_warning
from weft.cli.quick_values import take_plain_values
from weft.compile_watch import watched
from weft.lazy import import_at_once

COMMANDS = {
    "run": "Generate text; the plan and the speed go to stderr.",
    "chat": "Talk with a model; /help lists the commands.",
    "serve": "Serve a model: APIs of OpenAI, Anthropic, Ollama and llama.cpp, and a page.",
    "pull": "Download models that are not there yet.",
    "list": "List the models that were downloaded, or kept with settings.",
    "ps": "Show the models that a server has loaded.",
    "stop": "Unload a model of a server.",
    "rm": "Remove models that were downloaded.",
    "create": "Keep a model with its settings, from a Modelfile.",
    "batch": "Answer a file of requests, in OpenAI's batch format.",
    "worker": "Lend the devices of this machine to weft on other machines.",
    "keys": "Add, list or revoke keys of a server, or show what they used.",
    "embed": "Print embeddings of texts.",
    "rerank": "Sort documents by how well they answer a query.",
    "transcribe": "Write down what is said in sounds, with a model of Whisper or Parakeet.",
    "speak": "Say a text as a WAV file, with Pocket TTS or OuteTTS.",
    "compare": "Compare models on a text: size, perplexity, KL divergence, speed.",
    "perplexity": "Say how well a model predicts a text.",
    "imatrix": "Measure how much each column of a model's weights counts.",
    "tokenize": "Show the tokens of a text: id and piece, one a line.",
    "bench": "Measure tokens per second.",
    "inspect": "Show what a GGUF file or a folder is: metadata, tensors, types and sizes.",
    "explain": "Show where everything would run, and why.",
    "experts": "Simulate policies for --expert-budget.",
    "diff": "Show what differs between two plans.",
    "export": "Write a model for ExecuTorch.",
    "keep": "List the kernels that models need.",
    "devices": "List devices.",
    "doctor": "Check every kernel against the baseline and NumPy.",
    "calibrate": "Measure what ops and copies cost here.",
    "convert": "Write a Hugging Face folder as a GGUF file.",
    "gguf": "Split, merge, change or check GGUF files.",
    "quantize": "Write a model again with its matrices in another type.",
    "completion": "Print a script that completes commands and options in a shell.",
    "help": "Show the commands, or the options of one.",
    "version": "Show the version and the build.",
}
"""The commands and their descriptions. The module `weft.cli.NAME` has a function of the same name;
it is imported only when the command is called."""

_SECTIONS = {
    "run": "Commands",
    "pull": "Models",
    "batch": "Many texts, machines and users",
    "embed": "Embeddings, ranks, transcripts and speech",
    "compare": "Quality and speed",
    "inspect": "Files and plans",
    "devices": "Devices",
    "convert": "Writing models",
    "completion": "weft itself",
}
"""The sections of the help, by their first commands."""

_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Loaded(Mapping[str, Any]):
    """The commands for click, each created when it is first used."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        alone = typer.Typer(**_SETTINGS, add_completion=False)
        alone.command(name, cls=WeftCommand)(getattr(import_at_once(f"weft.cli.{name}"), name))
        if not gc.get_freeze_count():
            gc.freeze()  # it stays to the end: collections, the last one above all, pass it over
        return typer.main.get_command(alone)

    def get(self, name: str, default: Any = None) -> Any:
        """The command, or `default` for a name that is none; a KeyError of the command's module is
        an error of that module."""
        return self[name] if name in COMMANDS else default

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    """The table of commands, whose help is printed without importing them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loaded()  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses what is before the name of a command."""
        take_plain_values(self.get_params(ctx))
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise in_words(error) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds a command; an unknown name is told what there is instead."""
        name = args[0]
        if name not in COMMANDS:
            near = get_close_matches(name, COMMANDS)
            here = in_place_of_command(name)
            meant = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
            hint = f"; {here}" if here else meant
            raise usage_error(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the table."""
        return list(COMMANDS)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Completions: commands with their descriptions from the table, and options."""
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = COMMANDS.get(item.value, item.help)
        return [item for item in items if not item.value.endswith("-completion")]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the table."""
        starts = [*map(list(COMMANDS).index, _SECTIONS), None]
        for name, start, end in zip(_SECTIONS.values(), starts, starts[1:], strict=False):
            with formatter.section(name):
                formatter.write_dl(list(COMMANDS.items())[start:end])


app = typer.Typer(
    name="weft",
    help="Runs models on the devices this machine has, and says why each op runs where it does.",
    cls=_Commands,
    invoke_without_command=True,
    add_completion="_WEFT_COMPLETE" in os.environ,  # set if a shell asks for completions
    **_SETTINGS,
)


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", "-v", help="Show the version, the build and its kernel targets."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --version: print JSON.")] = False,
) -> None:
    if version:
        from weft.cli.about import about_as_json, about_lines

        print(about_as_json() if as_json else about_lines())
        raise typer.Exit
    if as_json:
        raise usage_error("--json stands behind a command, or with --version")
    if context.invoked_subcommand is None:
        print(context.get_help())


def run_command() -> None:
    """Runs the command line; ends with SystemExit."""
    warnings.showwarning = show_warning
    with watched(CompileProgress()):
        code = exit_code(lambda: app(prog_name="weft", standalone_mode=False))
    sys.exit(code)
