"""`weft devices` lists the devices of this machine and the ops that each supports."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from weft.backends import known_backends
from weft.backends.cpu import Peaks, measure_peaks
from weft.backends.cpu.record import verdicts
from weft.cli.about import about, built_lines
from weft.cli.console import StatusLine, chosen_devices, wide
from weft.cli.doctor import used_target
from weft.cli.ops_grid import devices_of, grid_as_json, grid_as_markdown, page_devices, print_grid
from weft.control_group import memory_limit, processor_limit
from weft.errors import DeviceError
from weft.native import _native
from weft.numa import memory_nodes
from weft.tables import count_text, size_text


def devices(
    ops: Annotated[
        bool, typer.Option("--ops", help="Print which device takes which op and format.")
    ] = False,
    chosen: Annotated[
        str | None,
        typer.Option(
            "--devices",
            metavar="NAMES",
            help="With --ops: the devices to ask; default: all there are.",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="With --ops: print the page docs/devices.md.")
    ] = False,
    peaks: Annotated[
        bool, typer.Option("--peaks", help="Measure what this machine's CPU reaches at best.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", help="With --peaks: threads; default: cores.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List devices. Also shows CPU features, kernel targets, and why a device cannot be used."""
    if ops:
        _print_ops(chosen, markdown, as_json)
        return
    if markdown or chosen is not None:
        raise DeviceError("--markdown and --devices belong to --ops")
    measured = measure_peaks(threads) if peaks else None
    if as_json:
        print(json.dumps(_as_json(measured), indent=1))
    else:
        print_devices(measured)


def _print_ops(chosen: str | None, markdown: bool, as_json: bool) -> None:
    ready = [d.name for d in known_backends() if d.available and d.name != "null"]
    if markdown and not chosen:
        asked = page_devices()
    else:
        asked = devices_of(chosen_devices(chosen) if chosen else ready)
    if markdown:
        print(grid_as_markdown(asked), end="")
    elif as_json:
        print(json.dumps(grid_as_json(asked), indent=1))
    else:
        print_grid(asked, wide())


def _as_json(peaks: Peaks | None) -> dict[str, Any]:
    used, why = used_target()
    return {
        "devices": [asdict(d) for d in known_backends()],
        "cpu": {
            "features": _native.cpu_features(),
            "cores": _native.usable_cores(),
            "processors": _native.usable_processors(),
            "control_group": _limits(),
            "memory_nodes": memory_nodes(_native.usable_cpus()),
            **{name: about()[name] for name in ("built_for", "built_from", "targets")},
            "target": used,
            "why": why,
            "peaks": None if peaks is None else asdict(peaks),
            "checked": {name: asdict(v) for name, v in verdicts().items()},
        },
    }


def print_devices(peaks: Peaks | None = None) -> None:
    """Prints the processor, its kernels and every device, with `peaks` where they were measured."""
    cores, processors = _native.usable_cores(), _native.usable_processors()
    features = " ".join(_native.cpu_features())
    out = wide()
    out.print(f"cpu: {cores} cores, {processors} processors; features: {features}")
    limits = _limits_text(**_limits())
    if limits:
        out.print(f"limits of the control group (of a container or a service): {limits}")
    nodes = memory_nodes(_native.usable_cpus())
    if len(nodes) > 1:
        each = ", ".join(f"{node} ({len(cpus)} processors)" for node, cpus in nodes.items())
        out.print(f"memory nodes: {each}; see --numa", markup=False)
    _print_targets()
    if peaks is not None:
        out.print(f"peaks with {peaks}", markup=False)
    table = Table(box=None, pad_edge=False)
    for column in ("device", "state", "about"):
        table.add_column(column)
    with StatusLine() as status:
        status("trying devices; the first time, the compiler of a driver may take a minute")
        found = known_backends()
    for device in found:
        state = "ready" if device.available else "unusable"
        about = ": ".join(part for part in (device.description, device.why_not) if part)
        table.add_row(device.name, state, about.replace("[", r"\["))
    out.print(table)


def _limits() -> dict[str, int | None]:
    """The processors (rounded up) and the bytes of memory that control groups grant; None: all."""
    return {"processors": processor_limit(), "memory": memory_limit()}


def _limits_text(processors: int | None, memory: int | None) -> str:
    """The same in words; empty: there are none."""
    parts = [] if processors is None else [count_text(processors, "processor")]
    parts += [] if memory is None else [f"{size_text(memory)} of memory"]
    return ", ".join(parts)


def _print_targets() -> None:
    """Prints the kernel targets, the one in use and why, and those that failed their check."""
    used, why = used_target()
    out = wide()
    for line in built_lines(about()):
        out.print(line, markup=False)
    out.print(f"in use: {used or 'none'} ({why})", markup=False)
    for name, verdict in verdicts().items():
        if verdict.failed:
            out.print(f"not used: {name} ({verdict.summary})", markup=False)
