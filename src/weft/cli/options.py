"""The options that commands for texts share."""

from __future__ import annotations

from typing import Any

from weft.cli.groups import ABSENT, changed
from weft.cli.loading import Load
from weft.errors import ContextError
from weft.llm.planning.options import LLM_OPTIONS
from weft.options import MODEL, Option, option

DEFAULT_CHUNK = 512
"""Number of tokens of a chunk of a text that is measured."""

TEXT_OPTIONS: dict[str, Option] = LLM_OPTIONS | {
    "escape": option(
        None, r"\\n in texts of the command line is a line break, ...; with -e in files, too.",
        "--escape/--no-escape -e", show_default=False,
    ),
    "parse_special": option(
        True, "Read names of control tokens in the text as these tokens, which is the default.",
        "--parse-special/--no-parse-special", show_default=False,
    ),
    "special": option(
        False, "Write control tokens that the model draws, too.", "--special -sp"
    ),
    "image": option(None, "An image in front of the text; repeatable.", metavar="FILE"),
    "audio": option(None, "A sound in front of the text; repeatable.", metavar="FILE"),
    "ignore_eos": option(False, "Go on after the model's end token."),
    "system_file": option(
        None, "", "--system-prompt-file -sysf", metavar="FILE", hidden=True
    ),
}  # fmt: skip


def context_option(about: str, panel: str = MODEL) -> Any:
    """The option -c; `about` says what it counts, and its default."""
    return changed(LLM_OPTIONS["n_ctx"], help=about, panel=panel)


class ChunkLoad(Load):
    """The options for a model that reads a text in chunks."""

    tuned = ABSENT
    n_ctx: int | None = context_option(
        f"Tokens of a chunk; 0: as many as the model was trained for. Default: {DEFAULT_CHUNK}."
    )


def most_tokens(n_predict: int) -> int | None:
    """The value of -n as `max_tokens`; raises ContextError for a value without a meaning."""
    if n_predict < -2:
        raise ContextError(
            f"-n is {n_predict}; it must be 0 or more, -1 (no limit) or -2 (until the context "
            "is full)"
        )
    return None if n_predict < 0 else n_predict
