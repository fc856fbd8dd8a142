"""`SoundFamily`: what differs from tower to tower for sound, as data and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.graph.tensor import Tensor
from weft.llm.audio.config import SoundConfig
from weft.llm.audio.sounds import Samples
from weft.llm.weights import Row, Weights
from weft.records import dataclass

__all__ = ["Part", "SoundFamily"]

Part: TypeAlias = tuple[dict[str, NDArray[Any]], int]
"""The values of a graph's inputs for a part of a sound, and how many of its rows count."""


@dataclass(frozen=True, slots=True)
class SoundFamily:
    """A kind of tower for sound."""

    rows: Callable[[SoundConfig], Iterable[Row]]
    """The tensors of a file."""
    inputs: Callable[[SoundConfig], dict[str, Tensor]]
    """The inputs of the graph, by name."""
    forward: Callable[[SoundConfig, Weights, Mapping[str, Tensor]], Tensor]
    """From the inputs to rows [n_out, n]."""
    parts: Callable[[SoundConfig, Samples], Sequence[Part]]
    """The parts of a sound, in order."""
    n_rows: Callable[[SoundConfig, int], int]
    """The number of rows of a sound of so many samples."""
    rate: int
    """Samples per second."""
    before: str = ""
    after: str = ""
    """Text in front of a sound and behind it."""
