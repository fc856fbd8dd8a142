"""Going on without a device that failed: the same context on other devices."""

from __future__ import annotations

import warnings
from typing import cast

from weft.errors import DeviceError, OutOfMemoryError
from weft.execute import Progress
from weft.llm.graphs import Graphs
from weft.llm.model import Model
from weft.llm.options import PlanArguments
from weft.llm.plan import ContextPlan
from weft.llm.prepare import prepare

__all__ = ["load", "without_failed"]

_PLACEMENT = ("n_gpu_layers", "place", "plan", "fit", "memory", "policy", "profile", "fallback")
"""What said where things go; it was meant for the devices that are given up."""


def load(
    model: Model, n_ctx: int | None, options: PlanArguments, progress: Progress | None
) -> tuple[ContextPlan, Graphs, PlanArguments]:
    """Plan, memory and programs of a context, and the options that they are made with: those given,
    or those of the fallback where a device fails to be opened or loaded. A plan that needs more
    memory than there is stays an error."""
    try:
        plan = prepare(model, n_ctx=n_ctx, **options)
    except OutOfMemoryError:
        raise
    except DeviceError as error:
        other = without_failed(options, error)
        if other is None:
            raise
        return load(model, n_ctx, other, progress)
    try:
        plan.cache.allocate()
        return plan, Graphs(plan, progress), options
    except DeviceError as error:
        other = without_failed(options, error)
        if other is None:
            raise
        size = plan.options.n_ctx
    return load(model, size, other, progress)


def without_failed(options: PlanArguments, error: DeviceError) -> PlanArguments | None:
    """The options with the fallback's devices, placed as by default; None where there is none.
    Warns with what failed."""
    devices = options.get("fallback")
    if not devices:
        return None
    names = ", ".join(d if isinstance(d, str) else d.name for d in devices)
    warnings.warn(f"going on with {names}: {error}", RuntimeWarning, stacklevel=4)
    kept = {name: value for name, value in options.items() if name not in _PLACEMENT}
    return cast("PlanArguments", kept | {"devices": devices})
