"""The tensors of a run that a log has, too: which values of them, and of which tensor there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.execute import WatchedTensor
from weft.graph.ops.activations import GluOp, UnaryOp
from weft.llm.models.names import own_name
from weft.llm.quality.tensor_log import LoggedTensor
from weft.records import dataclass

_MOVES = ("RESHAPE", "VIEW", "CONT", "CPY")
"""Ops that change no value: a tensor made by one is compared with the tensor of its name."""


@dataclass(slots=True, eq=False)
class Seen:
    """A tensor here, with the values that logged tensors of its name need."""

    name: str
    op: str
    sources: frozenset[str]
    ne: tuple[int, ...]
    values: dict[int, Values] = field(default_factory=dict)
    """By the number of the logged tensor in its run; none where the sizes are others."""


@dataclass(slots=True)
class Values:
    """The values here of the printed ones of a logged tensor."""

    values: NDArray[np.float64]
    kept: NDArray[np.bool_]
    """Which of the printed values there these are for."""
    sum: float
    """NaN where the tensor there has other columns besides."""


class Watch:
    """A callback that keeps of each tensor the elements which a run of the log has."""

    def __init__(self, logged: Sequence[LoggedTensor]) -> None:
        self.wanted: dict[str, list[tuple[int, LoggedTensor]]] = {}
        for number, tensor in enumerate(logged):
            self.wanted.setdefault(own_name(tensor.name), []).append((number, tensor))
        self.seen: list[Seen] = []

    def __call__(self, tensor: WatchedTensor, ask: bool) -> bool:
        if ask:
            return tensor.name in self.wanted
        array = tensor.numbers()
        ne = (*reversed(array.shape), 1, 1, 1, 1)[:4]
        seen = Seen(tensor.name, tensor.op, _bare(tensor.sources), ne)
        for number, logged in self.wanted[tensor.name]:
            values = _values(array.reshape(-1), ne, logged)
            if values is not None:
                seen.values[number] = values
        self.seen.append(seen)
        return True


def _bare(names: Iterable[str]) -> frozenset[str]:
    """Names here of tensors, without what views add to them."""
    return frozenset(own_name(name).partition(" (")[0] for name in names)


def _values(flat: NDArray[Any], ne: tuple[int, ...], logged: LoggedTensor) -> Values | None:
    """The values here for the printed ones of a logged tensor; None where sizes are others.

    One of the two may be of the last token alone, whose logits are wanted."""
    places, kept, one = logged.places, np.ones(len(logged.places), bool), False
    if math.prod(logged.ne) != flat.size:
        apart = [d for d in range(1, 4) if ne[d] != logged.ne[d]]
        if ne[0] != logged.ne[0] or len(apart) != 1 or 1 not in (ne[apart[0]], logged.ne[apart[0]]):
            return None
        d, one = apart[0], True
        kept = places[:, d] == logged.ne[d] - 1
        places = places.copy()
        places[:, d] = ne[d] - 1
    sizes = ne if one else logged.ne
    steps = np.array([1, sizes[0], sizes[0] * sizes[1], math.prod(sizes[:3])], np.int64)
    values = flat[(places @ steps)[kept]].astype(np.float64)
    total = math.nan if one else float(np.sum(flat, dtype=np.float64))
    return Values(values, kept, total)


def matched(seen: Sequence[Seen], logged: Sequence[LoggedTensor]) -> dict[int, Seen]:
    """The tensor here of each logged one, by its number.

    Names repeat, so that the op and the sources decide; sizes decide before that. Where no source
    has a name in both, as many must be left on both sides."""
    found: dict[int, Seen] = {}
    taken: set[Seen] = set()

    def take(number: int, own: Seen) -> None:
        found[number] = own
        taken.add(own)

    for exact in (True, False):
        left: dict[tuple[str, str], list[int]] = {}
        for number, tensor in enumerate(logged):
            if number in found:
                continue
            key = own_name(tensor.name), kind_of(tensor.op)
            sources = _bare(name for name, _ in tensor.sources)
            own = _free(seen, taken, number, key, tensor.ne if exact else None)
            alike = max(own, key=lambda s: len(s.sources & sources), default=None)
            if alike is not None and alike.sources & sources:
                take(number, alike)
            else:
                left.setdefault(key, []).append(number)
        for key, numbers in left.items():
            for number in numbers:
                own = _free(seen, taken, number, key, logged[number].ne if exact else None)
                n_left = sum(
                    1 for n in numbers if n not in found and logged[n].ne == logged[number].ne
                )
                if own and len(own) == n_left:
                    take(number, own[0])
    last = {own_name(tensor.name): number for number, tensor in enumerate(logged)}
    for name, number in last.items():
        if number not in found and logged[number].op in _MOVES:
            own = [s for s in seen if s.name == name and number in s.values and s not in taken]
            if own:
                take(number, own[-1])
    return found


def _free(
    seen: Sequence[Seen],
    taken: set[Seen],
    number: int,
    key: tuple[str, str],
    ne: tuple[int, ...] | None,
) -> list[Seen]:
    """Tensors here that nothing has taken, of this name and op, and of these sizes if given."""
    return [
        s for s in seen
        if (s.name, s.op) == key and s not in taken and number in s.values and ne in (None, s.ne)
    ]  # fmt: skip


def kind_of(op: str) -> str:
    """The name here of an op of the log, which has the function of an activation."""
    if op in GluOp.__members__:
        return "GLU"
    return "UNARY" if op in UnaryOp.__members__ else op
