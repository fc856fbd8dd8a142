"""Errors in the words of the command line: `error: ` before each, flags instead of arguments."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import typer

from weft.cli.command import ReaderLeft, UsageError
from weft.cli.console import forget_notes, say, text_out
from weft.errors import WeftError

__all__ = ["exit_code", "flag_of", "in_flags", "show_error", "show_warning"]

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
}
"""What the library calls an argument, and what the command line calls it; beside the options of
sampling."""

_PHRASES = {
    "; use embed": "; use `weft embed`",
    ", or create the context with swa_full=True": ", or leave out --swa-small",
    ", or remove tokens first (seq_rm, clear)": "",
}
"""Advice that is for programs only."""


@cache
def flag_of() -> dict[str, str]:
    """The flag of each argument of the library that has one."""
    from weft.llm.sampling import SAMPLING_OPTIONS  # NumPy: only where there is something to say

    return _FLAG_OF | {name: option.flags[0] for name, option in SAMPLING_OPTIONS.items()}


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """Where a message names an argument: in front of its flag, of the message, of what it must be,
    behind what to do with it, and, where the name is no word of English, anywhere."""
    by_length = sorted(flag_of(), key=len, reverse=True)
    names = "|".join(by_length)
    words = "|".join(name for name in by_length if "_" in name)
    verbs = ("make", "leave out", "leave", "use", "give", "set")
    advice = "|".join(rf"(?<=\b{verb} )" for verb in verbs)
    return tuple(
        re.compile(pattern)
        for pattern in (
            rf"\b(?:{names}) \((-{{1,2}}[\w-]+)\)",
            rf"^({names})(?=: )",
            rf"(?:^|(?<=: )|(?<=; )|(?<=, ))({names})"
            r"(?= (?:is|must|needs?|chooses|has|and|of token)\b)",
            rf"(?:{advice})({names})\b(?= |,|;|$)",
            rf"(?<![\w.'\"/-])({words})(?![\w.'\"/=-])",
        )
    )


def in_flags(message: str) -> str:
    """A message of the library with the flags that a person has typed.

    Names that are words of English, too (`memory`, `place`), count where a sentence is about
    them only; names in quotes are somebody's own."""
    said_twice, *others = _patterns()
    message = said_twice.sub(r"\1", message)
    for found, said in _PHRASES.items():
        message = message.replace(found, said)
    for pattern in others:
        message = pattern.sub(lambda m: flag_of()[m[1]], message)
    return message


def exit_code(command: Callable[[], Any]) -> int:
    """Runs a command and says what went wrong: 0 done, 1 an error that a message explains, 2 wrong
    usage, 130 interrupted."""
    _open_closed_streams()
    forget_notes()
    try:
        done = command()
        sys.stdout.flush()
    except (ReaderLeft, BrokenPipeError):  # who reads a pipe has what was wanted
        _drop_output()
        return 0
    except UsageError as error:
        _show_usage_error(error)
        return 2
    except (WeftError, OSError) as error:
        show_error(error)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        done = 130
    if done == 130:
        say("interrupted", "yellow")
    return done if isinstance(done, int) else 0


def _open_closed_streams() -> None:
    """Streams that the shell has closed read nothing and keep nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def _drop_output() -> None:
    """What is still to be written is not, when Python ends, where that cannot work."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_error(error: Exception) -> None:
    """`error: ` and what is wrong."""
    if isinstance(error, OSError):
        _drop_output()
        what = f"{error.filename}: " if error.filename else ""
        text = f"{what}{error.strerror or error}"
    else:
        text_out.end_line()
        text = in_flags(str(error))
    say(f"error: {text}", "red")


def _show_usage_error(error: Any) -> None:
    """What is wrong with the line, and where its options are listed."""
    text = error.format_message().rstrip(".")
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    say(f"error: {_plain(text)}", "red")
    command = getattr(getattr(error, "ctx", None), "command_path", "weft")
    say(f"`{command} --help` lists the options", "dim")


_REWORDED = {
    r"Input should be a valid integer.*": "write a whole number",
    r"Input should be a valid number.*": "write a number",
    r"Value error, ": "",
    r"\. (Did you mean )": r"; did you mean ",
    r"^no such": "there is no",
}


_FETCHED = "a model named hf:OWNER/NAME[:QUANT] is fetched when it is first used"
_FILES = "models are files; weft inspect shows what one holds"
_SERVED = "a server runs until Ctrl-C, with one model: weft serve MODEL"
_CONVERTED = "GGUF files come from llama.cpp's converter; weft quantize changes their types"
_ELSEWHERE = {
    **dict.fromkeys(("pull", "fetch", "download"), _FETCHED),
    **dict.fromkeys(("show", "gguf", "gguf-hash", "info"), "weft inspect shows what a file holds"),
    **dict.fromkeys(("list", "ls", "rm", "cp", "push", "create"), _FILES),
    **dict.fromkeys(("ps", "stop", "launch", "signin", "signout"), _SERVED),
    **dict.fromkeys(("generate", "complete", "simple"), "weft run continues a text"),
    **dict.fromkeys(("cli", "completion-cli"), "weft run continues a text, weft chat talks"),
    **dict.fromkeys(("server", "start", "api"), "weft serve is one"),
    **dict.fromkeys(("convert", "convert-hf-to-gguf", "gguf-split"), _CONVERTED),
    **dict.fromkeys(("batched-bench", "parallel"), "weft bench measures one text at a time"),
    "imatrix": "weft quantize treats every weight alike",
    "rpc-server": "devices are those of this machine",
    "export-lora": "there are no adapters",
    "mtmd-cli": "models read text only",
    **{name: f"weft {name} does that" for name in ("bench", "quantize", "perplexity", "tokenize")},
    "embedding": "weft embed does that",
}
"""Commands of other engines, and what there is here."""


def _plain(text: str) -> str:
    """A message of the parser in the style of ours."""
    for found, said in _REWORDED.items():
        text = re.sub(found, said, text, flags=re.DOTALL)
    command = re.match(r"there is no command '([\w-]+)'", text)
    if command:
        here = _ELSEWHERE.get(command[1].removeprefix("llama-"), "")
        return f"{command[0]}; {here}" if here else text
    return text


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Without the place in the code, which says nothing to a user."""
    text_out.end_line()
    text = in_flags(str(message))
    say(f"warning: {text}", style="yellow")
