"""The options that say where a model's parts are, shared by run, bench and explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import device_list
from weft.errors import ScheduleError
from weft.schedule.profile import parse_size

__all__ = [
    "ActivationsName",
    "ActivationsOption",
    "Devices",
    "Fit",
    "GpuLayers",
    "Memory",
    "Place",
    "PlanFile",
    "PolicyName",
    "PolicyOption",
    "ProfileFile",
    "placement_arguments",
]


class PolicyName(StrEnum):
    """How nodes find their device."""

    ggml = "ggml"
    cost = "cost"


class ActivationsName(StrEnum):
    """What cpu kernels make of activations."""

    native = "native"
    f32 = "f32"
    bf16 = "bf16"


ActivationsOption = Annotated[
    ActivationsName,
    typer.Option(
        "--activations",
        help="native: quantized where the weights are; f32: never; bf16: as native, and prompts "
        "with f16 or f32 weights in bf16, faster and less exact.",
    ),
]
Devices = Annotated[
    str | None, typer.Option(help="Devices, highest priority first, e.g. reference,cpu.")
]
GpuLayers = Annotated[
    int | None,
    typer.Option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        help="Layers, from the last to the first, on the first device with memory of its own; one "
        "more than there are takes the output too. Default: all.",
    ),
]
Place = Annotated[
    list[str] | None,
    typer.Option(
        help="GLOB=DEVICE: weights whose names match live there, e.g. 'blk.*.ffn_*_exps=cpu'; "
        "repeatable, the first match wins.",
    ),
]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="A plan file of `weft explain --save`.")
]
Fit = Annotated[
    bool, typer.Option("--fit", help="Offload as many layers as fit the memory of each device.")
]
Memory = Annotated[
    list[str] | None,
    typer.Option(help="DEVICE=SIZE: memory that plans may use there, e.g. opencl=6GiB."),
]
PolicyOption = Annotated[
    PolicyName,
    typer.Option("--policy", help="Place by the reference's rules, or by predicted time."),
]
ProfileFile = Annotated[
    str | None,
    typer.Option("--profile", help="Speeds of the devices: a file of `weft calibrate`."),
]


def placement_arguments(
    devices: str | None,
    gpu_layers: int | None,
    place: Sequence[str] | None,
    plan: Path | None,
    fit: bool,
    memory: Sequence[str] | None,
    policy: PolicyName,
    profile: str | None,
) -> dict[str, Any]:
    """The options as arguments of `Context`, `LLM` and `prepare`."""
    return {
        # a plan file names its devices
        "devices": None if plan is not None and devices is None else device_list(devices),
        "n_gpu_layers": gpu_layers,
        "place": dict(_pairs("--place", place)),
        "plan": plan,
        "fit": fit,
        "memory": {name: parse_size(size) for name, size in _pairs("--memory", memory)},
        "policy": policy.value,
        "profile": profile,
    }


def _pairs(option: str, texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """`a=b` of each text, or of each part of it between commas."""
    for text in texts or ():
        for part in text.split(","):
            left, equals, right = (p.strip() for p in part.rpartition("="))
            if not (left and equals and right):
                raise ScheduleError(f"{option} {part!r}: write NAME=VALUE")
            yield left, right
