"""`weft imatrix` measures how much each column of a model's weights counts, for `weft quantize`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from weft.cli.command import usage_error
from weft.cli.console import CountProgress, LoadProgress, note, say
from weft.cli.imatrix_table import statistics_lines
from weft.cli.loading import loads_model_with, open_with
from weft.cli.model_file import ModelFile
from weft.cli.options import context_option
from weft.cli.text_input import read_text
from weft.frontends.gguf.imatrix_file import read_imatrix, write_imatrix
from weft.llm import Context, Model, Tokenizer
from weft.llm.compute.perplexity import chunks_at_once
from weft.llm.planning.options import DEFAULT_N_UBATCH
from weft.llm.quality.imatrix import (
    ImatrixOptions,
    ImatrixProgress,
    ImatrixRun,
    as_imatrix,
    merged,
)
from weft.llm.quality.imatrix_statistics import imatrix_statistics
from weft.llm.quality.kl import n_outputs_for

__all__ = ["imatrix"]

DEFAULT_N_CTX = 512
DEFAULT_OUT = Path("imatrix.gguf")

Chunk = Annotated[
    int | None,
    context_option(
        f"Tokens of a chunk; 0: as many as the model was trained for. Default: {DEFAULT_N_CTX}."
    ),
]


@loads_model_with(instead={"ctx_size": Chunk}, without=("tuned",))
def imatrix(
    load: dict[str, Any],
    model: ModelFile | None = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The text; -: stdin.", show_default=False)
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "--output-file", "-o", metavar="FILE", help="To write.")
    ] = DEFAULT_OUT,
    output_format: Annotated[
        Literal["gguf", "dat"] | None,
        typer.Option("--output-format", help="dat: the older format.", show_default="gguf"),
    ] = None,
    in_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--in-file", metavar="FILE", show_default=False,
            help="Add what this file has; repeatable. Without a text, files are merged.",
        ),
    ] = None,
    chunks: Annotated[int | None, typer.Option(help="At most so many chunks.")] = None,
    from_chunk: Annotated[
        int, typer.Option("--from-chunk", "--chunk", metavar="N", help="Leave out N chunks first.")
    ] = 0,
    output_frequency: Annotated[
        int,
        typer.Option(
            "--output-frequency", "-ofreq", metavar="N", help="Write the file after N chunks each."
        ),
    ] = 10,
    save_frequency: Annotated[
        int,
        typer.Option(
            "--save-frequency", metavar="N", help="Keep a copy FILE.at_N after N chunks each."
        ),
    ] = 0,
    process_output: Annotated[
        bool, typer.Option("--process-output", help="Measure output.weight, too.")
    ] = False,
    ppl: Annotated[
        bool, typer.Option("--ppl/--no-ppl", help="Say how well the model predicts the text.")
    ] = True,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Read special tokens in the text.")
    ] = False,
    show_statistics: Annotated[
        bool, typer.Option("--show-statistics", help="Show what --in-file FILE has, and end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:  # fmt: skip
    """Measure how much each column of a model's weights counts: the sums of squares of what the
    weights are multiplied with, over a text in chunks of -c tokens. `weft quantize --imatrix FILE`
    uses it. A run that was interrupted goes on where it last wrote the file."""
    given = [path for text in in_files or () for path in _paths(text)]
    if show_statistics:
        _show(given, as_json)
        return
    legacy = output_format == "dat"
    if output_format is None and output.suffix != ".gguf":
        note(f"{output} will be GGUF; --output-format dat writes the older format")
    if file is None:
        if not given:
            raise usage_error("give a text with -f FILE, or files to merge with --in-file FILE")
        _merge(given, output, load["n_ctx"], legacy=legacy)
        return
    if model is None:
        raise usage_error("MODEL is missing: which model is to be measured on the text?")
    text = read_text(None, file)
    loaded = open_with(model, load)
    tokenizer = Tokenizer.from_gguf(loaded.file)
    ids = tokenizer.encode(text, parse_special=parse_special)
    options = ImatrixOptions(
        n_ctx=DEFAULT_N_CTX if load["n_ctx"] is None else load["n_ctx"],
        n_chunks=None if chunks == -1 else chunks,
        from_chunk=from_chunk,
        output=process_output,
        ppl=ppl,
        legacy=legacy,
        output_every=output_frequency,
        save_every=save_frequency,
    )
    bos = tokenizer.vocab.bos if tokenizer.vocab.add_bos else None
    run = ImatrixRun(loaded, ids, output, options, bos=bos, text_name=str(file), in_files=given)
    say(f"{model.name}: {len(ids)} tokens, {run.n_all} chunks of {options.n_ctx}")
    if run.n_done:
        say(f"{output} is of this run and unfinished: {run.n_done} chunks are done already")
    last = _run(run.measure(_context(loaded, load, run)), quiet=as_json)
    _sum_up(output, last, as_json=as_json)


def _paths(path: Path) -> list[Path]:
    """The files of `a.gguf,b.gguf`; a file that exists may have a comma in its name."""
    return [path] if path.exists() else [Path(name) for name in str(path).split(",")]


def _context(model: Model, load: dict[str, Any], run: ImatrixRun) -> Context:
    size = run.options.n_ctx
    if load["plan"] is None:
        n_ubatch = DEFAULT_N_UBATCH if load["n_ubatch"] is None else load["n_ubatch"]
        load["n_seq_max"] = chunks_at_once(model.config, size, n_ubatch, run.n_all - run.n_done)
        load["n_ctx"] = size * load["n_seq_max"]
        if model.config.causal:
            load["n_outputs"] = n_outputs_for(model.config.n_vocab, n_ubatch)
    with LoadProgress() as progress:
        return Context(model, progress=progress, states=model.writes, **load)


def _run(steps: Iterator[ImatrixProgress], quiet: bool) -> ImatrixProgress:
    listed = not quiet and sys.stdout.isatty()
    last = None
    with CountProgress("measuring chunks") as bar:
        for last in steps:
            if not quiet and last.ppl is not None:
                sys.stdout.write(f"[{last.n_chunks}]{last.ppl.value:.4f},")
                sys.stdout.flush()
            if not listed or last.ppl is None:
                bar(last.n_chunks, last.n_all)
    assert last is not None
    if not quiet and last.ppl is not None:
        print()
        print(f"Final estimate: PPL = {last.ppl.value:.4f} +/- {last.ppl.error:.5f}")
    return last


def _sum_up(output: Path, last: ImatrixProgress, *, as_json: bool) -> None:
    written = read_imatrix(output)
    missing = {
        name: int((entry.counts == 0).sum())
        for name, entry in written.entries.items()
        if (entry.counts == 0).any()
    }
    for name, n in missing.items():
        say(f"note: {n} of {written.entries[name].counts.size} experts of {name} saw no token")
    say(f"{output}: {len(written.entries)} tensors, {written.chunk_count} chunks")
    if as_json:
        row: dict[str, Any] = {"file": str(output), "n_tensors": len(written.entries),
                               "n_chunks": last.n_chunks, "experts_unseen": missing}  # fmt: skip
        if last.ppl is not None:
            row |= {"ppl": last.ppl.value, "ppl_error": last.ppl.error}
        print(json.dumps(row, indent=1))


def _merge(files: list[Path], output: Path, n_ctx: int | None, *, legacy: bool) -> None:
    """Writes the sums of `files` together."""
    read = [read_imatrix(path) for path in files]
    sizes = {matrix.chunk_size for matrix in read} - {0}
    size = n_ctx or (sizes.pop() if len(sizes) == 1 else DEFAULT_N_CTX)
    datasets = [name for matrix in read for name in matrix.datasets]
    result = as_imatrix(merged(read, size), datasets, size)
    write_imatrix(output, result, legacy=legacy)
    say(f"{output}: {len(result.entries)} tensors of {len(files)} files, "
        f"{result.chunk_count} chunks of {size}")  # fmt: skip


def _show(files: list[Path], as_json: bool) -> None:
    if len(files) != 1:
        raise usage_error("--show-statistics shows one file: --in-file FILE")
    rows = imatrix_statistics(read_imatrix(files[0]))
    if as_json:
        print(json.dumps([row.as_dict() for row in rows], indent=1))
    else:
        print(*statistics_lines(rows), sep="\n")
