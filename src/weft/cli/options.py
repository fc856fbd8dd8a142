"""The options that commands share: sizes of a context, devices and placement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import ADVANCED, DEVICES, MODEL, PLACEMENT, SWITCH
from weft.cli.console import device_list
from weft.errors import ContextError, ScheduleError
from weft.flags import FLAGS
from weft.graph.rewrite import REWRITES, chosen_rewrites
from weft.schedule.profile import parse_size

__all__ = [
    "ActivationsName",
    "ActivationsOption",
    "BatchSize",
    "CacheTypeK",
    "CacheTypeV",
    "ContextShift",
    "CtxSize",
    "Devices",
    "Escape",
    "ExpertBudget",
    "ExpertPolicyName",
    "ExpertPolicyOption",
    "Fit",
    "FlashAttention",
    "GpuLayers",
    "Images",
    "Keep",
    "ListDevices",
    "Memory",
    "MmProj",
    "NCopies",
    "NoKvOffload",
    "NoRewrite",
    "OldSpeedsFile",
    "ParseSpecial",
    "Place",
    "PlanFile",
    "PolicyName",
    "PolicyOption",
    "PoolingName",
    "Repack",
    "Special",
    "SpeedsFile",
    "SwaFull",
    "UbatchSize",
    "WeightType",
    "context_option",
    "most_tokens",
    "parse_count",
    "parse_layers",
    "parse_switch",
    "placement_arguments",
]


class PolicyName(StrEnum):
    """The policies by which nodes are placed."""

    ggml = "ggml"
    cost = "cost"


class PoolingName(StrEnum):
    """The ways to pool the embeddings of a text's tokens."""

    none = "none"
    mean = "mean"
    cls = "cls"
    last = "last"
    rank = "rank"


class ExpertPolicyName(StrEnum):
    """The policies by which experts give way to others."""

    auto = "auto"
    lru = "lru"
    lfu = "lfu"
    predict = "predict"


class ActivationsName(StrEnum):
    """The precision of activations in cpu kernels."""

    native = "native"
    f32 = "f32"
    bf16 = "bf16"


_COUNT = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)


def parse_count(text: str | int) -> int:
    """Parses a number of tokens, such as `4096`, `4k` or `0.5k` (k: 1024, m: 1024 k)."""
    count = _COUNT.fullmatch(str(text).strip())
    if count is None:
        raise typer.BadParameter(f"{text!r} is no number of tokens; write 4096, 32k or 1m")
    return int(float(count[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[count[2].lower()])


def parse_layers(text: str | int) -> int:
    """Parses a number of layers, such as `20`; -1 for `all`, `auto` or `-1`."""
    word = str(text).strip().lower()
    if word in ("all", "auto", "-1"):
        return -1
    if not word.isdigit():
        raise typer.BadParameter(f"{text!r} is no number of layers; write 20, or all")
    return int(word)


def parse_switch(text: str) -> bool:
    """True for `on` and `auto`, False for `off`."""
    value = SWITCH.get(text.strip().lower())
    if value is None:
        raise ContextError(f"-fa {text}: write on, off or auto")
    return value


def most_tokens(n_predict: int) -> int | None:
    """The value of -n as `max_tokens`; raises ContextError for a value without a meaning."""
    if n_predict < -2:
        raise ContextError(
            f"-n is {n_predict}; it must be 0 or more, -1 (no limit) or -2 (until the context "
            "is full)"
        )
    return None if n_predict < 0 else n_predict


def context_option(about: str) -> Any:
    """The option -c; `about` says what it counts, and its default."""
    return typer.Option(
        "--ctx-size", "-c", parser=parse_count, metavar="TOKENS", rich_help_panel=MODEL, help=about
    )


CtxSize = Annotated[
    int | None,
    context_option(
        "Tokens of prompt and text together: 4096, 32k; 0: as many as the model was trained for. "
        "Default: the same, at most 4096."
    ),
]
Escape = Annotated[
    bool | None,
    typer.Option(
        "--escape/--no-escape", "-e", show_default=False,
        help=r"\\n in texts of the command line is a line break, ...; with -e in files, too.",
    ),
]  # fmt: skip
ParseSpecial = Annotated[
    bool,
    typer.Option(
        "--parse-special/--no-parse-special", show_default=False,
        help="Read names of control tokens in the text as these tokens, which is the default.",
    ),
]  # fmt: skip
Special = Annotated[
    bool, typer.Option("--special", "-sp", help="Write control tokens that the model draws, too.")
]
MmProj = Annotated[
    Path | None,
    typer.Option(
        "--mmproj", "-mm", metavar="FILE", rich_help_panel=MODEL,
        help="The model's towers for images and sound, a GGUF file.",
    ),
]  # fmt: skip
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="An image in front of the text; repeatable."),
]
Sounds = Annotated[
    list[Path] | None,
    typer.Option("--audio", metavar="FILE", help="A sound in front of the text; repeatable."),
]
WeightType = Annotated[
    str | None,
    typer.Option(
        "--type", metavar="TYPE", rich_help_panel=MODEL,
        help="Quantize the weights while loading: q4_K_M, q8_0, ... Default: as they are stored.",
    ),
]  # fmt: skip
UbatchSize = Annotated[
    int | None,
    typer.Option(
        "--ubatch-size", "-ub", parser=parse_count, metavar="TOKENS", rich_help_panel=MODEL,
        help="Most prompt tokens computed at once. Default: 512.",
    ),
]  # fmt: skip
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", "-b", parser=parse_count, metavar="TOKENS", hidden=True,
        help="Changes nothing: prompts of any length are taken, -ub at once.",
    ),
]  # fmt: skip
NCopies = Annotated[
    int | None,
    typer.Option(
        "--n-copies", rich_help_panel=ADVANCED,
        help="Parts of a prompt computed at the same time if a model is on several devices, so "
        "that all have work; each needs compute memory of its own. Default: 1, or one for each "
        "machine, at most 4.",
    ),
]  # fmt: skip
ActivationsOption = Annotated[
    ActivationsName,
    typer.Option(
        "--activations", rich_help_panel=ADVANCED,
        help="native: quantized if the weights are; f32: never quantized; bf16: like native, but "
        "prompts with f16 or f32 weights in bf16, faster and less exact.",
    ),
]  # fmt: skip
FlashAttention = Annotated[
    str,
    typer.Option(
        "--flash-attn", "-fa", metavar="on|off|auto", rich_help_panel=MODEL,
        help="Attention as one operation; off: as several.",
    ),
]  # fmt: skip
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices", "--device", "-dev", metavar="NAMES", rich_help_panel=DEVICES,
        help="Devices, highest priority first, e.g. opencl:0,cpu; `weft devices` lists them. "
        "Default: WEFT_DEVICES, else cpu.",
    ),
]  # fmt: skip


def _list_devices(wanted: bool) -> None:
    if wanted:
        from weft.cli.devices import print_devices

        print_devices()
        raise typer.Exit


ListDevices = Annotated[
    bool,
    typer.Option("--list-devices", callback=_list_devices, is_eager=True, hidden=True),
]
"""Lists the devices as `weft devices` does, and nothing else."""
Fallback = Annotated[
    str | None,
    typer.Option(
        "--fallback", metavar="NAMES", rich_help_panel=DEVICES,
        help="Devices to continue on if one of --devices fails, e.g. cpu.",
    ),
]  # fmt: skip
GpuLayers = Annotated[
    int | None,
    typer.Option(
        "-ngl", "--gpu-layers", "--n-gpu-layers", parser=parse_layers, metavar="N|all",
        rich_help_panel=DEVICES,
        help="Number of layers, counted from the last, on the first device with memory of its own; "
        "one more than the model has includes the output. Default: all.",
    ),
]  # fmt: skip
Place = Annotated[
    list[str] | None,
    typer.Option(
        "--place", metavar="GLOB=DEVICE", rich_help_panel=PLACEMENT,
        help="Device for weights whose names match, e.g. 'blk.*.ffn_*_exps=cpu'; repeatable, the "
        "first match wins.",
    ),
]  # fmt: skip
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", rich_help_panel=PLACEMENT,
        help="A plan file of `weft explain --save`.",
    ),
]  # fmt: skip
Fit = Annotated[
    bool,
    typer.Option(
        "--fit", "-fit", rich_help_panel=PLACEMENT,
        help="Offload as many layers as fit into the memory of each device.",
    ),
]  # fmt: skip
Memory = Annotated[
    list[str] | None,
    typer.Option(
        "--memory", metavar="DEVICE=SIZE", rich_help_panel=PLACEMENT,
        help="Memory of a device that plans may use, e.g. opencl=6GiB.",
    ),
]  # fmt: skip
PolicyOption = Annotated[
    PolicyName,
    typer.Option(
        "--policy", rich_help_panel=PLACEMENT,
        help="Place by fixed rules, or by predicted time (cost; needs --speeds).",
    ),
]  # fmt: skip
CacheTypeK = Annotated[
    str | None,
    typer.Option(
        "--cache-type-k", "-ctk", metavar="TYPE", rich_help_panel=MODEL,
        help="Type of cached keys: f16, f32, bf16, q8_0, q4_0. Default: f16.",
    ),
]  # fmt: skip
CacheTypeV = Annotated[
    str | None,
    typer.Option(
        "--cache-type-v", "-ctv", metavar="TYPE", rich_help_panel=MODEL,
        help="Type of cached values, as of keys.",
    ),
]  # fmt: skip
ContextShift = Annotated[
    bool,
    typer.Option(
        "--context-shift/--no-context-shift", rich_help_panel=MODEL,
        help="Go on when the context is full, dropping its older half.",
    ),
]  # fmt: skip
Keep = Annotated[
    int,
    typer.Option(
        "--keep", rich_help_panel=MODEL,
        help="With --context-shift: number of first tokens that are not dropped; -1: the prompt.",
    ),
]  # fmt: skip
SwaFull = Annotated[
    bool,
    typer.Option(
        "--swa-full/--swa-small", rich_help_panel=ADVANCED,
        help="Sliding-window layers cache the whole context, or only what they can see.",
    ),
]  # fmt: skip
NoKvOffload = Annotated[
    bool,
    typer.Option(
        "--no-kv-offload", "-nkvo", rich_help_panel=DEVICES,
        help="Keep the KV cache in host memory.",
    ),
]  # fmt: skip
NoRewrite = Annotated[
    list[str] | None,
    typer.Option(
        "--no-rewrite", metavar="NAME", rich_help_panel=ADVANCED,
        help=f"Leave out a fusion of nodes, or `all`; repeatable. There are {', '.join(REWRITES)}.",
    ),
]  # fmt: skip
SpeedsFile = Annotated[
    str | None,
    typer.Option(
        "--speeds", metavar="FILE", rich_help_panel=PLACEMENT,
        help="Speeds of the devices: a file of `weft calibrate`.",
    ),
]  # fmt: skip
OldSpeedsFile = Annotated[str | None, typer.Option("--profile", metavar="FILE", hidden=True)]
"""The former name of --speeds, for commands in which --profile does not mean to measure."""
Repack = Annotated[
    bool | None,
    typer.Option(
        "--repack/--no-repack", " /-nr", rich_help_panel=ADVANCED,
        help="Convert weights on loading to the layout that is fastest for kernels, or use them as "
        "the file has them. Default: repack.",
    ),
]  # fmt: skip

ExpertBudget = Annotated[
    str | None,
    typer.Option(
        "--expert-budget", metavar="SIZE", rich_help_panel=PLACEMENT,
        help="Memory for the experts of a mixture, e.g. 4G; the others stay in the file and are "
        "read when they are chosen. Default: all are loaded.",
    ),
]  # fmt: skip
ExpertPolicyOption = Annotated[
    ExpertPolicyName | None,
    typer.Option(
        "--expert-policy", rich_help_panel=ADVANCED,
        help="With --expert-budget, which expert gives way: the one used longest ago (lru), the "
        "one used least lately (lfu), or as lfu, reading ahead what the next layer probably needs "
        "(predict); auto simulates them with what was chosen lately, and takes the best.",
    ),
]  # fmt: skip


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
    """Converts options to arguments of `Context`, `LLM` and `prepare`."""
    return {
        # None: the devices of the plan file, or the cpu
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
    """The rewrites to use without those in `names`; None: the default."""
    if not names:
        return None
    excluded = set(REWRITES) if "all" in names else chosen_rewrites(names)
    return sorted(chosen_rewrites() - excluded)


def _pairs(option: str, texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Yields the two sides of each `a=b`; a text may have several, separated by commas."""
    for text in texts or ():
        for part in text.split(","):
            left, equals, right = (p.strip() for p in part.rpartition("="))
            if not (left and equals and right):
                raise ScheduleError(f"{option} {part!r}: write NAME=VALUE")
            yield left, right
