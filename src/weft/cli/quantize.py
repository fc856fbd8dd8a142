"""`weft quantize` writes a model with its matrices in another type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from weft.cli.command import usage_error
from weft.cli.console import PATIENCE, WaitingBar, errors, note, say, size_text
from weft.dtype import DTYPES, DType
from weft.errors import WeftError
from weft.files import read_text
from weft.frontends.gguf.importance import Importance, read_importance
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
from weft.llm import Model
from weft.llm.hub import local_path
from weft.llm.planning.prepare import prepare
from weft.llm.sizes import DEFAULT_N_CTX

__all__ = ["quantize"]

MOST_THREADS = 1024

_KEY_TYPES: dict[str, Callable[[str], int | float | str | bool]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda text: {"true": True, "false": False}[text],
}


def quantize(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            parser=local_path,
            help="The GGUF file or Hugging Face folder to read, or hf:OWNER/NAME[:QUANT].",
        ),
    ],
    target: Annotated[
        str, typer.Argument(metavar="OUT", help="The GGUF file to write; not with --dry-run.")
    ],
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
            "--ctx-size", "-c", metavar="N", help="With --dry-run: the context that is planned."
        ),
    ] = None,
    speeds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --dry-run: a machine's speeds, of `weft calibrate`, to predict tokens/s by.",
        ),
    ] = None,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize", help="Quantize tensors again that are quantized already."
        ),
    ] = False,
) -> None:  # fmt: skip
    """Write a model again with its matrices in another type."""
    if to is None:
        if not dry_run:
            raise usage_error("say what to write: weft quantize IN OUT TYPE")
        target, to = "", target
    elif to.isdecimal() and dry_run and threads is None and not _is_type(to):
        target, to, threads = "", target, int(to)
    to = _full_name(to)
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise usage_error(f"{threads} threads: give 1 to {MOST_THREADS}")
    choices = Choices(
        pure, leave_output, _type("--output-tensor-type", output_type),
        _type("--token-embedding-type", embedding_type),
        _patterns([*(tensor_type or ()), *_words(tensor_type_file)]),
    )  # fmt: skip
    keys = dict(map(_key, override_kv or ()))
    importance = _importance(imatrix, include_weights or (), exclude_weights or ())
    if importance is not None:
        choices = replace(choices, imatrix=True)
    layers = _layers(prune_layers)
    file = open_model(source, to_write=True)
    if dry_run:
        _show_plan(file, to, choices, layers, importance, n_ctx, speeds)
        return
    with _Shown(sum(t.nbytes for t in file.tensors.values())) as shown:
        tensors = quantize_file(
            file, target, to, choices=choices, keep_split=keep_split, keys=keys, progress=shown,
            importance=importance, without_layers=layers, allow_requantize=allow_requantize,
            n_threads=threads,
        )  # fmt: skip
    _sum_up(target, tensors)


def _importance(
    path: Path | None, include: Sequence[str], exclude: Sequence[str]
) -> Importance | None:
    if path is None:
        if include or exclude:
            flag = "--include-weights" if include else "--exclude-weights"
            raise usage_error(f"{flag} chooses from an importance matrix: add --imatrix FILE")
        return None
    if include and exclude:
        raise usage_error("give --include-weights or --exclude-weights, not both")
    found = read_importance(path, include, exclude)
    if found is None:
        note(f"{path}: no tensor is left of the importance matrix, which changes nothing")
    return found


def _layers(text: str | None) -> list[int]:
    words = [] if text is None else text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise usage_error(f"--prune-layers {text}: write numbers of layers, as in 3,4,5")
    return [int(word) for word in words]


class _Shown(WaitingBar):
    """Lines of the tensors that are done, over a bar."""

    def __init__(self, nbytes: int) -> None:
        super().__init__("quantizing", "bytes", PATIENCE)
        self._done, self._total = 0, nbytes

    def __call__(self, t: QuantizedTensor) -> None:  # type: ignore[override]
        """Shows a tensor."""
        _show(t)
        self._done += t.old_bytes
        super().__call__(self._done, self._total)


def _show(t: QuantizedTensor) -> None:
    kept = t.before is t.after
    errors.print(
        f"{t.name:<40} {t.before.name:>7} {'kept' if kept else '-> ' + t.after.name:<10} "
        f"{size_text(t.old_bytes):>12} -> {size_text(t.new_bytes)}",
        markup=False,
        soft_wrap=True,
    )


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
            _show(t)
        _sum_up(f"{file.path.name} as {to}", tensors)
        try:
            say(_memory(new, n_ctx, speeds))
        except WeftError as error:
            note(f"no plan of it: {error}")
        refused = refusal(file, to, choices, layers, importance)
        if refused is not None:
            note(f"as it is, weft would not write it: {refused}")


def _memory(new: GGUFFile, n_ctx: int | None, speeds: Path | None) -> str:
    """The bytes that a context of the model takes, and tokens per second where speeds are given."""
    model = Model(new)
    n_ctx = min(model.config.n_ctx_train, DEFAULT_N_CTX) if n_ctx is None else n_ctx
    plan = prepare(model, n_ctx=n_ctx, profile=speeds)
    rows = plan.memory_rows()
    shown = ", ".join(f"{r['buffer']} in {r['memory']} {size_text(r['bytes'])}" for r in rows)
    total = size_text(sum(row["bytes"] for row in rows))
    text = f"memory with a context of {n_ctx} tokens: {total} ({shown})"
    token = plan.regimes[0].plan.schedule.predicted
    if token is not None:
        text += f"; predicted {1 / token.total:.1f} tokens/s"
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


def _key(text: str) -> tuple[str, Any]:
    """A metadata key with its value, as llama-quantize stores it."""
    key, _, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    try:
        read = _KEY_TYPES[kind](value)
        if not key or not colon:
            raise ValueError
        if kind == "int":
            return key, np.uint32(abs(int(read)))
        return key, np.float32(read) if kind == "float" else read
    except (KeyError, ValueError, OverflowError):
        raise usage_error(
            f"--override-kv {text}: write KEY=TYPE:VALUE, where TYPE is int, float, bool or str"
        ) from None
