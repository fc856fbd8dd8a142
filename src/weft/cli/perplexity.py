"""`weft perplexity` measures how well a model predicts a text, by llama.cpp's method."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np

from weft.cli.command import usage_error
from weft.cli.console import CountProgress, LoadProgress, note, say, size_text
from weft.cli.groups import Group
from weft.cli.kl_lines import CHUNK_HEAD, chunk_line, kl_lines
from weft.cli.loading import loads_model, open_with
from weft.cli.model_file import ModelFile
from weft.cli.options import DEFAULT_CHUNK, ChunkLoad
from weft.cli.task_scores import Kind, score_tasks
from weft.cli.text_input import read_text
from weft.errors import ContextError
from weft.llm import Context, Model, Tokenizer
from weft.llm.compute.perplexity import (
    Perplexity,
    chunks_at_once,
    n_windows,
    score_chunks,
    score_strided,
)
from weft.llm.planning.options import DEFAULT_N_UBATCH
from weft.llm.quality.divergence import KLDivergence
from weft.llm.quality.kl import compare_with_file, n_outputs_for, save_logits
from weft.llm.quality.logits_file import LogitsFile, file_bytes
from weft.options import option


class PerplexityFlags(Group):
    """The options of `weft perplexity` that are in no group."""

    file: Path | None = option(
        None, "The text, or the tasks; default, and with -: stdin.", "--file -f --binary-file -bf"
    )
    n_chunks: int | None = option(None, "At most so many chunks.", "--chunks")
    kl_base: Path | None = option(
        None, "Save the probabilities of all tokens here; with --kl: those to compare with.",
        "--kl-base --kl-divergence-base --save-all-logits", metavar="FILE", show_default=False,
    )  # fmt: skip
    kl: bool = option(
        False, "Compare the model with the one whose probabilities are in --kl-base FILE.",
        "--kl --kl-divergence",
    )  # fmt: skip
    ppl_stride: int = option(
        0, "Windows of -c + N/2 tokens that move by N tokens; 0: chunks side by side.", metavar="N"
    )
    hellaswag: bool = option(False, "Score HellaSwag tasks of -f FILE.")
    hellaswag_tasks: int = option(400, "So many of them; 0: all.", metavar="N")
    winogrande: bool = option(False, "Score Winogrande tasks of -f FILE.")
    winogrande_tasks: int = option(0, "So many of them; 0: all.", metavar="N")
    multiple_choice: bool = option(False, "Score multiple-choice tasks of -f FILE.")
    multiple_choice_tasks: int = option(0, "So many of them; 0: all.", metavar="N")
    as_json: bool = option(False, "Print the final estimate as JSON.", "--json")


@loads_model
def perplexity(
    model: ModelFile, own: PerplexityFlags, load: Annotated[dict[str, Any], ChunkLoad]
) -> None:
    """Say how well a model predicts a text. It is cut into chunks of -c tokens (default 512), and
    the second half of each is scored; the estimate so far is printed after each chunk, with one
    standard error at the end."""
    chunks = _limit(own.n_chunks)
    asked: dict[Kind, tuple[bool, int]] = {
        "hellaswag": (own.hellaswag, own.hellaswag_tasks),
        "winogrande": (own.winogrande, own.winogrande_tasks),
        "multiple-choice": (own.multiple_choice, own.multiple_choice_tasks),
    }
    kinds = [kind for kind, (wanted, _) in asked.items() if wanted]
    if len(kinds) + own.kl + bool(own.ppl_stride) > 1:
        raise usage_error(
            "give one of --kl, --ppl-stride, --hellaswag, --winogrande and --multiple-choice"
        )
    if kinds:
        score_tasks(kinds[0], model, load, own.file, asked[kinds[0]][1], as_json=own.as_json)
        return
    if own.kl:
        if own.kl_base is None:
            raise usage_error("--kl compares with a file of another run: --kl-base FILE")
        _compare(model, load, own.file, chunks, own.kl_base, own.as_json)
        return
    text = read_text(None, own.file)
    loaded = open_with(model, load)
    tokenizer = Tokenizer.from_gguf(loaded.file)
    ids = tokenizer.encode(text)
    if own.ppl_stride and load["n_ctx"] != 0:
        load["n_ctx"] = (load["n_ctx"] or DEFAULT_CHUNK) + own.ppl_stride // 2
    n_ctx, context = _context(loaded, load, len(ids), chunks)
    bos = _bos(tokenizer)
    whole = n_windows(len(ids), n_ctx, own.ppl_stride) if own.ppl_stride > 0 else len(ids) // n_ctx
    n_chunks = min(whole, chunks or len(ids))
    at_once = min(n_chunks, context.cache.n_seq_max)
    if own.ppl_stride:
        estimates = score_strided(context, ids, n_ctx, own.ppl_stride, n_chunks=chunks)
    elif own.kl_base is None:
        estimates = score_chunks(context, ids, n_ctx, bos=bos, n_chunks=chunks)
    else:
        size = file_bytes(n_ctx, loaded.config.n_vocab, n_chunks)
        say(f"{own.kl_base} will have {size_text(size)}")
        estimates = save_logits(context, ids, own.kl_base, n_ctx, bos=bos, n_chunks=chunks)
    together = f", {at_once} at a time" if at_once > 1 else ""
    say(f"{model.name}: {len(ids)} tokens, {n_chunks} chunks of {n_ctx}{together}")
    _note_length(loaded, n_ctx)
    last = _estimated(estimates, n_chunks, at_once, quiet=own.as_json)
    if own.as_json:
        print(json.dumps(_row(model, n_ctx, last), indent=1))
    else:
        print(f"Final estimate: PPL = {last.value:.4f} +/- {last.error:.5f}")


def _limit(chunks: int | None) -> int | None:
    """The maximum number of chunks; None for -1, which llama-perplexity takes as unlimited."""
    if chunks is not None and chunks < 1 and chunks != -1:
        raise ContextError(f"--chunks is {chunks}; it must be 1 or more")
    return None if chunks == -1 else chunks


def _bos(tokenizer: Tokenizer) -> int | None:
    return tokenizer.vocab.bos if tokenizer.vocab.add_bos else None


def _note_length(model: Model, n_ctx: int) -> None:
    if n_ctx > model.config.n_ctx_train:
        say(
            f"note: {model.config.arch} was trained for {model.config.n_ctx_train} tokens; -c "
            "makes chunks shorter"
        )


def _compare(
    model: Path,
    load: dict[str, Any],
    text: Path | None,
    chunks: int | None,
    kl_base: Path,
    as_json: bool,
) -> None:
    """Prints how far the model is from the one whose probabilities are in `kl_base`."""
    with LogitsFile(kl_base) as base:
        loaded = open_with(model, load)
        base.require_vocab(loaded.config.n_vocab, model.name)
        tokenizer = Tokenizer.from_gguf(loaded.file)
        if text is not None:
            base.require_text(np.array(tokenizer.encode(read_text(None, text))), str(text))
        if load["n_ctx"] not in (None, base.n_ctx):
            note(f"-c {load['n_ctx']} changes nothing: {kl_base} has chunks of {base.n_ctx} tokens")
        n_chunks = min(base.n_chunks, chunks or base.n_chunks)
        load["n_ctx"] = base.n_ctx
        _, context = _context(loaded, load, n_chunks * base.n_ctx, None)
        say(f"{model.name} against {kl_base}: {n_chunks} chunks of {base.n_ctx} tokens")
        figures = compare_with_file(context, base, bos=_bos(tokenizer), n_chunks=n_chunks)
        last = _shown(figures, n_chunks, quiet=as_json)
        if as_json:
            row = {"model": model.name, "kl_base": str(kl_base), "n_ctx": base.n_ctx,
                   "n_chunks": n_chunks, **last.as_dict()}  # fmt: skip
            print(json.dumps(row, indent=1))
        else:
            print("", *kl_lines(last), sep="\n")


def _shown(figures: Iterator[KLDivergence], n_chunks: int, quiet: bool) -> KLDivergence:
    """The last figures; those so far are printed as they come."""
    last, listed = None, not quiet and sys.stdout.isatty()
    with CountProgress("scoring chunks") as bar:
        for i, last in enumerate(figures, 1):
            if not quiet:
                print(*([CHUNK_HEAD] if i == 1 else []), chunk_line(i, last), sep="\n", flush=True)
            if not listed:
                bar(i, n_chunks)
    assert last is not None
    return last


def _context(
    model: Model, load: dict[str, Any], n_tokens: int, chunks: int | None
) -> tuple[int, Context]:
    """The number of tokens of a chunk, and a context for as many chunks at once as pays."""
    n_ctx = load["n_ctx"]
    if load["plan"] is None:  # a plan file has the sizes
        n_ctx = DEFAULT_CHUNK if n_ctx is None else n_ctx
        size = max(n_ctx, 1)
        n_chunks = n_tokens // size if chunks is None else min(chunks, n_tokens // size)
        n_ubatch = DEFAULT_N_UBATCH if load["n_ubatch"] is None else load["n_ubatch"]
        load["n_seq_max"] = chunks_at_once(model.config, size, n_ubatch, n_chunks)
        load["n_ctx"] = n_ctx * load["n_seq_max"]
        if model.config.causal:
            load["n_outputs"] = n_outputs_for(model.config.n_vocab, n_ubatch)
    with LoadProgress() as progress:
        context = Context(model, progress=progress, **load)
    return (context.n_ctx_seq if n_ctx is None else n_ctx), context


def _estimated(
    estimates: Iterator[Perplexity], n_chunks: int, at_once: int, quiet: bool
) -> Perplexity:
    """The last estimate. Estimates are printed as they come, with the time that all will take; a
    bar shows the progress if they are not on the screen."""
    start = perf_counter()
    last = None
    listed = not quiet and sys.stdout.isatty()
    with CountProgress("scoring chunks") as bar:
        for last in estimates:
            if last.n_chunks == 1 and n_chunks > at_once:
                seconds = (perf_counter() - start) * n_chunks / at_once
                if seconds >= 1:
                    say(f"about {_duration(seconds)} for all")
            if not quiet:
                sys.stdout.write(f"[{last.n_chunks}]{last.value:.4f},")
                sys.stdout.flush()
            if not listed:
                bar(last.n_chunks, n_chunks)
    assert last is not None
    if not quiet:
        print()
    return last


def _row(model: Path, n_ctx: int, estimate: Perplexity) -> dict[str, Any]:
    return {
        "model": model.name,
        "n_ctx": n_ctx,
        "n_chunks": estimate.n_chunks,
        "n_scored": estimate.n_scored,
        "ppl": estimate.value,
        "ppl_error": estimate.error,
        "nll": estimate.nll,
    }


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
