"""`weft imatrix` measures how much each column of a model's weights counts, for `weft quantize`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from weft.cli.command import usage_error
from weft.cli.console import CountProgress, LoadProgress, note, say
from weft.cli.groups import Group
from weft.cli.imatrix_table import statistics_lines
from weft.cli.loading import loads_model, open_with
from weft.cli.model_file import ModelFile
from weft.cli.options import DEFAULT_CHUNK, ChunkLoad
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
    imatrix_statistics,
    merged,
)
from weft.llm.quality.kl import n_outputs_for
from weft.options import option

DEFAULT_OUT = Path("imatrix.gguf")


class ImatrixFlags(Group):
    """The options of `weft imatrix` that are in no group."""

    file: Path | None = option(None, "The text; -: stdin.", "--file -f", show_default=False)
    output: Path = option(DEFAULT_OUT, "To write.", "--output --output-file -o", metavar="FILE")
    output_format: Literal["gguf", "dat"] | None = option(
        None, "dat: the older format.", show_default="gguf"
    )
    in_files: list[Path] | None = option(
        None, "Add what this file has; repeatable. Without a text, files are merged.", "--in-file",
        metavar="FILE", show_default=False,
    )  # fmt: skip
    n_chunks: int | None = option(None, "At most so many chunks.", "--chunks")
    from_chunk: int = option(0, "Leave out N chunks first.", "--from-chunk --chunk", metavar="N")
    output_every: int = option(
        10, "Write the file after N chunks each.", "--output-frequency -ofreq", metavar="N"
    )
    save_every: int = option(
        0, "Keep a copy FILE.at_N after N chunks each.", "--save-frequency", metavar="N"
    )
    process_output: bool = option(False, "Measure output.weight, too.")
    ppl: bool = option(True, "Say how well the model predicts the text.", "--ppl/--no-ppl")
    parse_special: bool = option(False, "Read special tokens in the text.")
    show_statistics: bool = option(False, "Show what --in-file FILE has, and end.")
    as_json: bool = option(False, "Print the result as JSON.", "--json")


@loads_model
def imatrix(
    *, model: ModelFile | None = None, own: ImatrixFlags, load: Annotated[dict[str, Any], ChunkLoad]
) -> None:
    """Measure how much each column of a model's weights counts: the sums of squares of what the
    weights are multiplied with, over a text in chunks of -c tokens. `weft quantize --imatrix FILE`
    uses it. A run that was interrupted goes on where it last wrote the file."""
    given = [path for text in own.in_files or () for path in _paths(text)]
    if own.show_statistics:
        _show(given, own.as_json)
        return
    legacy = own.output_format == "dat"
    if own.output_format is None and own.output.suffix != ".gguf":
        note(f"{own.output} will be GGUF; --output-format dat writes the older format")
    if own.file is None:
        if not given:
            raise usage_error("give a text with -f FILE, or files to merge with --in-file FILE")
        _merge(given, own.output, load["n_ctx"], legacy=legacy)
        return
    if model is None:
        raise usage_error("MODEL is missing: which model is to be measured on the text?")
    text = read_text(None, own.file)
    loaded = open_with(model, load)
    tokenizer = Tokenizer.from_gguf(loaded.file)
    ids = tokenizer.encode(text, parse_special=own.parse_special)
    options = ImatrixOptions(
        n_ctx=DEFAULT_CHUNK if load["n_ctx"] is None else load["n_ctx"],
        n_chunks=None if own.n_chunks == -1 else own.n_chunks,
        from_chunk=own.from_chunk,
        output=own.process_output,
        ppl=own.ppl,
        legacy=legacy,
        output_every=own.output_every,
        save_every=own.save_every,
    )
    bos = tokenizer.vocab.bos if tokenizer.vocab.add_bos else None
    run = ImatrixRun(
        loaded, ids, own.output, options, bos=bos, text_name=str(own.file), in_files=given
    )
    say(f"{model.name}: {len(ids)} tokens, {run.n_all} chunks of {options.n_ctx}")
    if run.n_done:
        say(f"{own.output} is of this run and unfinished: {run.n_done} chunks are done already")
    last = _run(run.measure(_context(loaded, load, run)), quiet=own.as_json)
    _sum_up(own.output, last, as_json=own.as_json)


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
    size = n_ctx or (sizes.pop() if len(sizes) == 1 else DEFAULT_CHUNK)
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
