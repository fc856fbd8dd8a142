"""`weft explain --machines`: plans over several machines, and the tables of their stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from weft.cli.console import note, size_text, wide
from weft.cli.value_lists import words
from weft.errors import ScheduleError
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.stage_report import Load, StageReport, stage_report
from weft.schedule.explain import seconds_text
from weft.schedule.machine import paper_devices
from weft.schedule.machines import (
    DEFAULT_LINK,
    link_text,
    load_machines,
    machines_of,
    parse_link,
)
from weft.schedule.profile import Profile

__all__ = ["on_machines", "print_stages", "stages_of"]


def on_machines(
    sources: Sequence[str], links: Sequence[str], load: dict[str, Any]
) -> dict[str, Any]:
    """The devices of the machines of profiles, and arguments for the plan over them.

    Says which link is taken where none is given."""
    if load["profile"] is not None:
        raise ScheduleError("--machines are profiles; leave out --speeds")
    profile = load_machines(words("--machines", sources), [parse_link(text) for text in links])
    if any(link is DEFAULT_LINK for link in profile.links.values()):
        note(
            f"no --link is given, so the machines are taken to be {link_text(DEFAULT_LINK)} apart, "
            "a gigabit network; --link 10Gbps,50us says otherwise"
        )
    devices = {d.name: d for d in paper_devices(profile)}
    chosen = list(devices.values())
    if load["devices"] is not None:
        missing = [name for name in load["devices"] if name not in devices]
        if missing:
            raise ScheduleError(
                f"the machines have no device {', '.join(missing)}; they have {', '.join(devices)}"
            )
        chosen = [devices[name] for name in load["devices"]]
    unlimited = [m.name for m in profile.memories.values() if m.size is None]
    if unlimited:
        note(f"no size is known of {', '.join(unlimited)}, so plans take all that they want there")
    # layers are fitted into every memory by predicted time
    return {"devices": chosen, "profile": profile, "policy": "cost", "fit": False}


def stages_of(plan: ContextPlan, load: dict[str, Any]) -> StageReport | None:
    """The stages of a plan; None: it is for one machine, or its speeds are not known."""
    profile = load.get("profile")
    if not isinstance(profile, Profile) or len(machines_of(profile)) < 2:
        return None
    return stage_report(plan, profile)


def print_stages(report: StageReport) -> None:
    """Prints stages, links and predicted speeds."""
    out = wide()
    for table in (_stages(report), _links(report), _loads(report)):
        out.print()
        out.print(table)


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in left:
        table.add_column(column, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _stages(report: StageReport) -> Table:
    columns = ("weights", "cache", "compute", "all", "there", "per token")
    table = _table("stages, as a token passes them", ("machine", "holds", "memory"), columns)
    for stage in report.stages:
        holds = [f"{name.rpartition('/')[2]}: {what}" for name, what in stage.devices.items()]
        rows = max(len(holds), len(stage.memory), 1)
        for i in range(rows):
            cells = [""] * 6
            if i < len(stage.memory):
                need = stage.memory[i]
                sizes = [need[k] for k in ("weights", "cache", "compute", "bytes")]
                cells = [need["memory"], *map(size_text, sizes)]
                cells.append("?" if need["room"] is None else size_text(need["room"]))
            table.add_row(
                stage.machine if i == 0 else "",
                holds[i] if i < len(holds) else "" if holds else "nothing",
                *cells,
                seconds_text(stage.token_seconds) if i == 0 else "",
            )
    return table


def _links(report: StageReport) -> Table:
    columns = ("bytes per token", "copies", "time per token", "bytes per prompt")
    table = _table(
        "links, one token of one text and one ubatch of a prompt", ("from", "to"), columns
    )
    for link in report.links:
        table.add_row(
            link.source,
            link.target,
            f"{link.token_bytes:,}",
            str(link.token_copies),
            seconds_text(link.token_seconds),
            f"{link.prompt_bytes:,}",
        )
    return table


def _loads(report: StageReport) -> Table:
    machines = [s.machine for s in report.stages if s.devices]
    columns = ("tokens/s", "a pass takes", "passes at a time", *(f"{m} idle" for m in machines))
    table = _table("predicted, with a full cache", ("load",), columns)
    for load in report.loads:
        idle = [f"{load.idle.get(m, 1.0):.0%}" for m in machines]
        table.add_row(
            load_text(load),
            f"{load.tokens_per_second:.4g}",
            seconds_text(load.seconds),
            str(load.in_flight),
            *idle,
        )
    return table


def load_text(load: Load) -> str:
    """A load in words, such as `pp512, a prompt`."""
    n = load.n_tokens
    each = f" in {load.in_flight} groups of {n}" if load.kind == "tg" and load.in_flight > 1 else ""
    return f"pp{n}, {load.what}" if load.kind == "pp" else f"tg, {load.what}{each}"
