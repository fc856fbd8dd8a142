"""`prepare`: from the arguments of a context to its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from weft.backends.base import Backend
from weft.compiler import resolve_devices
from weft.errors import ScheduleError
from weft.llm.cache.kv_cache import cache_bytes
from weft.llm.model import Model
from weft.llm.planning.fit import ADVICE, fitted, require
from weft.llm.planning.least_time import by_time
from weft.llm.planning.memory import require_memory
from weft.llm.planning.options import (
    DEVICE_OPTIONS,
    PLAN_OPTIONS,
    Placement,
    PlanArguments,
    context_options,
)
from weft.llm.planning.plan import ContextPlan, Request
from weft.llm.planning.saved_plan import SavedPlan
from weft.options import require_options
from weft.schedule import Profile, load_profile

__all__ = ["given_plan", "prepare"]


def prepare(
    model: Model, *, n_ctx: int | None = None, **given: Unpack[PlanArguments]
) -> ContextPlan:
    """The plan of a context from the arguments that `Context` takes; see there. With a plan file,
    what is not given is as the file says, and what is given must agree with it. Nothing is
    allocated, no weight is read.

    Raises ContextError for an argument out of range, ScheduleError for a placement that cannot be,
    FormatError for a plan of another model, OutOfMemoryError where nothing fits, ArgumentError for
    an option that there is not."""
    require_options("a context", given, (*PLAN_OPTIONS, "n_ctx"), "help(weft.LLM)")
    saved = given_plan(given)
    options = context_options(model, n_ctx, given, saved)
    profile = given.get("profile")
    if profile is not None and not isinstance(profile, Profile):
        profile = load_profile(profile)
    placement = Placement(
        given.get("n_gpu_layers"),
        dict(given.get("place") or {}),
        saved,
        given.get("fit", False),
        dict(given.get("memory") or {}),
        given.get("policy", "ggml"),
        profile,
        given.get("offload_kv", True),
    )
    devices = given.get("devices")
    if devices is None:
        devices = ("cpu",) if saved is None else saved.devices
    backends = _backends(devices, {k: v for k, v in given.items() if k in DEVICE_OPTIONS})
    if all(b.buffer_type is backends[-1].buffer_type for b in backends) and not placement.memory:
        cells = cache_bytes(
            model.config,
            options.n_ctx,
            options.type_k,
            options.type_v,
            options.n_seq_max,
            options.window_size(model.config),
        )
        require_memory({"cache": cells}, ADVICE)
    return _planned(Request(model, options, backends, placement, given.get("rewrites")))


def _backends(devices: Sequence[str | Backend], options: dict[str, Any]) -> list[Backend]:
    """The devices of a list; the cpu behind them where the last one named cannot stand there."""
    # the options are the cpu's, and are of no use to a context without one
    named = any(isinstance(d, str) and d.partition(":")[0] == "cpu" for d in devices)
    found = resolve_devices(devices, **(options if named else {}))
    if found and isinstance(devices[-1], str) and found[-1].kind != "CPU":
        if any(b.name == "cpu" for b in found):
            rest = ", ".join([*(b.name for b in found if b.name != "cpu"), "cpu"])
            raise ScheduleError(f"the cpu must be the last of the devices: {rest}")
        found += resolve_devices(["cpu"], **options)
    return found


def given_plan(given: PlanArguments) -> SavedPlan | None:
    """The plan file among the arguments, read."""
    plan = given.get("plan")
    if plan is None:
        return None
    return SavedPlan(plan) if isinstance(plan, Mapping) else SavedPlan.load(plan)


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
