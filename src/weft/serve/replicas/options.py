"""How many replicas there are, and when there are more."""

from __future__ import annotations

from weft.errors import ContextError
from weft.records import dataclass

__all__ = ["ReplicaOptions"]


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
        if not 1 <= self.least <= self.most:
            raise ContextError(
                f"replicas are {self.least} to {self.most}; the least comes first, and is 1 or more"
            )

    @property
    def varies(self) -> bool:
        """True if the number of replicas follows the load."""
        return self.least < self.most
