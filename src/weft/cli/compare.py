"""`weft compare`: models side by side, or a model with different types of its cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from rich.table import Table

from weft.cli.bench_tests import BenchTest, Runner
from weft.cli.command import usage_error
from weft.cli.console import StatusLine, say, size_text, wide
from weft.cli.groups import ABSENT, Group
from weft.cli.loading import Load, context_arguments, loads_model, open_with
from weft.cli.model_file import ModelFiles
from weft.cli.options import context_option
from weft.cli.text_input import read_text
from weft.free_memory import available_bytes
from weft.llm import Context, Model, Tokenizer
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.fitting.baseline import Text, beginning, text_of
from weft.llm.fitting.compared import (
    Compared,
    compare_caches,
    compare_models,
    require_same_vocabulary,
)
from weft.llm.fitting.measured import cache_pairs
from weft.llm.opening import DEFAULT_N_CTX
from weft.options import option, parse_tokens

_CHUNK = 512
_CHUNKS = 16


class CompareFlags(Group):
    """The options of `weft compare` that are in no group."""

    file: Path | None = option(None, "The text; default, and with -: stdin.", "--file -f")
    chunks: int = option(_CHUNKS, "At most so many chunks; 0: the whole text.")
    n_prompt: int = option(
        512, "Tokens of a timed prompt; 0: no timing.", "--n-prompt -p", metavar="N"
    )
    n_gen: int = option(64, "Tokens of a timed text; 0: no timing.", "--n-gen -n", metavar="N")
    repetitions: int = option(3, "Timed runs of each, whose median counts.", "--repetitions -r")
    memory_ctx: int | None = option(
        None, "The context whose memory is planned. Default: as trained, at most 4096.",
        metavar="TOKENS", read=parse_tokens,
    )  # fmt: skip
    cache_types: bool = option(
        False, "Compare the types that keys and values of one model can be cached in."
    )
    as_json: bool = option(False, "Print JSON.", "--json")


class CompareLoad(Load):
    """The options of `weft compare` for its models."""

    n_ctx: int | None = context_option(
        f"Tokens of a chunk of the text. Default: {_CHUNK}, or what was trained for."
    )
    tuned = plan = type_k = type_v = fallback = ABSENT


@loads_model
def compare(
    models: ModelFiles, own: CompareFlags, load: Annotated[dict[str, Any], CompareLoad]
) -> None:
    """Compare models on a text: size, perplexity, KL divergence, speed and memory. The
    divergence is that from the first model. The text is cut into chunks, and the second half of
    each is scored, as `weft perplexity` does."""
    for flag, n in (("--chunks", own.chunks), ("-p", own.n_prompt), ("-n", own.n_gen)):
        if n < 0:
            raise usage_error(f"{flag} is {n}; it must be 0 or more")
    if own.repetitions < 1:
        raise usage_error(f"-r is {own.repetitions}; it must be 1 or more")
    if own.cache_types and len(models) != 1:
        raise usage_error(f"--cache-types is of one model; {len(models)} are given")
    if not own.cache_types and len(models) < 2:
        raise usage_error("name at least two models, or one with --cache-types")
    text = read_text(None, own.file)
    loaded = [open_with(path, dict(load)) for path in models]
    for other in loaded[1:]:
        require_same_vocabulary(loaded[0], other)
    chunk, n_ctx = load["n_ctx"], own.memory_ctx
    options = {k: v for k, v in context_arguments(load).items() if v is not None and k != "n_ctx"}
    trained = min(model.config.n_ctx_train for model in loaded)
    n_ctx = min(trained, DEFAULT_N_CTX) if n_ctx is None else n_ctx or trained
    cut = _cut(
        loaded[0], text, min(_CHUNK, trained) if chunk is None else chunk, own.chunks or None
    )
    if own.cache_types:
        _caches(loaded[0], cut, n_ctx, options, own.as_json)
    else:
        sizes = own.n_prompt, own.n_gen
        _models(loaded, cut, n_ctx, options, sizes, own.repetitions, own.as_json)


def _cut(model: Model, text: str, n_ctx: int, chunks: int | None) -> Text:
    tokenizer = Tokenizer.from_gguf(model.file)
    return text_of(tokenizer.encode(text), n_ctx, chunks, beginning(tokenizer))


def _models(
    models: Sequence[Model],
    text: Text,
    n_ctx: int,
    options: dict[str, Any],
    sizes: tuple[int, int],
    repetitions: int,
    as_json: bool,
) -> None:
    with StatusLine() as status:
        rows = list(compare_models(models, text, n_ctx, _watch(status), **options))
        speeds = _speeds(models, sizes, repetitions, options, status)
    if as_json:
        found = [_json_row(row, n_ctx) | speed for row, speed in zip(rows, speeds, strict=True)]
        print(json.dumps({"text": _text_row(text), "models": found}, indent=1))
        return
    say(_about(text) + f"; KL is to {rows[0].name}")
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    columns = ["size", "bits/weight", "PPL", "±", "KL", "±", "99%", "same top"]
    names = list(dict.fromkeys(name for speed in speeds for name in speed))
    for column in (*columns, *(f"{name} tok/s" for name in names), f"memory @{n_ctx}"):
        table.add_column(column, justify="right")
    for row, speed in zip(rows, speeds, strict=True):
        times = (f"{speed[name]:.1f}" if name in speed else "" for name in names)
        table.add_row(
            row.name, size_text(row.file), f"{row.bits:.2f}", *_figures(row), *times,
            size_text(row.whole.nbytes),
        )  # fmt: skip
    wide().print(table)
    _warn(rows, rows[0].name)


def _caches(model: Model, text: Text, n_ctx: int, options: dict[str, Any], as_json: bool) -> None:
    pairs = _pairs(model)
    with StatusLine() as status:
        rows = list(compare_caches(model, pairs, text, n_ctx, _watch(status), **options))
    if as_json:
        found = [
            {**pair._asdict(), "cache": row.whole.cache} | _json_row(row, n_ctx)
            for pair, row in rows
        ]
        print(json.dumps({"text": _text_row(text), "caches": found}, indent=1))
        return
    say(_about(text) + "; KL is to a cache of f32")
    table = Table(box=None, pad_edge=False)
    table.add_column("keys")
    table.add_column("values")
    for column in (f"cache @{n_ctx}", "PPL", "±", "KL", "±", "99%", "same top"):
        table.add_column(column, justify="right")
    for pair, row in rows:
        table.add_row(*pair, size_text(row.whole.cache), *_figures(row))
    wide().print(table)
    _warn([row for _, row in rows], "a cache of f32")


def _pairs(model: Model) -> list[CacheTypes]:
    """Each type for both, for keys alone and for values alone."""
    pairs = cache_pairs(model.config)
    return [p for p in pairs if len(set(p)) == 1 or "f16" in p]


def _watch(status: StatusLine) -> Callable[[str], Callable[[int, int], None]]:
    def of(name: str) -> Callable[[int, int], None]:
        return lambda done, total: status(f"{name}: {done} of {total} chunks")

    return of


def _figures(row: Compared) -> tuple[str, ...]:
    f = row.figures
    high = f.kl_spread.percentiles[99.0] if f.kl_spread else 0.0
    return (
        f"{f.ppl.value:.4f}", f"{f.ppl.error:.4f}",
        f"{max(f.kl.value, 0):.6f}",  # rounding may make it negative
        f"{f.kl.error:.6f}", f"{high:.5f}", f"{f.same_top.value:.2%}",
    )  # fmt: skip


def _warn(rows: Sequence[Compared], first: str) -> None:
    """Warns of what is of no use in place of `first`."""
    for row in rows:
        if row.why_of_no_use is not None:
            say(
                f"warning: {row.name} is of no use in place of {first}: {row.why_of_no_use}",
                "bold red",
            )


def _about(text: Text) -> str:
    n = len(text.chunks)
    many = "chunk" if n == 1 else "chunks"
    return f"{n} {many} of {text.n_ctx} tokens, {text.n_scored} scored"


def _text_row(text: Text) -> dict[str, int]:
    return {"n_chunks": len(text.chunks), "n_ctx": text.n_ctx, "n_scored": text.n_scored}


def _json_row(row: Compared, n_ctx: int) -> dict[str, Any]:
    return {
        "name": row.name,
        "size": row.file,
        "bits_per_weight": row.bits,
        "memory": row.whole.nbytes,
        "memory_n_ctx": n_ctx,
        "of_use": row.why_of_no_use is None,
        **row.figures.as_dict(),
    }


def _speeds(
    models: Sequence[Model],
    sizes: tuple[int, int],
    repetitions: int,
    options: dict[str, Any],
    status: StatusLine,
) -> list[dict[str, float]]:
    """Tokens per second of each model by the name of the test, medians. The models take turns where
    memory holds them all."""
    tests = [t for t in (BenchTest(sizes[0], 0), BenchTest(0, sizes[1])) if t.n_tokens]
    if not tests:
        return [{} for _ in models]
    most = max(t.n_cells for t in tests)
    runners: dict[int, Runner] = {}

    def runner(i: int) -> Runner:
        if i not in runners:
            status(f"loading {models[i].file.path.name}")
            context = Context(models[i], max(most, 1), **options)
            runners[i] = Runner(context, most, lambda _: None)
            for test in tests:
                runners[i].run(test)
        return runners[i]

    times: list[dict[str, list[int]]] = [{t.name: [] for t in tests} for _ in models]

    def run(i: int, turn: int) -> None:
        for test in tests:
            name = models[i].file.path.name
            status(f"{name}: {test.name}, {turn + 1} of {repetitions}")
            times[i][test.name].append(runner(i).run(test))

    if _hold_all(models):
        for turn in range(repetitions):
            for i in range(len(models)):
                run(i, turn)
    else:
        for i in range(len(models)):
            for turn in range(repetitions):
                run(i, turn)
            runners.clear()
    return [{t.name: t.n_tokens * 1e9 / median(found[t.name]) for t in tests} for found in times]


def _hold_all(models: Sequence[Model]) -> bool:
    """Whether memory holds all models twice, as repacked weights are beside the file."""
    available = available_bytes()
    size = sum(t.nbytes for model in models for t in model.file.tensors.values())
    return available is None or 2 * size < available
