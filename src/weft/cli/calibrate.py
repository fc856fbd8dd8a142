"""`weft calibrate`: measures this machine's devices and writes a machine profile."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

from weft.backends import Backend, known_backends, make_backend
from weft.cli.console import device_list, errors
from weft.cli.measure import measure_device, measure_link
from weft.files import write_text
from weft.schedule.profile import DeviceProfile, LinkProfile, MemoryProfile, Profile

__all__ = ["calibrate"]

_NOT_MEASURED = ("null", "reference")
"""Devices that nobody runs models on; `--devices` measures them all the same."""


def calibrate(
    save: Annotated[
        Path | None, typer.Option("--save", "-o", help="The file to write; default: print it.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="Devices, highest priority first, e.g. opencl,cpu; default: all."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", help="CPU threads; default: cores.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long each figure is measured, in seconds.")
    ] = 0.2,
) -> None:
    """Measure what ops and copies cost here. It is a profile for --policy cost and --machine."""
    names = _all_devices() if devices is None else device_list(devices)
    backends = [
        make_backend(name, **({"n_threads": threads} if name == "cpu" and threads else {}))
        for name in names
    ]
    text = measure_machine(backends, seconds).to_toml()
    if save is None:
        print(text, end="")
        return
    write_text(save, text)
    errors.print(f"profile saved to {save}", markup=False, soft_wrap=True)


def measure_machine(backends: list[Backend], seconds: float) -> Profile:
    """The profile of these devices (highest priority first, a CPU type last)."""
    host = backends[-1].buffer_type
    memories: dict[str, MemoryProfile] = {}
    links: dict[tuple[str, str], LinkProfile] = {}
    found: list[DeviceProfile] = []
    for backend in backends:
        own = backend.buffer_type
        if own.name not in memories:
            memories[own.name] = MemoryProfile(
                own.name, own.is_host, backend.memory_limit(), own.alignment, own.max_size
            )
            if own is not host:
                _progress(f"{backend.name}: copies")
                to, back = measure_link(own, seconds)
                links[host.name, own.name], links[own.name, host.name] = to, back

        def progress(what: str, name: str = backend.name) -> None:
            _progress(f"{name}: {what}")

        others = [] if backend is backends[-1] else [backends[-1]]
        found.append(measure_device(backend, others, own.name, seconds, progress))
    about = f"measured by weft calibrate on {platform.machine()} {platform.system()}"
    return Profile(platform.machine(), tuple(found), memories, links, (about,))


def _all_devices() -> list[str]:
    names = [d.name for d in known_backends() if d.available and d.name not in _NOT_MEASURED]
    return [*(name for name in names if name != "cpu"), "cpu"]


def _progress(what: str) -> None:
    errors.print(what, markup=False, soft_wrap=True)
