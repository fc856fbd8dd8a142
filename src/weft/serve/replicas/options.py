"""How many replicas there are, and when there are more."""

from __future__ import annotations

import re

from weft.errors import ContextError
from weft.records import dataclass

__all__ = ["ReplicaOptions", "parse_replicas"]

MOST_REPLICAS = 1000
_RANGE = re.compile(r"(\d{1,6})(?:\.\.(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The options of replicas. Raises ContextError for a value out of range."""

    least: int = 1
    """Replicas that are always there."""
    most: int = 1
    """Replicas under load; the same as `least`: their number does not change."""
    cpus: float = 1
    """CPUs of the cluster that each takes."""
    upscale_delay: float = 10.0
    """Seconds of more requests than the replicas can compute after which there is another one."""
    downscale_delay: float = 300.0
    """Seconds of fewer requests after which one ends."""
    health_period: float = 5.0
    """Seconds between two questions to a replica whether it is well."""
    start_seconds: float = 3600.0
    """Most seconds until the first replicas have loaded the model."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= MOST_REPLICAS:
            raise ContextError(
                f"--replicas {self.least}..{self.most}: give a number, or the least and the most, "
                f"of 1 to {MOST_REPLICAS}, e.g. 2..8"
            )

    @property
    def varies(self) -> bool:
        """True if the number of replicas follows the load."""
        return self.least < self.most


def parse_replicas(text: str) -> tuple[int, int]:
    """The least and the most replicas of `4` or `2..8`. Raises ContextError for another text."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ContextError(f"--replicas {text[:40]}: give a number or a range, e.g. 4 or 2..8")
    least = int(match[1])
    options = ReplicaOptions(least, least if match[2] is None else int(match[2]))
    return options.least, options.most
