"""`weft explain`: the plan of a model, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from weft.cli.console import device_list, size_text, wide
from weft.llm import Context, Model
from weft.program import Program

__all__ = ["explain", "memory_rows"]


def explain(
    model: Annotated[Path, typer.Argument(help="A GGUF model.")],
    devices: Annotated[
        str | None, typer.Option(help="Devices, highest priority first, e.g. reference,cpu.")
    ] = None,
    ctx_size: Annotated[
        int | None, typer.Option("--ctx-size", "-c", help="Cells of the KV cache.")
    ] = None,
    ubatch: Annotated[int, typer.Option("--ubatch-size", help="Most tokens computed at once.")] = (
        512
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show splits, each op's device and why, and the bytes of every buffer."""
    context = Context(Model.open(model), ctx_size, n_ubatch=ubatch, devices=device_list(devices))
    program = context.program
    if as_json:
        print(json.dumps(_as_json(program), indent=1))
        return
    out = wide()
    out.print(program.plan.schedule.explain(), markup=False, soft_wrap=True)
    table = Table(title="memory", title_justify="left", box=None, pad_edge=False)
    table.add_column("buffer")
    table.add_column("memory")
    table.add_column("bytes", justify="right")
    table.add_column("size", justify="right")
    table.add_column("about")
    for row in memory_rows(program):
        table.add_row(
            row["buffer"], row["memory"], f"{row['bytes']:,}", size_text(row["bytes"]), row["about"]
        )
    out.print(table)


def memory_rows(program: Program) -> list[dict[str, Any]]:
    """What each kind of buffer takes: weights, caches, one row per arena, scratch."""
    rows: list[dict[str, Any]] = []
    bound: dict[tuple[str, str], int] = {}
    for spec in program.buffers:
        if spec.kind == "bound":
            what = "weights" if spec.usage == "weights" else "cache"
            key = (what, spec.buffer_type.name)
            bound[key] = bound.get(key, 0) + spec.size
    for (what, memory), size in bound.items():
        about = "mapped from the file" if what == "weights" else "allocated once, kept between runs"
        rows.append({"buffer": what, "memory": memory, "bytes": size, "about": about})
    for arena in program.plan.allocation.arenas:
        bound_text = f"lower bound {arena.lower_bound:,}"
        if arena.lower_bound:
            bound_text += f" ({arena.size / arena.lower_bound:.3f} of it)"
        rows.append(
            {
                "buffer": "compute",
                "memory": arena.buffer_type.name,
                "bytes": arena.size,
                "about": bound_text,
            }
        )
    scratch = sum(split.work_bytes for split in program.splits)
    rows.append(
        {"buffer": "scratch", "memory": "threads", "bytes": scratch, "about": "of the kernels"}
    )
    return rows


def _as_json(program: Program) -> dict[str, Any]:
    plan: dict[str, Any] = program.plan.schedule.to_json()
    plan["memory"] = memory_rows(program)
    plan["stages"] = [len(split.stages) for split in program.splits]
    return plan
