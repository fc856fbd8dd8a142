"""Shows errors in the terms of the command line, with flags instead of arguments, and sets the exit
code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import typer

from weft.cli.command import ReaderLeft, UsageError
from weft.cli.console import forget_notes, say, text_out
from weft.errors import ErrorWarning, WeftError

__all__ = ["exit_code", "flag_name", "flag_of", "show_error", "show_warning"]

_FLAG_OF = {
    "n_ctx": "-c",
    "n_ubatch": "-ub",
    "n_batch": "-b",
    "n_seq_max": "--parallel",
    "max_tokens": "-n",
    "n_keep": "--keep",
    "n_gpu_layers": "-ngl",
    "n_copies": "--n-copies",
    "n_threads": "-t",
    "n_threads_batch": "-tb",
    "n_chunks": "--chunks",
    "from_chunk": "--from-chunk",
    "output_every": "--output-frequency",
    "save_every": "--save-frequency",
    "ppl_stride": "--ppl-stride",
    "offload_kv": "--no-kv-offload",
    "swa_full": "--swa-full",
    "type_k": "-ctk",
    "type_v": "-ctv",
    "flash": "-fa",
    "fit": "--fit",
    "place": "--place",
    "memory": "--memory",
    "policy": "--policy",
    "devices": "--devices",
    "cpus": "--cpu-mask and --cpu-range",
    "numa": "--numa",
    "poll": "--poll",
    "strict": "--cpu-strict",
    "expert_budget": "--expert-budget",
    "expert_policy": "--expert-policy",
    "p_min": "--draft-p-min",
    "mmproj": "--mmproj",
    "repack": "--repack",
    "embed": "`weft embed`",
}
"""The flags of the library's arguments, besides the options of sampling."""


@cache
def flag_of() -> dict[str, str]:
    """The flags of all arguments of the library that have one."""
    from weft.llm.sampling import SAMPLING_OPTIONS  # imports NumPy, which takes time

    return _FLAG_OF | {name: option.flags[0] for name, option in SAMPLING_OPTIONS.items()}


def flag_name(argument: str) -> str:
    """The name that an argument of the library has on the command line."""
    return flag_of().get(argument, argument)


def exit_code(command: Callable[[], Any]) -> int:
    """Runs a command and shows its error. Returns 0 on success, 1 after an error message, 2 for a
    wrong command line, and 130 after Ctrl-C."""
    _open_closed_streams()
    forget_notes()
    try:
        code = command()
        sys.stdout.flush()
    except (ReaderLeft, BrokenPipeError):  # the reader of the pipe has all that it wanted
        _drop_output()
        return 0
    except UsageError as error:
        _show_usage_error(error)
        return 2
    except (WeftError, OSError) as error:
        show_error(error)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    if code == 130:
        say("interrupted", "yellow")
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Replaces streams that the shell has closed by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def _drop_output() -> None:
    """Discards buffered output, which Python would otherwise fail to write when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_error(error: Exception) -> None:
    """Prints an error to stderr, after `error: `."""
    if isinstance(error, OSError):
        _drop_output()
        what = f"{error.filename}: " if error.filename else ""
        text = f"{what}{error.strerror or error}"
    else:
        text_out.end_line()
        text = error.told(flag_name) if isinstance(error, WeftError) else str(error)
    say(f"error: {text}", "red")


def _show_usage_error(error: Any) -> None:
    """Prints an error about the command line, and how to list its options."""
    text = error.format_message().rstrip(".")
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    say(f"error: {text}", "red")
    command = getattr(getattr(error, "ctx", None), "command_path", "weft")
    say(f"`{command} --help` lists the options", "dim")


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Prints a warning without its position in the code, which means nothing to users."""
    text_out.end_line()
    text = message.error.told(flag_name) if isinstance(message, ErrorWarning) else str(message)
    say(f"warning: {text}", style="yellow")
