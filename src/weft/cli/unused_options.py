"""Options of other engines, which are accepted so that their command lines work, without effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.cli.command import usage_error
from weft.cli.console import note
from weft.native import _native
from weft.options import Option, option
from weft.records import dataclass

_NO_EFFECT = (
    "--mmap --jinja --no-jinja --warmup --no-warmup --perf --no-perf --color -co --log-disable "
    "--simple-io --cont-batching -cb --no-mmproj --kv-unified -kvu --no-kv-unified -no-kvu "
    "--op-offload"
)
NO_EFFECT = option(False, "Has no effect.", _NO_EFFECT, hidden=True)
SERVE_NO_EFFECT = option(
    False, "", f"{_NO_EFFECT} --metrics --no-webui --no-slots --webui --slots --props "
    "--disable-log-stats --enable-auto-tool-choice --trust-remote-code --enable-prefix-caching "
    "--enable-chunked-prefill --disable-log-requests --enforce-eager --enable-lora",
    hidden=True,
)  # fmt: skip
"""Options of other engines' servers, accepted without effect."""


@dataclass(frozen=True, slots=True)
class Unused:
    """An option that is accepted and changes nothing."""

    flags: tuple[str, ...]
    same: tuple[str, ...]
    """Values that ask for what weft does anyway; empty for an option without a value."""
    instead: str
    """The behaviour of weft instead, or its option to use."""


_MAPPED = "weights are mapped from the file, or repacked"
_WHOLE = "a weight is on one device as a whole"
_IN_ORDER = "--devices names devices in order of priority, e.g. cuda:1,cpu"
_PARTS = "-ngl, --fit and --place say what is where"
_STAYS = "weights in host memory stay mapped"
_FITS = "--fit and --memory say what must fit"
_DEVICES = (
    Unused(("-sm", "--split-mode"), ("layer", "none"), _WHOLE),
    Unused(("-mg", "--main-gpu"), ("0",), _IN_ORDER),
    Unused(("-ts", "--tensor-split"), ("0",), _PARTS),
    Unused(("-fitt", "--fit-target"), ("0",), _FITS),
    Unused(("-fitc", "--fit-ctx"), ("0",), _FITS),
)
ALONE = Unused(("-np", "--parallel"), ("1",), "weft serve writes several texts at a time")
"""An option that commands for one text accept without effect."""
UNUSED = (
    *_DEVICES,
    ALONE,
    Unused(("-dt", "--defrag-thold"), ("0.1", "-1"), "cells are moved together when they must be"),
    Unused(("--diffusion-visual",), (), "text is shown as it is settled, from the left"),
    Unused(("--check-tensors",), (), "sizes and places of tensors are checked, their values not"),
    Unused(("-lv", "--verbosity", "--log-verbosity"), ("1", "3"), "--quiet and --verbose choose"),
    Unused(("--no-host",), (), _STAYS),
    Unused(("-dio", "--direct-io"), (), _MAPPED),
    Unused(
        ("-cram", "--cache-ram"), ("0",), "weft run, chat and serve keep texts beside the cache"
    ),
    Unused(("--cache-reuse",), ("0",), "equal beginnings of texts are computed once"),
    Unused(("--threads-http",), ("-1",), "one thread reads all requests"),
)
"""Options of llama.cpp's commands, accepted without effect."""
_FOUND = "how a model writes calls and reasoning is found from its chat template"
REASONING = Unused(("--reasoning-format",), ("auto", "deepseek"), _FOUND)
"""An option of commands for chats."""
UNUSED_BY_SERVE = (
    *(unused for unused in UNUSED if unused is not ALONE),
    Unused(("--tool-call-parser",), ("auto",), _FOUND),
    Unused(("--reasoning-parser",), ("auto",), _FOUND),
    REASONING,
)
UNUSED_BY_BENCH = (
    *_DEVICES,
    Unused(("--no-host",), ("0",), _STAYS),
    Unused(("-dio", "--direct-io"), ("0",), _MAPPED),
    Unused(("-mmp", "--mmap"), ("1",), _MAPPED),
    Unused(("-lm", "--load-mode"), ("mmap", "auto"), _MAPPED),
    Unused(("-c", "--ctx-size"), ("0",), "the context is as large as the tests need"),
)
"""Options of llama-bench, accepted without effect; each takes a value."""


def unused_option(unused: Unused) -> tuple[str, tuple[Any, Option]]:
    """The name, the type and the option that a command needs to accept `unused`."""
    name = unused.flags[-1].strip("-").replace("-", "_")
    kind: Any = list[str] | None if unused.same else bool
    default = None if unused.same else False
    return f"unused_{name}", (kind, option(default, "", " ".join(unused.flags), hidden=True))


def note_unused(options: Sequence[Unused], given: Sequence[Sequence[str] | bool | None]) -> None:
    """Notes for each option that was typed what weft does instead."""
    for unused, texts in zip(options, given, strict=True):
        if isinstance(texts, bool):
            if texts:
                note(f"{unused.flags[0]} changes nothing: {unused.instead}")
            continue
        values = [value for text in texts or () for value in text.split(",")]
        if any(value not in unused.same for value in values):
            note(f"{unused.flags[0]} {','.join(values)} changes nothing: {unused.instead}")


_IN_HOST_MEMORY = ("cpu", "blas")
_NEED_CPU = ("blas", "cuda", "gpu", "opencl", "webgpu")
_STANDALONE = ("cpu", "reference", "null")
"""Devices that need no other device behind them."""


def require_text_only(system: str | None, interactive: bool) -> None:
    """Raises a usage error for options of a conversation, which `weft run` does not have."""
    if system is not None:
        raise usage_error("weft run continues a text and has no --system; weft chat has one")
    if interactive:
        raise usage_error("weft run continues a text; a conversation is weft chat")


def note_memory(mlock: bool, no_mmap: bool) -> None:
    """Notes that --mlock and --no-mmap have no effect."""
    if mlock:
        note("--mlock changes nothing: weights are not locked in memory")
    if no_mmap:
        note("--no-mmap changes nothing: weights are mapped from the file, or repacked")


def note_threads(**threads: int | None) -> None:
    """Warns of more threads than there are processors."""
    n_processors = _native.usable_processors()
    for flag, n in threads.items():
        if n is not None and n > n_processors:
            note(
                f"-{flag} {n} is more than the {n_processors} processors there are; threads beyond "
                "them take memory and wait for each other",
                style="yellow",
            )


def note_devices(names: Sequence[str]) -> None:
    """Notes that the device null computes nothing, and that the cpu is added."""
    families = [name.partition(":")[0] for name in names]
    if "null" in families:
        note("the device null computes nothing; what comes out means nothing", style="yellow")
    if families and families[-1] in _NEED_CPU and "cpu" not in families:
        note(f"cpu is added behind {names[-1]}, for ops that it does not run")


def takes_layers(names: Sequence[str], n: int | None) -> bool:
    """True if a device has memory of its own for layers. If none has, notes that `n` has no
    effect."""
    families = [name.partition(":")[0] for name in names]
    if any(f not in _IN_HOST_MEMORY for f in families[:-1]) or families[-1] not in (
        *_IN_HOST_MEMORY, *_STANDALONE,
    ):  # fmt: skip
        return True
    if n is not None and n > 0:
        hint = "; `weft devices` lists those there are, --devices names them"
        note(no_layers_text(names, n) + hint, style="yellow")
    return False


def no_layers_text(names: Sequence[str], n: int) -> str:
    """Says that `-ngl` has no effect on these devices."""
    return f"-ngl {n} changes nothing: no device of {', '.join(names)} has memory of its own"
