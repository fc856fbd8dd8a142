"""`weft explain`: where everything of a model would be, and why, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from weft.backends import Backend
from weft.cli.console import note, say, wide
from weft.cli.exported import explain_pte, is_pte
from weft.cli.loading import loads_model
from weft.cli.model_file import ModelFile
from weft.compiler import lower_plan
from weft.errors import ScheduleError
from weft.files import write_text
from weft.llm import Model
from weft.llm.llm import DEFAULT_N_CTX
from weft.llm.planning.explain import memory_cells, memory_rows, placement_lines, plan_for
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare
from weft.schedule.draw import dot, mermaid
from weft.schedule.machine import paper_devices
from weft.schedule.profile import Profile, load_profile

__all__ = ["explain"]


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
    regime = plan_for(made, tokens)
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
        _print(made, tokens, brief)


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


def _as_json(made: ContextPlan) -> dict[str, Any]:
    plan = made.to_json()
    plan["memory"] = memory_rows(made, _scratch(made))
    plan["stages"] = [len(split.stages) for split in lower_plan(made.plan).splits]
    return plan


def _save(path: Path, made: ContextPlan) -> None:
    write_text(path, json.dumps(made.to_json(), indent=1) + "\n")
    say(f"plan saved to {path}")


def _print(made: ContextPlan, tokens: int | None, brief: bool) -> None:
    out = wide()
    width = out.width if out.is_terminal else None
    lines = placement_lines(made, tokens=tokens, width=width, nodes=not brief, hint="--tokens {}")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    table = Table(title="memory", title_justify="left", box=None, pad_edge=False)
    for column in ("buffer", "memory"):
        table.add_column(column, no_wrap=True)
    for column in ("bytes", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("about", overflow="fold")
    for cells in memory_cells(memory_rows(made, _scratch(made))):
        table.add_row(*cells)
    out.print()
    out.print(table)


def _scratch(made: ContextPlan) -> int:
    """Bytes of the kernels' scratch, which all programs share."""
    programs = [lower_plan(regime.plan) for regime in made.all_regimes]
    return max(split.work_bytes for program in programs for split in program.splits)
