"""`prepare` makes the plan of a context from its arguments."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from weft.backends.base import Backend, OnMachine
from weft.compiler import resolve_devices
from weft.errors import OutOfMemoryError, ScheduleError
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
from weft.llm.planning.plan import ContextPlan, OtherSizes
from weft.llm.planning.request import Request
from weft.llm.planning.saved_plan import SavedPlan
from weft.options import require_options
from weft.schedule import Profile, load_profile

__all__ = ["given_plan", "prepare"]

MOST_COPIES = 4
"""The most ubatches under way unless the caller asks for more."""


def prepare(
    model: Model,
    *,
    n_ctx: int | None = None,
    must_fit: bool = True,
    **arguments: Unpack[PlanArguments],
) -> ContextPlan:
    """Plans a context from the arguments of `Context`, without allocating memory or reading
    weights.

    Without `must_fit`, the plan may need more memory than there is now, to know how much it needs.

    With a plan file, omitted arguments have the values of the file, and the others must agree with
    it. Raises ContextError for an argument out of range, ScheduleError for an impossible placement,
    FormatError for a plan of another model, OutOfMemoryError if nothing fits, and ArgumentError for
    an unknown option."""
    require_options("a context", arguments, (*PLAN_OPTIONS, "n_ctx"), "help(weft.LLM)")
    saved = given_plan(arguments)
    options = context_options(model, n_ctx, arguments, saved)
    profile = arguments.get("profile")
    if profile is not None and not isinstance(profile, Profile):
        profile = load_profile(profile)
    placement = Placement(
        arguments.get("n_gpu_layers"),
        dict(arguments.get("place") or {}),
        saved,
        arguments.get("fit", False),
        dict(arguments.get("memory") or {}),
        arguments.get("policy", "ggml"),
        profile,
        arguments.get("offload_kv", True),
        arguments.get("beside", ()),
    )
    devices = arguments.get("devices")
    if devices is None:
        devices = ("cpu",) if saved is None else saved.devices
    if arguments.get("machines"):
        devices = _with_machines(devices, arguments)
    backends = _backends(devices, {k: v for k, v in arguments.items() if k in DEVICE_OPTIONS})
    if arguments.get("n_copies") is None:
        options = replace(options, n_copies=_copies_for(backends, placement, model))
    alone = all(b.buffer_type is backends[-1].buffer_type for b in backends)
    if must_fit and alone and not placement.memory:
        require_memory({"cache": options.cache_bytes(model.config)}, ADVICE)
    request = Request(model, options, backends, placement, arguments.get("rewrites"))
    plan = _planned(request, must_fit)
    if saved is None and placement.policy == "ggml" and not placement.fit:

        def again(sizes: OtherSizes) -> ContextPlan:
            changed = arguments.copy()
            changed["n_ubatch"], changed["n_seq_max"] = sizes.n_ubatch, sizes.n_seq_max
            changed["type_k"], changed["type_v"] = sizes.type_k, sizes.type_v
            if sizes.n_outputs is not None:
                changed["n_outputs"] = sizes.n_outputs
            changed["n_copies"] = options.n_copies
            other = context_options(model, sizes.n_ctx, changed)
            names = arguments.get("rewrites")
            request = Request(model, other, backends, placement, names, memory="bound")
            return request.planned(request.homes(placement.n_gpu_layers))

        plan.again = again
    return plan


def _with_machines(
    devices: Sequence[str | Backend], arguments: PlanArguments
) -> Sequence[str | Backend]:
    """The devices of other machines, and these behind them."""
    from weft.backends.remote import RemoteBackend
    from weft.backends.remote.group import machine_group

    group = machine_group(arguments["machines"], arguments.get("machine_key"))
    return [*group.devices(), *(d for d in devices if not isinstance(d, RemoteBackend))]


def _backends(devices: Sequence[str | Backend], options: dict[str, Any]) -> list[Backend]:
    """The backends of a list of devices, with the cpu added if the last one is not a cpu."""
    # the options are for the cpu, which may not be among the devices
    has_cpu = any(isinstance(d, str) and d.partition(":")[0] == "cpu" for d in devices)
    backends = resolve_devices(devices, **(options if has_cpu else {}))
    if backends and isinstance(devices[-1], str) and backends[-1].kind != "CPU":
        if any(b.name == "cpu" for b in backends):
            order = ", ".join([*(b.name for b in backends if b.name != "cpu"), "cpu"])
            raise ScheduleError(f"the cpu must be the last of the devices: {order}")
        backends += resolve_devices(["cpu"], **options)
    return backends


def _copies_for(backends: Sequence[Backend], placement: Placement, model: Model) -> int:
    """Ubatches under way where the caller does not say: one for each machine that may have layers,
    this one among them, so that all work."""
    n = len({id(b.machine) for b in backends if isinstance(b, OnMachine)})
    given = placement.n_gpu_layers
    if n and isinstance(given, int) and 0 < given < model.config.n_layer:
        n += 1
    return min(max(n, 1), MOST_COPIES)


def given_plan(arguments: PlanArguments) -> SavedPlan | None:
    """Reads the plan file among the arguments, if there is one."""
    plan = arguments.get("plan")
    if plan is None:
        return None
    return SavedPlan(plan) if isinstance(plan, Mapping) else SavedPlan.load(plan)


def _planned(request: Request, must_fit: bool) -> ContextPlan:
    placement = request.placement
    if placement.saved is not None:
        plan = request.as_saved(placement.saved)
        require(request, plan)
        return plan
    if placement.policy == "cost":
        return by_time(request)
    if placement.fit:
        return fitted(request)
    plan = request.planned(request.homes(placement.n_gpu_layers))
    if not must_fit:
        return plan
    try:
        require(request, plan)
    except OutOfMemoryError as error:
        smaller = plan.without_growth()
        if smaller is plan:
            raise
        require(request, smaller)
        warnings.warn(f"codebook weights stay as the file has them, slower: {error}", stacklevel=3)
        return smaller
    return plan
