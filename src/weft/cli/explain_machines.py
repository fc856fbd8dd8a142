"""`weft explain --machines`: plans over several machines, and the tables of their stages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.cli.console import note, wide
from weft.cli.value_lists import words
from weft.errors import ScheduleError
from weft.execute import Profile as Measured
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.stage_report import StageReport, one_pass, stage_lines, stage_report
from weft.schedule.explain import seconds_text
from weft.schedule.machine import paper_devices
from weft.schedule.machines import (
    DEFAULT_LINK,
    link_text,
    load_machines,
    machine_of,
    machines_of,
    parse_link,
)
from weft.schedule.profile import Profile, load_profile


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
    """The stages of a plan; None: it is for one machine."""
    profile = _over_machines(load)
    if profile is None and len({machine_of(b.name) for b in plan.backends}) < 2:
        return None
    return stage_report(plan, profile)


def _over_machines(load: Mapping[str, Any]) -> Profile | None:
    """The profile of several machines among the arguments of a context."""
    profile = load.get("profile")
    if profile is None:
        return None
    profile = profile if isinstance(profile, Profile) else load_profile(profile)
    return profile if len(machines_of(profile)) > 1 else None


def print_stages(report: StageReport) -> None:
    """Prints stages, links and predicted speeds."""
    out = wide()
    for line in stage_lines(report):
        out.print(line, markup=False, soft_wrap=True)


def print_predicted(measured: Measured, plan: ContextPlan, load: Mapping[str, Any]) -> None:
    """Prints what was predicted for a test of `weft bench`, if the speeds of several machines are
    known: shares of idle time and tokens per second, to compare with a profile."""
    test = re.fullmatch(r"(pp|tg)(\d+)", measured.name)
    profile = _over_machines(load)
    if profile is None or test is None:
        return
    n = min(int(test[2]), plan.options.n_ubatch) if test[1] == "pp" else 1
    one = one_pass(plan, profile, n)
    shares = (
        f"{device} {1 - seconds / one.seconds:.0%} idle (measured "
        f"{measured.idle.get(device, 1.0):.0%})"
        for device, seconds in one.busy.items()
    )
    wide().print(
        f"\npredicted: {seconds_text(one.seconds)} a pass, {n / one.seconds:.4g} tokens/s; "
        f"{', '.join(shares)}",
        markup=False,
        soft_wrap=True,
    )
