"""`weft devices`: what this machine has."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from weft import _native
from weft.backends import known_backends
from weft.cli.console import wide

__all__ = ["devices"]


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List devices, CPU features and kernel targets, and why a backend is missing."""
    found = known_backends()
    features = _native.cpu_features()
    targets = dict(_native.targets())
    best = _native.best_target()
    cores, processors = _native.usable_cores(), _native.usable_processors()
    if as_json:
        print(
            json.dumps(
                {
                    "devices": [asdict(d) for d in found],
                    "cpu": {
                        "features": features,
                        "cores": cores,
                        "processors": processors,
                        "targets": targets,
                        "target": best,
                    },
                },
                indent=1,
            )
        )
        return
    out = wide()
    out.print(f"cpu: {cores} cores, {processors} processors; features: {' '.join(features)}")
    names = [
        f"{name} (chosen)" if name == best else name if score else f"{name} (not on this machine)"
        for name, score in targets.items()
    ]
    out.print(f"kernel targets: {', '.join(names)}")
    table = Table(box=None, pad_edge=False)
    for column in ("device", "state", "about"):
        table.add_column(column)
    for device in found:
        state = "ready" if device.available else "missing"
        about = device.description if device.available else device.why_not
        table.add_row(device.name, state, about.replace("[", r"\["))
    out.print(table)
