"""Records of the experts that a model has chosen, and what policies would have done with them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weft.errors import FormatError, MissingFileError
from weft.files import write_text
from weft.native import _native

SimulatedPolicy = Literal["lru", "lfu", "predict", "best"]
SIMULATED: tuple[SimulatedPolicy, ...] = ("lru", "lfu", "predict", "best")
"""The policies of `simulate`. "best" reads the future and drops the expert that is needed last
(Belady): no policy has more hits without predictions."""

_FORMAT = "weft routing 1"


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts a model has chosen, in order.

    As a file it is a line of JSON with the format and `n_experts`, and a line for each step of a
    layer: its number, and the experts."""

    n_experts: tuple[int, ...]
    """The number of experts of each layer with experts."""
    record: tuple[int, ...]
    """For each step of a layer: the number of the layer, a count n, and n experts."""

    @property
    def n_asked(self) -> int:
        """How often experts were needed."""
        return len(self.record) - 2 * self.n_steps

    @property
    def n_steps(self) -> int:
        """The number of steps of all layers."""
        i = n = 0
        while i < len(self.record):
            i, n = i + 2 + self.record[i + 1], n + 1
        return n

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the record to a file."""
        head = {"format": _FORMAT, "n_experts": list(self.n_experts)}
        lines, i = [json.dumps(head)], 0
        while i < len(self.record):
            layer, n = self.record[i : i + 2]
            lines.append(" ".join(map(str, (layer, *self.record[i + 2 : i + 2 + n]))))
            i += 2 + n
        write_text(Path(path), "\n".join(lines) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Routing:
        """Reads a file of `save`. Raises FormatError for anything else, with the line at fault."""
        try:
            lines = Path(path).read_text().splitlines()
        except FileNotFoundError:
            raise MissingFileError(f"no such file: {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"cannot read {path}: {error}") from None
        number = 1
        try:
            head = json.loads(lines[0])
            if head["format"] != _FORMAT:
                raise ValueError
            n_experts = tuple(int(n) for n in head["n_experts"])
            record: list[int] = []
            for line in lines[1:]:
                number += 1
                layer, *experts = map(int, line.split())
                n = n_experts[layer] if layer >= 0 else 0
                if not all(0 <= e < n for e in experts):
                    raise ValueError
                record += (layer, len(experts), *experts)
        except (ValueError, KeyError, IndexError, TypeError):
            raise FormatError(
                f"{path}, line {number}: not a record of `weft experts --save`; record again"
            ) from None
        return Routing(n_experts, tuple(record))


def simulate(routing: Routing, n_slots: int, policy: SimulatedPolicy) -> float:
    """The hit rate, 0 to 1, that a policy would have had with memory for `n_slots` experts.

    An expert stands for all its matrices in a layer. Raises FormatError for a damaged record."""
    number = SIMULATED.index(policy) if policy != "best" else -1
    try:
        asked, hits, *_ = _native.simulate_experts(
            routing.record, routing.n_experts, n_slots, number
        )
    except (ValueError, TypeError) as error:
        raise FormatError(f"damaged record of experts: {error}; record it again") from None
    return hits / asked if asked else 0.0


def best_policy(routing: Routing, n_slots: int, now: SimulatedPolicy = "lfu") -> SimulatedPolicy:
    """The policy that "auto" would go on with after this record: the one with the fewest misses, a
    wrong prediction counted as a half, or `now` if none is better by 1%."""
    number = _native.best_expert_policy(
        routing.record, routing.n_experts, n_slots, SIMULATED.index(now)
    )
    return SIMULATED[number]
