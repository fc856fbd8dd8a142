"""The options that say how tokens are drafted, as llama.cpp and vLLM spell them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from weft.cli.command import MODEL, usage_error
from weft.llm.drafting.options import MOST, DraftOptions

__all__ = ["DraftMax", "DraftMin", "SpecConfig", "SpecType", "draft_options"]

_LOOKED_UP = ("ngram", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""All names of drafts that are looked up in the text; weft has one kind."""
_NO_MODEL = "there is no second model that drafts; ngram looks tokens up in the text"

SpecType = Annotated[
    str,
    typer.Option(
        "--spec-type", metavar="ngram|none", rich_help_panel=MODEL,
        help="Guess tokens from what the text repeats and check several at once; the text is the "
        "same.",
    ),
]  # fmt: skip
DraftMax = Annotated[
    int,
    typer.Option(
        "--draft-max", "--draft", "--draft-n", "--spec-draft-n-max", rich_help_panel=MODEL,
        help="Most tokens that are guessed at once; 0: none.",
    ),
]  # fmt: skip
DraftMin = Annotated[
    int,
    typer.Option(
        "--draft-min", "--draft-n-min", "--spec-draft-n-min", rich_help_panel=MODEL,
        help="Fewer tokens are not guessed.",
    ),
]  # fmt: skip
SpecConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config", metavar="JSON", hidden=True,
        help="As vLLM has it: method and num_speculative_tokens.",
    ),
]  # fmt: skip


def draft_options(
    kinds: str = "ngram", most: int = MOST, least: int = 0, config: str | None = None
) -> DraftOptions | None:
    """How tokens are drafted; None: not at all. `config` is JSON of vLLM, whose method and number
    come first."""
    if config is not None:
        kinds, most = _from_json(config, kinds, most)
    names = [name.strip() for name in kinds.split(",") if name.strip() != "none"]
    for name in names:
        if name not in _LOOKED_UP:
            what = _NO_MODEL if name.startswith("draft") else "it is ngram or none"
            raise usage_error(f"--spec-type {name}: {what}")
    return DraftOptions(most=min(most, MOST), least=least) if names and most else None


def _from_json(text: str, kinds: str, most: int) -> tuple[str, int]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise usage_error(f"--speculative-config: {error}") from None
    if not isinstance(config, dict):
        raise usage_error('--speculative-config is an object, e.g. \'{"method": "ngram"}\'')
    if config.get("model") not in (None, "ngram", "[ngram]"):
        raise usage_error(f"--speculative-config model: {_NO_MODEL}")
    method, n = config.get("method", kinds), config.get("num_speculative_tokens", most)
    if not isinstance(method, str) or not isinstance(n, int):
        raise usage_error(
            "--speculative-config: method is a text and num_speculative_tokens a number"
        )
    return method, n
