"""`weft embed` prints embeddings of texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from weft.cli.command import usage_error
from weft.cli.console import CountProgress, LoadProgress, say
from weft.cli.groups import Group
from weft.cli.loading import Untuned, loads_model, open_with
from weft.cli.model_file import ModelFile
from weft.cli.text_input import read_text
from weft.errors import ContextError
from weft.llm import Context, Model, Tokenizer
from weft.llm.compute.embed import embed_texts, sequences_for, unit_rows
from weft.llm.config import Pooling
from weft.llm.opening import DEFAULT_N_CTX
from weft.options import option

_MOST_COSINES = 16
"""Maximum number of texts for which a table of cosines is printed."""


class EmbedOutput(StrEnum):
    """The formats in which vectors are printed."""

    text = "text"
    json = "json"
    array = "array"
    raw = "raw"


class EmbedFlags(Group):
    """The options of `weft embed` that are in no group."""

    prompts: list[str] | None = option(
        None, "A text, as without a flag; repeatable.", "--prompt -p"
    )
    file: Path | None = option(None, "Texts, one a line.", "--file -f")
    pooling: Pooling | None = option(None, "Default: the model's, the mean where it has none.")
    truncate: bool = option(False, "Read the beginning of texts that are too long.")
    normalize: bool = option(True, "Scale to length 1.", "--normalize/--no-normalize")
    embd_normalize: int | None = option(None, "2: to length 1; -1: not.", hidden=True)
    output: EmbedOutput = option(
        EmbedOutput.text,
        "text: a few numbers and the cosines; json: as the OpenAI API does; array: a list of "
        "lists; raw: numbers only, a vector a line.", "--output -o --embd-output-format",
    )  # fmt: skip


@loads_model
def embed(
    *,
    model: ModelFile,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]", help="Without: lines of stdin.")
    ] = None,
    own: EmbedFlags,
    load: Annotated[dict[str, Any], Untuned],
) -> None:
    """Print embeddings of texts. For several texts also prints the cosines between them."""
    if own.embd_normalize not in (None, 2, -1):
        raise usage_error(
            f"--embd-normalize {own.embd_normalize}: weft has 2 (length 1) and -1 (none)"
        )
    texts = [*(texts or ()), *(own.prompts or ())]
    if texts and own.file is not None:
        raise ContextError("give texts or --file, not both")
    lines = texts or [line for line in read_text(None, own.file).splitlines() if line.strip()]
    if not lines:
        raise ContextError("there is no text; give some as arguments, with --file or on stdin")
    loaded = open_with(model, load)
    tokenizer = Tokenizer.from_gguf(loaded.file)
    tokens = [tokenizer.encode(text, parse_special=True) for text in lines]
    if own.truncate:
        most, end = load["n_ctx"] or loaded.config.n_ctx_train, tokenizer.vocab.suffix
        tokens = [ids if len(ids) <= most else [*ids[: most - len(end)], *end] for ids in tokens]
    context = context_for(loaded, load, [len(ids) for ids in tokens], ", or give --truncate")
    chosen = own.pooling
    if chosen is None and loaded.config.pooling == "none":
        chosen = "mean"
    scores = "rank" in (chosen, chosen is None and loaded.config.pooling)
    with CountProgress("embedding texts") as progress:
        parts = [np.atleast_2d(r) for r in embed_texts(context, tokens, chosen, progress)]
    counts = [len(part) for part in parts]
    rows = np.concatenate(parts)
    if own.normalize and own.embd_normalize != -1 and not scores:
        rows = unit_rows(rows)
    _print(rows, own.output, sum(len(ids) for ids in tokens), model.name)
    if own.output is EmbedOutput.text and len(lines) > 1 and max(counts) == 1 and not scores:
        if len(lines) > _MOST_COSINES:
            say(f"cosines are printed for {_MOST_COSINES} texts at most; -o json has the vectors")
            return
        _print_cosines(rows)


def context_for(
    model: Model, load: dict[str, Any], lengths: Sequence[int], hint: str = ""
) -> Context:
    """A context that computes texts of these numbers of tokens, as many together as pays. Raises
    ContextError, whose text ends with `hint`, for a text that is too long."""
    longest = max(lengths)
    if load["plan"] is None:  # a plan file has the number of sequences
        load["n_seq_max"] = sequences_for(model.config, len(lengths))
    if load["plan"] is None and load["n_ctx"] is None:
        load["n_ctx"] = min(model.config.n_ctx_train, max(longest, DEFAULT_N_CTX))
    if load["n_ubatch"] is None and not model.config.causal:
        load["n_ubatch"] = load["n_ctx"]  # every token sees all others
    with LoadProgress() as progress:
        context = Context(model, embeddings=True, progress=progress, **load)
    if longest > context.n_ctx:
        trained = model.config.n_ctx_train
        longer = f" or make -c larger (the model was trained for {trained})"
        more = longer if context.n_ctx < trained else ", which is what the model was trained for"
        how = f"; shorten it{more}" if context.n_ctx < trained else f"{more}; shorten it"
        raise ContextError(
            f"a text has {longest} tokens, but the context holds {context.n_ctx}{how}{hint}"
        )
    return context


def _print(rows: NDArray[np.float32], output: EmbedOutput, n_tokens: int, name: str) -> None:
    if output is EmbedOutput.raw:
        for row in rows:
            sys.stdout.write(" ".join(f"{x:.7g}" for x in row) + "\n")
    elif output is EmbedOutput.array:
        print(json.dumps(rows.tolist()))
    elif output is EmbedOutput.json:
        data = [
            {"object": "embedding", "index": i, "embedding": row.tolist()}
            for i, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        print(json.dumps({"object": "list", "model": name, "data": data, "usage": usage}))
    else:
        for i, row in enumerate(rows):
            numbers = [f"{x:9.6f}" for x in row]
            few = [*numbers[:3], "...", *numbers[-3:]] if len(numbers) > 8 else numbers
            print(f"{i:>4}  [{len(row)}]  {' '.join(few)}")


def _print_cosines(rows: NDArray[np.float32]) -> None:
    unit = unit_rows(rows)
    print("\ncosines")
    print("      " + "".join(f"{i:>8}" for i in range(len(rows))))
    for i, row in enumerate(unit @ unit.T):
        print(f"{i:>4}  " + "".join(f"{x:8.4f}" for x in row))
