"""Shows errors in the terms of the command line, with flags instead of arguments, and sets the exit
code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import typer

from weft.cli.command import ReaderLeft, UsageError
from weft.cli.console import forget_notes, say, text_out
from weft.cli.machine_options import COMMAS, is_worker
from weft.errors import ErrorWarning, WeftError

_names = {
    "cpus": "--cpu-mask and --cpu-range",
    "strict": "--cpu-strict",
    "priority": "--prio",
    "n_batch": "-b",
    "p_min": "--draft-p-min",
    "n_seq_max": "--parallel",
    "offload_kv": "--no-kv-offload",
    "op_offload": "--op-offload-min-batch",
    "embed": "`weft embed`",
}
"""The names of the library's arguments in the words of the command line. Groups of options add the
flags of their fields; here are those that are called otherwise."""


def name_flag(argument: str, flag: str) -> None:
    """Says which flag of the command that runs gives an argument of the library."""
    _names.setdefault(argument, flag)


def flag_name(argument: str, unknown: str = "{}") -> str:
    """The name that an argument of the library has on the command line, or `unknown` with it."""
    return _names.get(argument) or unknown.format(argument)


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
    except (WeftError, OSError, Warning) as error:  # Warning: of `python -W error`
        show_error(error)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except RuntimeError as error:
        # Before Python 3.12 a Ctrl-C within `__set_name__`, where a module is imported, is told so.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
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
    text = " ".join(error.format_message().split()).rstrip(".")
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    _, extra, rest = text.partition("unexpected extra argument")
    if extra and any(is_worker(word) for word in rest.strip("s ()").split()):
        text += f"; {COMMAS}"
    say(f"error: {text}", "red")
    command = getattr(getattr(error, "ctx", None), "command_path", "weft")
    say(f"`{command} --help` lists the options", "dim")


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Prints a warning without its position in the code, which means nothing to users."""
    text_out.end_line()
    text = message.error.told(flag_name) if isinstance(message, ErrorWarning) else str(message)
    say(f"warning: {text}", style="yellow")
