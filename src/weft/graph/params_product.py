"""What MUL_MAT does to its results, as a rewrite asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Activation", "ActivationParams"]


class Activation(IntEnum):
    """Functions of a product: those of UNARY by their names, and CLAMP of MAP."""

    RELU = 0
    """Of UNARY: a NaN gives 0."""
    TANH = 1
    SIGMOID = 2
    SILU = 3
    GELU = 4
    GELU_QUICK = 5
    GELU_ERF = 6
    HARDSWISH = 7
    HARDSIGMOID = 8
    CLAMP = 9
    """Limited to low..high; a NaN stays a NaN."""


@dataclass(frozen=True, slots=True)
class ActivationParams:
    """The function; `low`, `high`: of CLAMP."""

    op: Activation
    low: float = 0.0
    high: float = 0.0
