"""`weft calibrate` measures this machine's devices and writes a machine profile."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from weft.backends import Backend, known_backends, make_backend
from weft.cli.console import StatusLine, chosen_devices, say, wide
from weft.cli.groups import Group, grouped
from weft.cli.machine_options import MACHINE_OPTIONS, machines_of
from weft.errors import ContextError
from weft.execute.measure import measure_machine, time_limit
from weft.files import write_text
from weft.llm.planning.options import LLM_OPTIONS
from weft.llm.planning.speed import kept_profile
from weft.llm.tuned import machine_name
from weft.options import option
from weft.schedule.machines import host_memories
from weft.schedule.profile import Profile

__all__ = ["calibrate", "measure_machine"]

_SHOWN = ("f32", "f16", "q8_0", "q4_K")
"""Types of weights whose speeds are printed; the file has all types."""
_LONGEST = 60
"""Maximum number of seconds for one figure."""
_NOT_MEASURED = ("null", "reference")
"""Devices that are measured only if `--devices` names them; nobody runs models on them."""


class CalibrateFlags(Group):
    """The options of `weft calibrate`."""

    table = LLM_OPTIONS | MACHINE_OPTIONS
    machines: str | None
    ray: str | None
    machine_key_file: Path | None
    save: Path | None = option(
        None, "The file to write; default: print it.", "--save -o", metavar="FILE"
    )
    devices: str | None = option(
        None, "Devices, highest priority first, e.g. opencl,cpu; default: all.", metavar="NAMES"
    )
    threads: int | None = option(None, "CPU threads; default: cores.", "--threads -t")
    seconds: float = option(0.2, "How long each figure is measured.", metavar="SECONDS")
    limit: float | None = option(
        None, "Begin no further figure of a device after this time; default: 60, more for longer "
        "--seconds.", metavar="SECONDS",
    )  # fmt: skip


@grouped
def calibrate(own: CalibrateFlags) -> None:
    """Measure what ops and copies cost here. The file is for --speeds and --machine. With
    --machines or --ray: on all workers and between them, for `weft explain --machines FILE`."""
    if not 0 < own.seconds <= _LONGEST:
        raise ContextError(f"--seconds is {own.seconds:g}; it must be above 0, at most {_LONGEST}")
    limit = time_limit(own.seconds) if own.limit is None else own.limit
    if not limit > 0:
        raise ContextError(f"--limit is {limit:g}; it must be above 0 seconds")
    names = _all_devices() if own.devices is None else chosen_devices(own.devices)
    backends = [
        make_backend(name, **({"n_threads": own.threads} if name == "cpu" and own.threads else {}))
        for name in names
    ]
    others = machines_of(own.machines, own.ray, own.machine_key_file)
    say(
        f"devices to measure: {', '.join(names)}; after {limit:g} s (--limit) on one of them, no "
        "further figure of it is begun"
    )
    with StatusLine() as status:
        if others.get("machines"):
            machine = _with_machines(others, backends, own.seconds, status, limit)
        else:
            machine = measure_machine(backends, own.seconds, status, limit)
    if own.devices is None and own.threads is None and not others:
        kept_profile().parent.mkdir(parents=True, exist_ok=True)
        write_text(kept_profile(), replace(machine, name=machine_name()).to_toml())
        say(f"kept in {kept_profile()}, from which weft explain predicts speeds")
    text = machine.to_toml()
    for line in machine.sources[1:]:
        say(line)
    if own.save is None:
        print(text, end="")
        return
    write_text(own.save, text)
    _print_figures(machine)
    _print_links(machine)
    say(f"speeds saved to {own.save}; --speeds {own.save} takes them")


def _with_machines(
    others: dict[str, Any],
    backends: list[Backend],
    seconds: float,
    status: StatusLine,
    limit: float,
) -> Profile:
    """Measures the workers that `--machines` or `--ray` means, this machine, and the links."""
    from weft.backends.remote.group import machine_group
    from weft.cluster.calibrate import measure_group

    key = others.get("machine_key")
    group = machine_group(others["machines"], key)
    try:
        return measure_group(group, backends, seconds, status, limit)
    finally:
        group.close()


def _print_links(machine: Profile) -> None:
    """Prints a row for each link between machines to stderr."""
    hosts = host_memories(machine)
    if len(hosts) < 2:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("from", "to"):
        table.add_column(column)
    for column in ("bandwidth", "latency"):
        table.add_column(column, justify="right")
    for a, b in itertools.permutations(hosts, 2):
        link = machine.link(hosts[a], hosts[b])
        delay = f"{link.latency * 1e6:.3g} µs"
        table.add_row(a or "here", b or "here", f"{link.bandwidth / 1e6:.4g} MB/s", delay)
    say("links:")
    wide(to_error=True).print(table)


def _print_figures(machine: Profile) -> None:
    """Prints a row for each device to stderr."""
    types = [t for t in _SHOWN if any(t in d.flops for d in machine.devices)]
    table = Table(box=None, pad_edge=False)
    table.add_column("device")
    for column in ("memory", "start of an op", *types):
        table.add_column(column, justify="right")
    for device in machine.devices:
        rates = (f"{device.flops[t] / 1e9:.3g}" if t in device.flops else "" for t in types)
        start = f"{device.launch * 1e6:.3g} µs" if device.launch else ""
        table.add_row(device.name, f"{device.bandwidth / 1e9:.3g} GB/s", start, *rates)
    say("products with weights of a type in GFLOP/s:")
    wide(to_error=True).print(table)
    for device in machine.devices:
        least = device.offload_from
        if least is not None:
            from_when = f"from {least} columns on" if least else "for no batch"
            say(f"{device.name}: sending it weights of host memory is worth it {from_when}")


def _all_devices() -> list[str]:
    names = [d.name for d in known_backends() if d.available and d.name not in _NOT_MEASURED]
    return [*(name for name in names if name != "cpu"), "cpu"]
