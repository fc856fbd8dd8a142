"""`weft explain`: where everything of a model would be, and why, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from weft.backends import Backend
from weft.cli.console import note, say, size_text, wide
from weft.cli.exported import explain_pte, is_pte
from weft.cli.loading import loads_model
from weft.cli.model_file import ModelFile
from weft.compiler import lower_plan
from weft.errors import ContextError, ScheduleError
from weft.files import write_text
from weft.llm import Model
from weft.llm.llm import DEFAULT_N_CTX
from weft.llm.plan import ContextPlan
from weft.llm.prepare import prepare
from weft.llm.regime import RegimePlan
from weft.program import Program
from weft.schedule.draw import dot, mermaid
from weft.schedule.explain import prediction_text, table_lines
from weft.schedule.machine import paper_devices
from weft.schedule.profile import Profile, load_profile

__all__ = ["explain", "memory_rows"]


@loads_model
def explain(
    model: ModelFile,
    load: dict[str, Any],
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Plan for the machine of a profile (a file, or a name that weft has), with or "
            "without having it.",
        ),
    ] = None,
    why: Annotated[
        str | None, typer.Option(metavar="NAME", help="All that is known of one node or weight.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Show the plan of batches of so many tokens; default: the largest."),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Splits and totals only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print the graph of splits as Mermaid.")
    ] = False,
    as_dot: Annotated[
        bool, typer.Option("--dot", help="Print the graph of splits for Graphviz.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan for `weft run --plan`.")
    ] = None,
) -> None:
    """Show where everything would run, and why. Splits, each op's device, what other devices said,
    and the bytes of every buffer; nothing is allocated or loaded. Of an exported .pte file: the
    delegated graphs, what was left out, and why."""
    if is_pte(model):
        found, text = explain_pte(model, not brief)
        print(json.dumps(found, indent=1) if as_json else text)
        return
    if (why is not None) + as_json + as_mermaid + as_dot > 1:
        raise ScheduleError("give only one of --why, --json, --mermaid and --dot")
    if machine is not None:
        load |= _on_paper(machine, load)
    loaded = Model.open(model)
    if load["n_ctx"] is None and load["plan"] is None:
        load["n_ctx"] = min(loaded.config.n_ctx_train, DEFAULT_N_CTX)
    made = prepare(loaded, n_outputs=1, **load)
    if save is not None:
        _save(save, made)
    regime = _regime(made, tokens)
    schedule = regime.plan.schedule
    if as_json:
        print(json.dumps(_as_json(made), indent=1))
    elif as_mermaid:
        print(mermaid(schedule))
    elif as_dot:
        print(dot(schedule))
    elif why is not None:
        print(schedule.why(why))
    else:
        _print(made, regime, brief)


def _regime(made: ContextPlan, tokens: int | None) -> RegimePlan:
    """The plan that batches of so many tokens use."""
    largest = made.regimes[-1]
    if tokens is None:
        return largest
    if not 1 <= tokens <= largest.max_tokens:
        raise ContextError(f"batches have 1 to {largest.max_tokens} tokens, not {tokens}")
    return next(r for r in made.regimes if tokens <= r.max_tokens)


def _on_paper(machine: str, load: dict[str, Any]) -> dict[str, Any]:
    """Devices and profile of a machine; `--devices` chooses among them."""
    if load["profile"] is not None:
        raise ScheduleError("--machine is a profile; leave out --speeds")
    known: Profile = load_profile(machine)
    on_paper = {d.name: d for d in paper_devices(known)}
    slower = _slower_helpers(known)
    chosen: list[str | Backend] = [d for n, d in on_paper.items() if n not in slower]
    if load["devices"] is not None:
        names = load["devices"]
        missing = [name for name in names if name not in on_paper]
        if missing:
            raise ScheduleError(
                f"machine {known.name} has no device {', '.join(missing)}; it has "
                f"{', '.join(on_paper)}"
            )
        chosen = [on_paper[name] for name in names]
    else:
        for name, last in slower.items():
            note(
                f"{name} is left out, as its products are slower than those of {last}; "
                f"--devices {name},{last} plans with it"
            )
    return {"devices": chosen, "profile": known}


def _slower_helpers(machine: Profile) -> dict[str, str]:
    """Devices that only help the one behind them in its memory, and are slower at that."""
    last = machine.devices[-1]
    return {
        device.name: last.name
        for device in machine.devices[:-1]
        if device.kind == "ACCEL"
        and device.memory == last.memory
        and device.rate("MUL_MAT", True, "f32") < last.rate("MUL_MAT", True, "f32")
    }


def memory_rows(made: ContextPlan, programs: Sequence[Program]) -> list[dict[str, Any]]:
    """What each kind of buffer takes: weights, caches, what is computed in, scratch."""
    rows = made.memory_rows()
    # the programs of a device share it
    scratch = max(split.work_bytes for program in programs for split in program.splits)
    rows.append(
        {"buffer": "scratch", "memory": "threads", "bytes": scratch, "about": "of the kernels"}
    )
    return rows


def _as_json(made: ContextPlan) -> dict[str, Any]:
    programs = [lower_plan(regime.plan) for regime in made.all_regimes]
    plan = made.to_json()
    plan["memory"] = memory_rows(made, programs)
    plan["stages"] = [len(split.stages) for split in programs[-1].splits]
    return plan


def _save(path: Path, made: ContextPlan) -> None:
    write_text(path, json.dumps(made.to_json(), indent=1) + "\n")
    say(f"plan saved to {path}")


def _print(made: ContextPlan, regime: RegimePlan, brief: bool) -> None:
    out = wide()
    width = out.width if out.is_terminal else None
    for line in table_lines(regime.plan.to_json(), width, nodes=not brief, in_short=True):
        out.print(line, markup=False, soft_wrap=True)
    for other in made.regimes:
        if other is not regime:
            out.print(_other_plan(other), markup=False, soft_wrap=True)
    if made.predicted is not None and len(made.regimes) > 1:
        out.print(prediction_text(made.predicted.to_json()), markup=False, soft_wrap=True)
    for name, why in made.homes.kept.items():
        out.print(f"{name} stays in host memory: {why}", markup=False, soft_wrap=True)
    table = Table(title="memory", title_justify="left", box=None, pad_edge=False)
    for column in ("buffer", "memory"):
        table.add_column(column, no_wrap=True)
    for column in ("bytes", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("about", overflow="fold")
    for row in memory_rows(made, [lower_plan(r.plan) for r in made.all_regimes]):
        table.add_row(
            row["buffer"], row["memory"], f"{row['bytes']:,}", size_text(row["bytes"]),
            _about(row),
        )  # fmt: skip
    out.print()
    out.print(table)


def _other_plan(other: RegimePlan) -> str:
    totals = other.plan.schedule.to_json()["totals"]
    tokens = f"{other.max_tokens} token{'s' if other.max_tokens > 1 else ''}"
    return (
        f"batches of up to {tokens} have another plan: {totals['splits']} splits, "
        f"{totals['copies']} copies (--tokens {other.max_tokens} shows it)"
    )


def _about(row: dict[str, Any]) -> str:
    bound = row.get("lower_bound")
    if not bound:
        return str(row["about"])
    over = row["bytes"] / bound - 1
    return f"lower bound {bound:,} B" + (f" (+{over:.1%})" if over else " (reached)")
