"""`weft perplexity`: how well a model predicts a text, by llama.cpp's method."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from weft.cli.console import LoadProgress, errors
from weft.cli.loading import loads_model
from weft.cli.options import ModelFile
from weft.cli.text_input import read_text
from weft.llm import Context, Model, Tokenizer
from weft.llm.perplexity import Perplexity, score_chunks

__all__ = ["perplexity"]

DEFAULT_N_CTX = 512


@loads_model
def perplexity(
    model: ModelFile,
    load: dict[str, Any],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The text; default, and with -: stdin.")
    ] = None,
    chunks: Annotated[int | None, typer.Option(help="At most so many chunks.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the final estimate as JSON.")
    ] = False,
) -> None:
    """Score a text in chunks of -c tokens (default 512), the second half of each; the estimate so
    far is printed after each chunk, with one standard error at the end."""
    text = read_text(None, file)
    if load["plan"] is None and load["n_ctx"] is None:
        load["n_ctx"] = DEFAULT_N_CTX
    loaded = Model.open(model)
    tokenizer = Tokenizer.from_gguf(loaded.file)
    ids = tokenizer.encode(text)
    with LoadProgress() as progress:
        context = Context(loaded, progress=progress, **load)
    vocab = tokenizer.vocab
    bos = vocab.bos if vocab.add_bos else None
    estimates = score_chunks(context, ids, context.n_ctx, bos=bos, n_chunks=chunks)
    n_chunks = min(len(ids) // context.n_ctx, chunks or len(ids))
    errors.print(
        f"{model.name}: {len(ids)} tokens, {n_chunks} chunks of {context.n_ctx}",
        markup=False,
        soft_wrap=True,
    )
    start = perf_counter()
    last = None
    for last in estimates:
        if last.n_chunks == 1 and n_chunks > 1:
            seconds = (perf_counter() - start) * n_chunks
            errors.print(f"about {_duration(seconds)} for all", markup=False)
        if not as_json:
            sys.stdout.write(f"[{last.n_chunks}]{last.value:.4f},")
            sys.stdout.flush()
    assert last is not None
    if as_json:
        print(json.dumps(_row(model, context.n_ctx, last), indent=1))
    else:
        print(f"\nFinal estimate: PPL = {last.value:.4f} +/- {last.error:.5f}")


def _row(model: Path, n_ctx: int, found: Perplexity) -> dict[str, Any]:
    return {
        "model": model.name,
        "n_ctx": n_ctx,
        "n_chunks": found.n_chunks,
        "n_scored": found.n_scored,
        "ppl": found.value,
        "ppl_error": found.error,
        "nll": found.nll,
    }


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
