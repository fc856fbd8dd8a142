"""`Sense`: a tower beside a context, which computes the rows of images or sounds."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.compiler import Plan, lower_plan, plan_graph, resolve_devices
from weft.errors import ContextFull
from weft.execute import Session
from weft.llm.compute.context import Context
from weft.llm.senses.tower import AnyTower
from weft.tables import size_text

__all__ = ["Sense"]


class Sense(ABC):
    """A tower beside a context. Threads may share it."""

    noun: ClassVar[str]
    """What a medium is: "an image" or "a sound"."""
    before: str
    after: str
    """Text in front of a medium and behind it."""
    least: int
    """Rows of the smallest medium that is usual."""

    def __init__(self, tower: AnyTower, context: Context) -> None:
        """Raises FormatError for a tower of another model."""
        tower.require_width(context.model.config.n_embd, context.model.file.path.name)
        self._tower = tower
        self._context = context
        self.plan: Plan = plan_graph(tower.build(), resolve_devices(context.devices_beside()))
        """Where the tower is computed, and why."""
        self._session: Session | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def ids(self, medium: Any, *, files: bool = True) -> list[int]:
        """The ids that stand for a medium, without text around them. The tower computes only what
        is not kept. Without `files`, it comes as data only."""

    def about(self) -> str:
        """A line with the tower's devices and bytes, which come beside those of the context."""
        program = lower_plan(self.plan)
        compute = sum(spec.size for spec in program.buffers if spec.kind == "arena")
        names = ", ".join(dict.fromkeys(split.device for split in program.splits))
        weights = size_text(self._tower.weights.nbytes)
        return (
            f"tower: {self._tower.file.path.name} on {names}, weights {weights}, compute "
            f"{size_text(compute)}, for {self._tower.what}"
        )

    def _run(self, values: Mapping[str, Any]) -> NDArray[np.float32]:
        """The rows f32 [n, n_embd] that the tower makes of its inputs."""
        if self._session is None:
            self._session = Session(lower_plan(self.plan))
        return np.array(self._session.run(values)["rows"], np.float32)

    def _key(self, data: NDArray[Any]) -> bytes:
        """What data are called in a context."""
        digest = hashlib.sha256(f"{self.noun} {data.shape} {data.dtype}".encode())
        digest.update(np.ascontiguousarray(data).data)
        return digest.digest()

    def _require_room(self, n: int) -> None:
        if n > self._context.n_ctx_seq:
            raise ContextFull(
                f"{self.noun} has {n} rows, but the context holds {self._context.n_ctx_seq} "
                f"tokens; make `n_ctx` larger, or the {self.noun.split()[1]} smaller"
            )
