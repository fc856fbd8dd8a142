"""Weights that are used as the file has them until they are repacked, after the first batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.cpu.experts import ExpertBufferType
from weft.compiler import Plan

__all__ = ["MOST_IN_PLACE", "can_wait", "in_place"]

MOST_IN_PLACE = 256
"""Most tokens of the first batch on weights in place. Longer prompts gain more from panels than the
first token waits for them."""


def in_place(plan: Plan) -> Plan:
    """The plan with only the layouts that do not wait: those of experts with a budget, which are
    never used in place, and panels of floats, whose sums have another order than those of rows."""
    layouts = {
        w: to
        for w, to in plan.layouts.items()
        if isinstance(to, ExpertBufferType) or not w.dtype.is_quantized
    }
    return replace(plan, layouts=layouts)


def can_wait(plans: Sequence[Plan]) -> bool:
    """Whether the graphs give the same bits with weights in place: all that are repacked become
    panels, whose kernels compute as those of rows do (those of floats do not wait)."""
    layouts = {
        id(to): to
        for plan in plans
        for to in plan.layouts.values()
        if not isinstance(to, ExpertBufferType)
    }
    return bool(layouts) and all(to.layout in ("interleaved", "levels") for to in layouts.values())
