"""Weights that are used as the file has them until they are repacked, after the first batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.cpu.experts import ExpertBufferType
from weft.backends.cpu.ordered import OrderedBufferType
from weft.backends.memory import WeightBufferType
from weft.compiler import Plan
from weft.graph.tensor import Tensor

MOST_IN_PLACE = 256
"""Maximum number of tokens of the first batch on weights in place. Longer prompts gain more from
repacked weights than the first token waits for them."""


_ORDERED = OrderedBufferType()


def in_place(plan: Plan) -> Plan:
    """The plan with only the layouts that do not wait: those of experts with a budget, which are
    never used in place, and of weights in another machine's memory. Weights of floats, whose panels
    sum in another order than rows, stay where they are and are multiplied in that order."""
    layouts: dict[Tensor, WeightBufferType] = {}
    for weight, to in plan.layouts.items():
        if isinstance(to, ExpertBufferType) or _is_elsewhere(weight):
            layouts[weight] = to
        elif not weight.dtype.is_quantized:
            layouts[weight] = _ORDERED
    return replace(plan, layouts=layouts)


def can_wait(plans: Sequence[Plan]) -> bool:
    """Whether the graphs give the same bits with weights in place: all that are repacked become
    panels, whose kernels compute as those that read weights in place do."""
    layouts = {
        id(to): to
        for plan in plans
        for weight, to in plan.layouts.items()
        if not isinstance(to, ExpertBufferType) and not _is_elsewhere(weight)
    }
    return bool(layouts) and all(to.layout in ("interleaved", "levels") for to in layouts.values())


def _is_elsewhere(weight: Tensor) -> bool:
    """Whether a weight lives in memory that the host does not address."""
    home = None if weight.buffer is None else weight.buffer.type
    return home is not None and not home.is_host
