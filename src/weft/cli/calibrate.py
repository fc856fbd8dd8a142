"""`weft calibrate` measures this machine's devices and writes a machine profile."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from weft.backends import Backend, known_backends, make_backend
from weft.cli.console import StatusLine, device_list, say, wide
from weft.cli.measure import measure_device, measure_link
from weft.errors import ContextError
from weft.files import write_text
from weft.schedule.profile import DeviceProfile, LinkProfile, MemoryProfile, Profile

__all__ = ["calibrate"]

_SHOWN = ("f32", "f16", "q8_0", "q4_K")
"""Types of weights whose speeds are printed; the file has all types."""
_LONGEST = 60
"""Most seconds for one figure."""
_NOT_MEASURED = ("null", "reference")
"""Devices that are measured only if `--devices` names them; nobody runs models on them."""


def calibrate(
    save: Annotated[
        Path | None,
        typer.Option("--save", "-o", metavar="FILE", help="The file to write; default: print it."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Devices, highest priority first, e.g. opencl,cpu; default: all."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", help="CPU threads; default: cores.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="SECONDS", help="How long each figure is measured."),
    ] = 0.2,
) -> None:
    """Measure what ops and copies cost here. The file is for --speeds and --machine."""
    if not 0 < seconds <= _LONGEST:
        raise ContextError(f"--seconds is {seconds:g}; it must be above 0, at most {_LONGEST}")
    names = _all_devices() if devices is None else device_list(devices)
    backends = [
        make_backend(name, **({"n_threads": threads} if name == "cpu" and threads else {}))
        for name in names
    ]
    with StatusLine() as status:
        machine = measure_machine(backends, seconds, status)
    text = machine.to_toml()
    if save is None:
        print(text, end="")
        return
    write_text(save, text)
    _print_figures(machine)
    say(f"speeds saved to {save}; --speeds {save} takes them")


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


def measure_machine(
    backends: list[Backend], seconds: float, progress: Callable[[str], None]
) -> Profile:
    """Measures the profile of the devices; the preferred one is first, a cpu last. `progress` is
    called with a text for each measurement."""
    host = backends[-1].buffer_type
    memories: dict[str, MemoryProfile] = {}
    links: dict[tuple[str, str], LinkProfile] = {}
    profiles: list[DeviceProfile] = []
    for backend in backends:
        own = backend.buffer_type
        if own.name not in memories:
            memories[own.name] = MemoryProfile(
                own.name, own.is_host, backend.memory_limit(), own.alignment, own.max_size
            )
            if own is not host:
                progress(f"measuring {backend.name}: copies")
                to, back = measure_link(own, seconds)
                links[host.name, own.name], links[own.name, host.name] = to, back

        def show(what: str, name: str = backend.name) -> None:
            progress(f"measuring {name}: {what}")

        others = [] if backend is backends[-1] else [backends[-1]]
        profiles.append(measure_device(backend, others, own.name, seconds, show))
    about = f"measured by weft calibrate on {platform.machine()} {platform.system()}"
    return Profile(platform.machine(), tuple(profiles), memories, links, (about,))


def _all_devices() -> list[str]:
    names = [d.name for d in known_backends() if d.available and d.name not in _NOT_MEASURED]
    return [*(name for name in names if name != "cpu"), "cpu"]
