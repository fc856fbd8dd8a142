"""The options that commands share: the model, its sizes, and where its parts are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import device_list
from weft.errors import ScheduleError
from weft.flags import FLAGS
from weft.graph.rewrite import REWRITES, chosen_rewrites
from weft.schedule.profile import parse_size

__all__ = [
    "ActivationsName",
    "ActivationsOption",
    "CacheTypeK",
    "CacheTypeV",
    "ContextShift",
    "CtxSize",
    "Devices",
    "Fit",
    "GpuLayers",
    "Keep",
    "Memory",
    "NCopies",
    "NoKvOffload",
    "NoRewrite",
    "Place",
    "PlanFile",
    "PolicyName",
    "PolicyOption",
    "ProfileFile",
    "Repack",
    "SpeedsFile",
    "SwaFull",
    "UbatchSize",
    "parse_count",
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


_COUNT = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)


def parse_count(text: str | int) -> int:
    """4096 of `4096`, `4k` or `0.5k` (k: 1024, m: 1024 k), for counts of tokens."""
    found = _COUNT.fullmatch(str(text).strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no number of tokens; write 4096, 32k or 1m")
    return int(float(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[found[2].lower()])


CtxSize = Annotated[
    int | None,
    typer.Option(
        "--ctx-size", "-c", parser=parse_count, metavar="TOKENS",
        help="Tokens of prompt and text together: 4096, 32k, ...",
    ),
]  # fmt: skip
UbatchSize = Annotated[
    int | None,
    typer.Option(
        "--ubatch-size", "-ub", parser=parse_count, metavar="TOKENS",
        help="Most prompt tokens computed at once; default: 512.",
    ),
]  # fmt: skip
NCopies = Annotated[
    int,
    typer.Option(
        "--n-copies",
        help="Parts of a prompt under way at the same time where a model is on several devices, so "
        "that all have work; each takes compute memory of its own.",
    ),
]
ActivationsOption = Annotated[
    ActivationsName,
    typer.Option(
        "--activations",
        help="native: quantized where the weights are; f32: never; bf16: as native, and prompts "
        "with f16 or f32 weights in bf16, faster and less exact.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        help="Devices, highest priority first, e.g. opencl:0,cpu; `weft devices` lists them. "
        "Default: WEFT_DEVICES, else cpu.",
    ),
]
Fallback = Annotated[
    str | None,
    typer.Option("--fallback", help="Devices to go on with when one of --devices fails, e.g. cpu."),
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
CacheTypeK = Annotated[
    str | None,
    typer.Option(
        "--cache-type-k", "-ctk", help="Type of cached keys: f16 (default), f32, bf16, q8_0, q4_0."
    ),
]
CacheTypeV = Annotated[
    str | None,
    typer.Option("--cache-type-v", "-ctv", help="Type of cached values, as of keys."),
]
ContextShift = Annotated[
    bool,
    typer.Option("--context-shift", help="Go on when the context is full, without its older half."),
]
Keep = Annotated[
    int, typer.Option("--keep", help="With --context-shift: first tokens that stay all the same.")
]
SwaFull = Annotated[
    bool,
    typer.Option(
        "--swa-full/--swa-small",
        help="Sliding-window layers cache the whole context, or only what they can see.",
    ),
]
NoKvOffload = Annotated[
    bool, typer.Option("--no-kv-offload", "-nkvo", help="Keep the KV cache in host memory.")
]
NoRewrite = Annotated[
    list[str] | None,
    typer.Option(
        "--no-rewrite",
        help=f"Leave out a fusion of nodes, or `all`; repeatable. There are {', '.join(REWRITES)}.",
    ),
]
_SPEEDS = "Speeds of the devices: a file of `weft calibrate`."
ProfileFile = Annotated[str | None, typer.Option("--speeds", "--profile", help=_SPEEDS)]
SpeedsFile = Annotated[str | None, typer.Option("--speeds", help=_SPEEDS)]
"""The same where --profile means to measure."""
Repack = Annotated[
    bool | None,
    typer.Option(
        "--repack/--no-repack",
        help="Bring weights into the layout that kernels like best when the model is loaded, or "
        "use them as the file has them. Default: repack.",
    ),
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
    repack: bool | None = None,
    no_rewrite: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The options as arguments of `Context`, `LLM` and `prepare`."""
    return {
        # nothing said: a plan file names its devices, and else it is the cpu
        "devices": device_list(devices) if _says_devices(devices, plan) else None,
        "n_gpu_layers": gpu_layers,
        "place": dict(_pairs("--place", place)),
        "plan": plan,
        "fit": fit,
        "memory": {name: parse_size(size) for name, size in _pairs("--memory", memory)},
        "policy": policy.value,
        "profile": profile,
        "repack": repack,
        "rewrites": _without(no_rewrite),
    }


def _says_devices(devices: str | None, plan: Path | None) -> bool:
    return devices is not None or (plan is None and bool(FLAGS.devices))


def _without(names: Sequence[str] | None) -> list[str] | None:
    """The rewrites that are left; None where nothing was said."""
    if not names:
        return None
    left = chosen_rewrites()
    return sorted(left - (set(REWRITES) if "all" in names else chosen_rewrites(names)))


def _pairs(option: str, texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """`a=b` of each text, or of each part of it between commas."""
    for text in texts or ():
        for part in text.split(","):
            left, equals, right = (p.strip() for p in part.rpartition("="))
            if not (left and equals and right):
                raise ScheduleError(f"{option} {part!r}: write NAME=VALUE")
            yield left, right
