"""Shows errors in the terms of the command line, with flags instead of arguments, and sets the exit
code."""

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
}
"""The flags of the library's arguments, besides the options of sampling."""

_PHRASES = {
    "; use embed": "; use `weft embed`",
    ", or create the context with swa_full=True": ", or leave out --swa-small",
    ", or remove tokens first (seq_rm, clear)": "",
}
"""Advice for programs, and the advice for the command line that replaces it."""


@cache
def flag_of() -> dict[str, str]:
    """The flags of all arguments of the library that have one."""
    from weft.llm.sampling import SAMPLING_OPTIONS  # imports NumPy, which takes time

    return _FLAG_OF | {name: option.flags[0] for name, option in SAMPLING_OPTIONS.items()}


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """Patterns for the names of arguments in a message: before a flag in brackets, at the start of
    the message, before a verb, after advice such as "make", and, for names that are not English
    words, anywhere."""
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
    """Replaces arguments by flags in a message of the library.

    Names that are also English words (`memory`, `place`) are replaced only where the sentence is
    about the argument. Names in quotes are not replaced, because they are the user's own."""
    before_flag, *others = _patterns()
    message = before_flag.sub(r"\1", message)
    for phrase, replacement in _PHRASES.items():
        message = message.replace(phrase, replacement)
    for pattern in others:
        message = pattern.sub(lambda m: flag_of()[m[1]], message)
    return message


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
        text = in_flags(str(error))
    say(f"error: {text}", "red")


def _show_usage_error(error: Any) -> None:
    """Prints an error about the command line, and how to list its options."""
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


_FETCHED = "weft pull hf:OWNER/NAME[:QUANT] does that"
_FILES = "models are files: weft list shows those that were downloaded, weft rm removes one"
_SERVED = "weft serve MODEL, or --models FOLDER, runs until Ctrl-C; weft ps shows what is loaded"
_SEVERAL_TEXTS = (
    "weft bench measures one text at a time; benchmarks/serve.py of weft's repository measures "
    "several, with weft serve"
)
_ELSEWHERE = {
    **dict.fromkeys(("fetch", "download"), _FETCHED),
    **dict.fromkeys(("show", "gguf-hash", "info"), "weft inspect shows what a file holds"),
    **dict.fromkeys(("ls", "remove", "delete", "cp", "push"), _FILES),
    "create": "models.toml of weft serve --models keeps a model with system prompt, template, "
    "sampling and adapters (docs/many-models.md)",
    "launch": _SERVED,
    **dict.fromkeys(
        ("signin", "signout", "login"), "models are public, or need HF_TOKEN in the environment"
    ),
    **dict.fromkeys(("llama-completion", "llama-run", "main"), "weft run continues a text"),
    **dict.fromkeys(("generate", "complete", "simple"), "weft run continues a text"),
    **dict.fromkeys(("cli", "completion-cli"), "weft run continues a text, weft chat talks"),
    **dict.fromkeys(("server", "start", "api"), "weft serve is one"),
    "convert-hf-to-gguf": "weft convert does that",
    **dict.fromkeys(("gguf-split", "gguf-merge"), "weft gguf split and weft gguf merge do that"),
    **dict.fromkeys(("batched-bench", "parallel"), _SEVERAL_TEXTS),
    "rpc-server": "weft worker lends the devices of this machine",
    "export-lora": "weft convert MODEL OUT --merge ADAPTER does that",
    "convert-lora-to-gguf": "weft convert FOLDER OUT --lora does that",
    "mtmd-cli": "weft run and weft chat see images and hear sounds, with --mmproj FILE",
    **{
        name: f"weft {name} does that"
        for name in ("bench", "imatrix", "quantize", "perplexity", "tokenize")
    },
    "embedding": "weft embed does that",
}
"""Commands of other engines, and what to use here instead."""


def _plain(text: str) -> str:
    """Rewords a message of the parser in the style of weft's messages."""
    for pattern, replacement in _REWORDED.items():
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    command = re.match(r"there is no command '([\w-]+)'", text)
    if command:
        name = command[1]
        here = _ELSEWHERE.get(name) or _ELSEWHERE.get(name.removeprefix("llama-"), "")
        return f"{command[0]}; {here}" if here else text
    return text


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Prints a warning without its position in the code, which means nothing to users."""
    text_out.end_line()
    text = in_flags(str(message))
    say(f"warning: {text}", style="yellow")
