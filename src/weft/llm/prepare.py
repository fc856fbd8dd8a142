"""`prepare`: from the arguments of a context to its plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.base import Backend
from weft.compile import resolve_devices
from weft.dtype import find_dtype
from weft.errors import ContextError
from weft.llm.by_time import by_time
from weft.llm.fit import ADVICE, fitted, require
from weft.llm.kv_cache import CACHE_TYPES, cache_bytes
from weft.llm.memory import require_memory
from weft.llm.model import Model
from weft.llm.plan import ContextOptions, ContextPlan, Placement, Request
from weft.llm.saved_plan import SavedPlan
from weft.schedule import Policy, Profile, load_profile

__all__ = ["prepare"]

DEFAULT_N_UBATCH = 512


def prepare(
    model: Model,
    *,
    n_ctx: int | None = None,
    n_ubatch: int | None = None,
    n_outputs: int | None = None,
    n_seq_max: int | None = None,
    type_k: str | None = None,
    type_v: str | None = None,
    flash: bool | None = None,
    embeddings: bool | None = None,
    repack: bool | None = None,
    devices: Sequence[str | Backend] | None = None,
    n_gpu_layers: int | None = None,
    place: Mapping[str, str] | None = None,
    plan: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    fit: bool = False,
    memory: Mapping[str, int] | None = None,
    policy: Policy = "ggml",
    profile: Profile | str | os.PathLike[str] | None = None,
    rewrites: Sequence[str] | None = None,
    **device_options: Any,
) -> ContextPlan:
    """The plan of a context from the arguments that `Context` takes; see there. With a plan file,
    what is not given is as the file says, and what is given must agree with it. Nothing is
    allocated, no weight is read.

    Raises ContextError for an argument out of range, ScheduleError for a placement that cannot be,
    FormatError for a plan of another model, OutOfMemoryError where nothing fits."""
    saved = None
    if plan is not None:
        saved = SavedPlan(plan) if isinstance(plan, Mapping) else SavedPlan.load(plan)

    def option(name: str, given: Any, default: Any) -> Any:
        if saved is not None:
            given = saved.option(name, given, type(default))
        return default if given is None else given

    sizes = {
        "n_ctx": option("n_ctx", n_ctx, model.config.n_ctx_train),
        "n_ubatch": option("n_ubatch", n_ubatch, DEFAULT_N_UBATCH),
        "n_seq_max": option("n_seq_max", n_seq_max, 1),
    }
    sizes["n_outputs"] = option("n_outputs", n_outputs, sizes["n_ubatch"])
    for name, value in sizes.items():
        if not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise ContextError(f"{name} is {value}; it must be 1 or more")
    sizes["n_ubatch"] = min(sizes["n_ubatch"], sizes["n_ctx"])
    sizes["n_outputs"] = min(sizes["n_outputs"], sizes["n_ubatch"])
    embeds = option("embeddings", embeddings or None, False) or model.architecture.embeds
    options = ContextOptions(
        **sizes,
        type_k=option("type_k", type_k, "f16"),
        type_v=option("type_v", type_v, "f16"),
        flash=option("flash", flash, True),
        embeddings=embeds,
        repack=option("repack", repack, True),
    )
    _require_flash(options)
    if profile is not None and not isinstance(profile, Profile):
        profile = load_profile(profile)
    placement = Placement(
        n_gpu_layers, dict(place or {}), saved, fit, dict(memory or {}), policy, profile
    )
    if devices is None:
        devices = ("cpu",) if saved is None else saved.devices
    backends = resolve_devices(devices, **device_options)
    if all(b.buffer_type is backends[-1].buffer_type for b in backends) and not placement.memory:
        cells = cache_bytes(
            model.config, options.n_ctx, options.type_k, options.type_v, options.n_seq_max
        )
        require_memory({"cache": cells}, ADVICE)
    return _planned(Request(model, options, backends, placement, rewrites))


def _require_flash(options: ContextOptions) -> None:
    name = options.type_v
    if not options.flash and name in CACHE_TYPES and find_dtype(name).is_quantized:
        raise ContextError(
            f"type_v is {name}, but attention without flash reads values column by column and "
            "cannot cut blocks; leave flash on, or make type_v f16"
        )


def _planned(request: Request) -> ContextPlan:
    placement = request.placement
    if placement.saved is not None:
        found = request.as_saved(placement.saved)
        require(request, found)
        return found
    if placement.policy == "cost":
        return by_time(request)
    if placement.fit:
        return fitted(request)
    found = request.planned(request.homes(placement.n_gpu_layers))
    require(request, found)
    return found
