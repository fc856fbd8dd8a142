"""The bytes that plans of contexts need, for one model or several together."""

from __future__ import annotations

from collections.abc import Iterable

from weft.llm.planning.plan import ContextPlan
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """Bytes by what they are for, over all memories."""

    weights: int = 0
    cache: int = 0
    compute: int = 0
    on_devices: int = 0
    """Bytes of all three that are not in host memory."""

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.weights + self.cache + self.compute


def planned_bytes(plans: Iterable[ContextPlan]) -> PlannedBytes:
    """The bytes of contexts that are loaded together. Contexts of the same file share its weights,
    so that only the most that one of them needs counts."""
    weights: dict[int, tuple[int, int]] = {}
    cache = compute = on_devices = 0
    for plan in plans:
        own = devices = 0
        for need in plan.needs():
            part = need.weights + sum(need.repacked.values()) + need.experts + need.tower_weights
            own += part
            cache += need.cache
            rest = need.compute + need.copies + need.towers
            compute += rest
            if not need.is_host:
                devices += part
                on_devices += need.cache + rest
        key = id(plan.model.file)
        weights[key] = max(weights.get(key, (0, 0)), (own, devices))
    on_devices += sum(devices for _, devices in weights.values())
    return PlannedBytes(sum(own for own, _ in weights.values()), cache, compute, on_devices)
