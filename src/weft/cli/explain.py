"""`weft explain` shows where everything of a model would be, and why, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from weft.backends.cpu.routing import Routing
from weft.cli.console import note, say, wide
from weft.cli.draft_options import DraftFlags
from weft.cli.explain_graph import explain_graph, is_graph, show
from weft.cli.explain_machines import on_machines, print_stages, stages_of
from weft.cli.exported import explain_pte, is_pte, pte_report
from weft.cli.groups import ABSENT, Group
from weft.cli.loading import Load, loads_model
from weft.cli.machine_options import are_addresses, machines_of
from weft.cli.model_file import ModelOrProgram
from weft.cli.options import TEXT_OPTIONS
from weft.cli.prefix_flags import UNUSED_BY_WRITERS, PrefixFlags
from weft.cli.unused_options import ALONE, no_layers_text
from weft.compiler import lower_plan
from weft.compiler.homes import first_with_own_memory
from weft.errors import ContextError, OutOfMemoryError, ScheduleError
from weft.files import write_text
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.opening import Opening, take_model_arguments
from weft.llm.planning.draft_options import DraftOptions, rows_needed
from weft.llm.planning.explain import memory_cells, memory_rows, placement_lines, plan_for
from weft.llm.planning.overview import overview, overview_lines
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.stage_report import StageReport, stage_lines
from weft.options import option
from weft.schedule.machine import paper_devices
from weft.schedule.machines import without_slow_helpers
from weft.schedule.profile import Profile, load_profile
from weft.tables import size_text


class ExplainLoad(Load):
    """The options of `weft explain` for its model."""

    unused = tuple(unused for unused in UNUSED_BY_WRITERS if unused is not ALONE)
    machines = ABSENT

    def made(self, given: Mapping[str, Any]) -> Any:
        """The arguments of `LLM`. Devices of profiles are judged when they are known."""
        machines = given["machines"]
        paper = given["machine"] is not None or (machines and not are_addresses(machines))
        self.on_paper = bool(paper)
        if machines and not paper:
            self.machines = ",".join(machines)
        return super().made(given)


class ExplainFlags(Group):
    """The options of `weft explain` that are in no group."""

    table = TEXT_OPTIONS
    mmproj: Path | None
    machine: str | None = option(
        None,
        "Plan for the machine of a profile: a file, or a name that weft has. The devices need "
        "not be here.", metavar="NAME|FILE",
    )  # fmt: skip
    machines: list[str] | None = option(
        None,
        "Plan for several machines: a profile of each (a.toml b.toml), the one that you work at "
        "first, or a file of `weft calibrate --machines`; or for workers that run.",
        metavar="FILE...|HOST:PORT,...",
    )
    link: list[str] | None = option(
        None,
        "With --machines: the network between them, e.g. 1Gbps,0.2ms, or a:b=10Gbps,50us for two.",
        metavar="RATE,DELAY",
    )
    why: str | None = option(
        None, "All that is known of one node, by name or number, or of one weight.", metavar="NAME"
    )
    tokens: int | None = option(
        None, "Show the plan for batches of so many tokens; default: the largest."
    )
    parallel: int = option(
        1, "Texts written at the same time, as by `weft serve`.", "--parallel -np"
    )
    passes: bool = option(
        False, "Each pass of the placement, one sweep at a time: what it asked and what it changed."
    )
    node: str | None = option(
        None, "Of each pass, what concerns the tensors with such names.", metavar="GLOB"
    )
    brief: bool = option(False, "Splits and totals only.")
    nodes: bool = option(False, "Every node, also of layers that are like the one before.")
    as_json: bool = option(False, "Print JSON.", "--json")
    as_mermaid: bool = option(False, "Print the graph of splits as Mermaid.", "--mermaid")
    as_dot: bool = option(False, "Print the graph of splits for Graphviz.", "--dot")
    save: Path | None = option(None, "Write the plan for `weft run --plan`.", metavar="FILE")
    html: Path | None = option(None, "Write a report to look at: one HTML file.", metavar="FILE")
    routing: Path | None = option(
        None, "With --expert-budget: hit rates by a record of `weft experts --save`.",
        metavar="FILE",
    )  # fmt: skip


@loads_model
def explain(
    model: ModelOrProgram,
    kept: Annotated[dict[str, Any], PrefixFlags],
    own: ExplainFlags,
    drafts: Annotated[DraftOptions | None, DraftFlags],
    load: Annotated[dict[str, Any], ExplainLoad],
) -> None:
    """Show where everything would run, and why. Lists splits, the device of each op, why other
    devices refused it, and the bytes of every buffer; nothing is allocated or loaded. For an
    exported .pte file: the delegated graphs, the nodes left out, and why. A graph as text (its
    first line is "weft graph 1") is placed, too."""
    if is_pte(model):
        _explain_exported(model, own)
        return
    own.passes = own.passes or own.node is not None
    _require_one_form(own)
    load |= _placed(own, load)
    if is_graph(model):
        explain_graph(model, own, load, vars(ExplainFlags()) | ExplainLoad().arguments())
        return
    if load.get("machines"):
        from weft.backends.remote.group import machine_group

        # workers that are started for the plan live as long as `load`
        load["machines"] = machine_group(load["machines"], load.get("machine_key"))
    load |= {"mmproj": own.mmproj, "drafting": drafts}
    opening = Opening(model, whole=False, planned=True, **take_model_arguments(load))
    loaded = opening.model
    if loaded.file.n_missing:
        say(
            f"{model.name} ends before its weights ({size_text(loaded.file.n_missing)} more); its "
            "beginning is enough for a plan"
        )
    for tower in loaded.towers:
        tower.require_width(loaded.config.n_embd, loaded.file.path.name)
    rows = rows_needed(own.parallel, drafts, loaded.config)
    # a plan file has it, too
    several = None if own.parallel == 1 and load["plan"] else own.parallel
    sizes = load | {"n_outputs": rows, "n_seq_max": several}
    try:
        *beside, plan = opening.plans(**sizes)
    except OutOfMemoryError:
        if not (own.as_json or own.as_mermaid or own.as_dot or own.html or own.why):
            with suppress(OutOfMemoryError):  # --fit has no plan without a limit
                *_, plan = opening.plans(must_fit=False, **sizes)
                _print_overview(plan, own.tokens, PrefixOptions(**kept))
        raise
    if own.save is not None:
        _save(own.save, plan)
    explained = _Explained(plan, beside, PrefixOptions(**kept), stages_of(plan, load))
    if own.html is not None:
        data = explained.page(lambda n: rows_needed(n, drafts, loaded.config))
        _write_page(own.html, data)
    else:
        explained.show(own)


class _Explained(NamedTuple):
    """The plan of a model, and what is shown with it."""

    plan: ContextPlan
    beside: Sequence[ContextPlan]
    """The plans of models that draft."""
    kept: PrefixOptions
    stages: StageReport | None
    """The layers of each machine; None: there is one machine."""

    def page(self, rows_for: Callable[[int], int]) -> dict[str, Any]:
        """The data of the page; `rows_for` gives the rows of logits for a number of texts."""
        from weft.report import plan_data  # only here, as most calls need none of it

        data = plan_data(self.plan, kept=self.kept, beside=self.beside, rows_for=rows_for)
        if self.stages is not None:
            data["machines"] = self.stages.to_json()
            data["text"] += stage_lines(self.stages)
        return data

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, with its memory, stages and overview."""
        plan = self.plan
        data = plan.to_json()
        data["memory"] = rows = memory_rows(plan, plan.scratch_bytes(), self.kept)
        data["overview"] = overview(plan, rows, plan.regimes[-1]).to_json()
        data["stages"] = [len(split.stages) for split in lower_plan(plan.plan).splits]
        if self.stages is not None:
            data["machines"] = self.stages.to_json()
        data["draft_memory"] = [memory_rows(other, other.scratch_bytes()) for other in self.beside]
        return data

    def show(self, own: ExplainFlags) -> None:
        """Prints the plan in the form that the options ask for."""
        regime = plan_for(self.plan, own.tokens)
        if own.as_json and not own.passes:
            print(json.dumps(self.to_json(), indent=1))
        elif own.why is not None and not own.passes:
            print(regime.plan.why(own.why))
        elif not show(regime.plan.schedule, own, self.plan.considered):
            _print(self.plan, own, self.kept)
            if self.stages is not None:
                print_stages(self.stages)
            for other in self.beside:
                _print_memory(f"memory of what drafts, of {other.model.file.path.name}", other)
            if own.routing is not None:
                wide().print(f"\n{_hit_rates(self.plan, own.routing)}")


def _explain_exported(path: Path, own: ExplainFlags) -> None:
    """Explains a .pte file."""
    if own.html is not None:
        write_text(own.html, pte_report(path))
        say(f"report written to {own.html}")
        return
    data, text = explain_pte(path, not own.brief)
    print(json.dumps(data, indent=1) if own.as_json else text)


def _write_page(path: Path, data: dict[str, Any]) -> None:
    from weft.report import page_html

    write_text(path, page_html(data))
    say(f"report written to {path}")


def _require_one_form(own: ExplainFlags) -> None:
    """Raises ScheduleError where options ask for several forms of the plan."""
    passes_or_json = own.as_json or own.passes
    forms = (own.why is not None, passes_or_json, own.as_mermaid, own.as_dot, own.html is not None)
    if sum(forms) > 1:
        raise ScheduleError(
            "give only one of --why, --json, --mermaid, --dot, --html and --passes; --passes may "
            "have --json"
        )


def _placed(own: ExplainFlags, load: dict[str, Any]) -> dict[str, Any]:
    """The arguments for machines that are in profiles, or that have workers."""
    if own.machine is not None and own.machines is not None:
        raise ScheduleError("--machines has profiles of several machines; leave out --machine")
    if own.machines is None and own.link is not None:
        raise ScheduleError("--link is between machines; give --machines, too")
    if own.machine is not None:
        return _on_paper(own.machine, load)
    if own.machines is None:
        return {}
    if are_addresses(own.machines):
        return machines_of(",".join(own.machines), None, None, load.get("machine_key"))
    return on_machines(own.machines, own.link or (), load)


def _on_paper(machine: str, load: dict[str, Any]) -> dict[str, Any]:
    """The devices and the profile of a machine; `--devices` chooses among them."""
    if load["profile"] is not None:
        raise ScheduleError("--machine is a profile; leave out --speeds")
    profile: Profile = load_profile(machine)
    on_paper = {d.name: d for d in paper_devices(profile)}
    kept = without_slow_helpers(profile)
    slower = {n: profile.devices[-1].name for n in on_paper if kept.device(n) is None}
    chosen = [d for n, d in on_paper.items() if n not in slower]
    if load["devices"] is not None:
        names = load["devices"]
        missing = [name for name in names if name not in on_paper]
        if missing:
            raise ScheduleError(
                f"machine {profile.name} has no device {', '.join(missing)}; it has "
                f"{', '.join(on_paper)}"
            )
        chosen = [on_paper[name] for name in names]
    else:
        for name, last in slower.items():
            note(
                f"{name} is left out, as its products are slower than those of {last}; "
                f"--devices {name},{last} plans with it"
            )
    layers = load["n_gpu_layers"]
    if layers is not None and first_with_own_memory(chosen) < 0:
        if layers:
            note(no_layers_text([device.name for device in chosen], layers), style="yellow")
        layers = None
    return {"devices": chosen, "profile": profile, "n_gpu_layers": layers}


def _save(path: Path, plan: ContextPlan) -> None:
    write_text(path, json.dumps(plan.to_json(), indent=1) + "\n")
    say(f"plan saved to {path}")


def _print(plan: ContextPlan, own: ExplainFlags, kept: PrefixOptions) -> None:
    out = wide()
    width = out.width if out.is_terminal else None
    _print_overview(plan, own.tokens, kept)
    for said in plan.model.file.notes:
        out.print(said, markup=False, soft_wrap=True)
    lines = placement_lines(
        plan, tokens=own.tokens, width=width, nodes=not own.brief, fold=not own.nodes,
        hint="--tokens {}",
    )  # fmt: skip
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    _print_memory("memory", plan, kept)


def _print_overview(plan: ContextPlan, tokens: int | None, kept: PrefixOptions) -> None:
    """Prints what the model is, whether it fits, where it runs, and a bar for each memory."""
    out = wide()
    about = overview(plan, memory_rows(plan, plan.scratch_bytes(), kept), plan_for(plan, tokens))
    for line in overview_lines(about, out.width if out.is_terminal else 80):
        text = Text(line)
        for sign, style in _STYLES.items():
            text.highlight_regex(f"{sign}+", style)
        out.print(text, soft_wrap=not out.is_terminal)
    out.print()


_STYLES = {
    "█": "blue", "▆": "magenta", "▓": "cyan", "▒": "yellow", "▄": "green", "·": "dim", "⋯": "dim"
}  # fmt: skip


def _print_memory(title: str, plan: ContextPlan, kept: PrefixOptions | None = None) -> None:
    out = wide()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("buffer", "memory"):
        table.add_column(column, no_wrap=True)
    for column in ("bytes", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("about", overflow="fold")
    for cells in memory_cells(memory_rows(plan, plan.scratch_bytes(), kept)):
        table.add_row(*cells)
    out.print()
    out.print(table)


def _hit_rates(plan: ContextPlan, path: Path) -> str:
    """Shows how policies would serve a record of chosen experts."""
    if plan.experts is None:
        raise ContextError("--routing says how --expert-budget would do; give a budget, too")
    rates = plan.experts.simulated(Routing.load(path))
    best = rates.pop("best")
    shown = ", ".join(f"{policy} {rate:.1%}" for policy, rate in rates.items())
    return f"experts in memory, with the routing of {path.name}: {shown}; at best {best:.1%}"
