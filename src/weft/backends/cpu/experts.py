"""Experts that stay in their file, and the slots of memory that hold those in use.

`ExpertArena` is a number of bytes for the experts of a model. Tensors whose sizes are equal share a
pool of slots, and each pool has the same part of its experts in memory. The native store reads what
a step names before the step runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from weft.backends.cpu.routing import SIMULATED, Routing, simulate
from weft.backends.memory import HostMemory, Memory, require_inside
from weft.dtype import DType
from weft.errors import ContextError, DeviceError, FormatError, OutOfMemoryError
from weft.graph.tensor import Tensor
from weft.native import _native
from weft.program import LAYOUTS, Layout
from weft.records import dataclass

ExpertPolicy = Literal["auto", "lru", "lfu", "predict"]
"""Which expert gives way to another: the one used longest ago (`lru`); the one used least, where a
use counts half after 32 steps (`lfu`); or as lfu, with experts of the next layer read before they
are asked for (`predict`). `auto` simulates all three with the routing of the last 128 steps, again
and again, and goes on with the best."""

POLICIES: tuple[str, ...] = get_args(ExpertPolicy)
_NATIVE = POLICIES[1:]

_ALIGNMENT = 64
_READERS = 4
_RECORDED = 1 << 24
"""The maximum number of integers in a record."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertStack:
    """A tensor of experts in a file."""

    name: str
    source: NDArray[Any]
    """The mapped bytes; only their address is used, which identifies the tensor."""
    path: Path
    offset: int
    """Bytes from the start of the file."""
    dtype: DType
    ne: tuple[int, int, int]
    """Elements of a row, rows, experts."""
    layout: Layout
    layer: int
    """The number of the layer among the layers with experts; all tensors of a layer use the same
    ids."""
    n_used: int
    """Experts of a token."""

    @property
    def expert_bytes(self) -> int:
        """The bytes of one expert."""
        return int(self.source.nbytes) // self.ne[2]

    @property
    def slot_bytes(self) -> int:
        """The bytes of a slot for one of its experts."""
        return -(-self.expert_bytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """Counters of a store since it was made."""

    hits: int
    """Experts that were in memory when a step needed them."""
    predicted: int
    """Hits that are due to a prediction."""
    misses: int
    """Experts that a step had to wait for."""
    guesses: int
    """Experts that were read because of a prediction."""
    nbytes: int
    """Bytes read from files."""
    waited: float
    """Seconds that steps have waited for experts."""

    @property
    def hit_rate(self) -> float:
        """The share of hits among all experts that steps needed, 0 to 1; 0 before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def __sub__(self, before: ExpertStats) -> ExpertStats:
        """The difference to earlier counters."""
        return ExpertStats(
            self.hits - before.hits,
            self.predicted - before.predicted,
            self.misses - before.misses,
            self.guesses - before.guesses,
            self.nbytes - before.nbytes,
            self.waited - before.waited,
        )

    def __str__(self) -> str:
        read = f"{self.nbytes / 1e9:.2f} GB read, {self.waited:.2f} s waited"
        guessed = f", {self.predicted} of {self.guesses} predictions hit" if self.guesses else ""
        return f"{self.hit_rate:.1%} of {self.hits + self.misses} in memory{guessed}; {read}"


class ExpertArena:
    """Memory for experts: slots, and the store that fills them once it is needed.

    Contexts with the same experts, budget and policy share one; see `expert_arena`."""

    def __init__(
        self, stacks: Sequence[ExpertStack], budget: int, policy: ExpertPolicy, n_readers: int
    ) -> None:
        """Raises ContextError for a budget that is too small for a token."""
        self.stacks = tuple(stacks)
        self.budget = budget
        self.policy: ExpertPolicy = policy
        self.pools = _pools(self.stacks, budget)
        """Bytes and number of the slots of each pool."""
        self._n_readers = n_readers
        self._arena: NDArray[np.uint8] | None = None
        self._store: Any = None
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """The bytes of all slots."""
        return sum(size * n for size, n in self.pools.items())

    @property
    def all_bytes(self) -> int:
        """The bytes of all experts."""
        return sum(s.slot_bytes * s.ne[2] for s in self.stacks)

    @property
    def least(self) -> int:
        """The bytes of the experts of a token in its largest layer, the smallest budget."""
        return _least(self.stacks)

    def about(self) -> str:
        """A sentence for tables: how much is in memory, and how it goes."""
        slots = sum(self.pools.values())
        experts = sum(s.ne[2] for s in self.stacks)
        text = f"slots for {slots} of {experts} matrices of experts ({slots / experts:.0%})"
        stats = self.stats
        if stats.hits + stats.misses:
            return f"{text}, {self.policy_now}: {stats}"
        return f"{text}, {self.policy}; the others stay in the file"

    @property
    def policy_now(self) -> str:
        """The policy that decides now, where it is chosen by simulation."""
        if self.policy != "auto" or self._store is None:
            return self.policy
        return f"{_NATIVE[self._store.policy]} (chosen)"

    @property
    def stats(self) -> ExpertStats:
        """The counters since the arena was made; zeros before the first step."""
        if self._store is None:
            return ExpertStats(0, 0, 0, 0, 0, 0.0)
        hits, predicted, misses, guesses, nbytes, waited = self._store.counts()
        return ExpertStats(hits, predicted, misses, guesses, nbytes, waited / 1e9)

    def record(self, on: bool = True) -> None:
        """Records routing afresh, or stops."""
        self.store.record(_RECORDED if on else 0)

    def recorded(self) -> Routing:
        """The routing since `record`."""
        layers = {s.layer: s.ne[2] for s in self.stacks}
        n_experts = tuple(layers[i] for i in range(len(layers)))
        return Routing(n_experts, tuple(self.store.recorded()))

    def simulated(self, routing: Routing) -> dict[str, float]:
        """The hit rate that each policy would have had with this budget, by its name, and "best".

        Raises FormatError for a record of other experts."""
        layers = {s.layer: s.ne[2] for s in self.stacks}
        if routing.n_experts != tuple(layers[i] for i in range(len(layers))):
            raise FormatError(
                f"the record is of layers with {_some(routing.n_experts)} experts, and the model "
                f"has {_some(tuple(layers.values()))}; record the same model"
            )
        slots, matrices = sum(self.pools.values()), sum(s.ne[2] for s in self.stacks)
        n_slots = max(1, slots * sum(routing.n_experts) // matrices)
        return {policy: simulate(routing, n_slots, policy) for policy in SIMULATED}

    @property
    def store(self) -> Any:
        """The native store, with memory. Raises OutOfMemoryError, and FormatError for a file that
        cannot be opened."""
        with self._lock:
            if self._store is None:
                self._store = self._open()
            return self._store

    def _open(self) -> Any:
        auto = self.policy == "auto"
        sizes = list(self.pools)
        paths = list(dict.fromkeys(str(s.path) for s in self.stacks))
        numbers = [
            [
                paths.index(str(s.path)), s.offset, s.expert_bytes, s.ne[2], s.dtype.id,
                LAYOUTS.index(s.layout), s.ne[1], s.ne[0], s.layer, sizes.index(s.slot_bytes),
            ]
            for s in self.stacks
        ]  # fmt: skip
        try:
            self._arena = HostMemory.zeros(self.nbytes, _ALIGNMENT).host()
        except MemoryError:
            raise OutOfMemoryError(
                f"the host has no {self.nbytes} bytes left for experts; make "
                "`expert_budget` smaller"
            ) from None
        try:
            return _native.ExpertStore(
                paths, [s.name for s in self.stacks], numbers, list(self.pools.items()),
                self._arena, self._n_readers, _NATIVE.index("lfu" if auto else self.policy), auto,
            )  # fmt: skip
        except ValueError as error:
            raise FormatError(str(error)) from None

    def memory(self, source: NDArray[Any]) -> ExpertMemory:
        """The memory of the tensor with these bytes."""
        index = next(i for i, s in enumerate(self.stacks) if s.source is source)
        return ExpertMemory(self, self.store, index)


class ExpertBufferType:
    """Memory for the experts of an arena, in one layout."""

    device = "cpu"
    alignment = _ALIGNMENT
    max_size: int | None = None
    is_host = False

    def __init__(self, arena: ExpertArena, layout: Layout) -> None:
        self.name = "CPU_EXPERTS"
        self.layout: Layout = layout
        self.arena = arena

    def alloc_size(self, tensor: Tensor) -> int:
        """0: all tensors share the arena."""
        return 0

    def allocate(self, nbytes: int) -> Memory:
        """Raises DeviceError, because this memory holds only experts."""
        raise DeviceError(f"{self.name} memory holds experts only, see load()")

    def load(self, source: NDArray[Any], dtype: DType, ne: tuple[int, ...]) -> Memory:
        """The experts of a tensor, of which nothing is read yet."""
        return self.arena.memory(source)

    def __repr__(self) -> str:
        return self.name


class ExpertMemory:
    """The experts of one tensor. The host cannot address them; `read` returns rows."""

    __slots__ = ("__weakref__", "_arena", "_stack", "index", "store")

    def __init__(self, arena: ExpertArena, store: Any, index: int) -> None:
        self._arena = arena
        self._stack = arena.stacks[index]
        self.store = store
        self.index = index
        """The number of the tensor in the store."""

    @property
    def nbytes(self) -> int:
        """The size in bytes of the tensor as rows."""
        return int(self._stack.source.nbytes)

    @property
    def address(self) -> int:
        """A unique address that cannot be read."""
        return int(self.store.address(self.index))

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Raises DeviceError, because experts are constant."""
        raise DeviceError("experts in a file cannot be written; load without expert_budget")

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of the rows, from the file; raises FormatError."""
        require_inside(offset, nbytes, self.nbytes)
        size = self._stack.expert_bytes
        first, last = offset // size, -(-(offset + nbytes) // size)
        rows = np.empty((max(0, last - first), size), np.uint8)
        try:
            for i, row in enumerate(rows):
                self.store.read_rows(self.index, first + i, row)
        except ValueError as error:
            raise FormatError(str(error)) from None
        start = offset - first * size
        return rows.reshape(-1)[start : start + nbytes]

    def host(self) -> None:
        """None, because the host cannot address the experts."""
        return None


_ARENAS: WeakValueDictionary[tuple[Any, ...], ExpertArena] = WeakValueDictionary()
_LOCK = Lock()


def expert_arena(
    stacks: Sequence[ExpertStack],
    budget: int,
    policy: ExpertPolicy = "auto",
    n_readers: int = _READERS,
) -> ExpertArena:
    """The arena of these tensors with `budget` bytes; the same one as long as it is in use.

    `n_readers` threads read ahead. Raises ContextError for a budget that is too small, with the
    least one."""
    key = (tuple((id(s.source), s.layout) for s in stacks), budget, policy, n_readers)
    with _LOCK:
        arena = _ARENAS.get(key)
        if arena is None:
            arena = _ARENAS[key] = ExpertArena(stacks, budget, policy, n_readers)
        return arena


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")


def _least(stacks: Sequence[ExpertStack]) -> int:
    return sum(size * n for size, (n, _) in _needs(stacks).items())


def _needs(stacks: Sequence[ExpertStack]) -> dict[int, tuple[int, int]]:
    """By size of slots: the number of experts of a token, and of experts in all layers together."""
    needs: dict[int, tuple[int, int]] = {}
    for s in stacks:
        used, n = needs.get(s.slot_bytes, (0, 0))
        needs[s.slot_bytes] = max(used, min(s.n_used, s.ne[2])), n + s.ne[2]
    return needs


def _pools(stacks: Sequence[ExpertStack], budget: int) -> dict[int, int]:
    """The number of slots of each size: the same part of all experts, but enough for a token."""
    needs, least = _needs(stacks), _least(stacks)
    if budget < least:
        raise ContextError(
            f"is {budget} bytes, but the experts of a token need {least} in a layer; give it "
            f"{least} or more",
            argument="expert_budget",
        )
    total = sum(size * n for size, (_, n) in needs.items())
    slots = {size: used for size, (used, _) in needs.items()}
    left = budget - least
    for size, (used, n) in needs.items():
        share = min(n, int(budget / total * n)) - used
        more = max(0, min(share, left // size))
        slots[size] += more
        left -= more * size
    for size, (_, n) in needs.items():
        more = min(n - slots[size], left // size)
        slots[size] += more
        left -= more * size
    return slots
