"""`weft inspect` shows the contents of a GGUF file."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from weft.cli.console import console, size_text, wide
from weft.cli.exported import is_pte
from weft.cli.model_file import ModelFile, takes_model
from weft.errors import FormatError
from weft.frontends.gguf.describe import describe
from weft.frontends.held import in_words
from weft.frontends.hf.lora import is_peft, open_peft
from weft.frontends.models import open_model


@takes_model
def inspect(
    model: ModelFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    tensors: Annotated[bool, typer.Option(help="List every tensor.")] = True,
) -> None:
    """Show what a GGUF file or a folder is: metadata, tensors, types and sizes."""
    if is_pte(model):
        raise FormatError(f"{model} is a program for ExecuTorch; weft explain shows what is in it")
    with open_peft(model) if is_peft(model) else open_model(model) as file:
        about = describe(file, width=100)
    if as_json:
        print(json.dumps(asdict(about), indent=1))
        return
    out = wide()
    form = "safetensors" if model.is_dir() else f"GGUF v{about.version}"
    out.print(
        f"{model.name}: {form}, {about.architecture or 'no architecture'}, "
        f"{about.elements:,} weights, {size_text(about.nbytes)}, "
        f"{about.bits_per_weight:.2f} bits per weight",
        markup=False,
    )
    if about.about:
        out.print(f"{model.name} is {about.about}", markup=False)
    for said in (*about.notes, in_words(about.architecture or "")):
        if said and about.kind == "model":
            out.print(said, markup=False, soft_wrap=True)
    keys = Table(title="metadata", title_justify="left", box=None, pad_edge=False)
    for column in ("key", "type", "value"):
        keys.add_column(column, no_wrap=column != "value")
    for key in about.metadata:
        keys.add_row(_plain(key.key), _plain(key.type), _plain(key.value))
    out.print(keys)
    if tensors and about.tensors:
        rows = Table(title="tensors", title_justify="left", box=None, pad_edge=False)
        for column in ("name", "type", "shape"):
            rows.add_column(column, no_wrap=True)
        for column in ("bytes", "bits/weight"):
            rows.add_column(column, justify="right", no_wrap=True)
        for t in about.tensors:
            shape = " x ".join(str(n) for n in t.shape)
            rows.add_row(_plain(t.name), t.type, shape, f"{t.nbytes:,}", f"{t.bits_per_weight:.2f}")
        out.print(rows)
    totals = Table(title="types", title_justify="left", box=None, pad_edge=False)
    totals.add_column("type")
    for column in ("tensors", "weights", "bytes", "bits/weight"):
        totals.add_column(column, justify="right")
    for row in about.totals:
        totals.add_row(
            row.type, str(row.tensors), f"{row.elements:,}", f"{row.nbytes:,}",
            f"{row.bits_per_weight:.2f}",
        )  # fmt: skip
    out.print(totals)
    console.file.flush()


def _plain(text: str) -> str:
    # a file's text is never markup
    return text.replace("[", r"\[")
