"""Pairs of tensors of two programs as data, and in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class TensorPair:
    """A tensor here and there."""

    name: str
    """The name there."""
    op: str
    ne: tuple[int, ...]
    run: int
    """The number of the ubatch."""
    difference: float
    """The largest difference of printed values; NaN where one of them alone is not a number."""
    place: tuple[int, ...]
    """Where that is, innermost first."""
    ours: float
    theirs: float
    our_sum: float
    their_sum: float | None
    distance: float
    """The root mean square of differences over the root mean square of the values there."""
    bound: float
    """The largest distance of tensors that agree."""
    differs: bool
    sources: tuple[str, ...] = ()
    """Names of what it is made of."""


@dataclass(slots=True)
class TensorComparison:
    """Tensors of a run here beside tensors of another program."""

    pairs: list[TensorPair] = field(default_factory=list)
    """In the order there."""
    other_sizes: list[str] = field(default_factory=list)
    """Tensors that have other sizes here, with both."""
    only_theirs: list[str] = field(default_factory=list)
    """Names of tensors that are only there."""
    notes: list[str] = field(default_factory=list)
    """Differences of the inputs, and what else a reader has to know."""
    inputs_differ: bool = False
    there: str = "the log"
    """The other program."""
    about: str = ""
    """Lines about what was compared, and how large a distance may be."""

    @property
    def first(self) -> TensorPair | None:
        """The first tensor that differs."""
        return next((pair for pair in self.pairs if pair.differs), None)

    @property
    def differs(self) -> bool:
        """Whether tensors, their sizes or the inputs differ, or nothing could be compared."""
        return bool(self.first or self.other_sizes or self.inputs_differ or not self.pairs)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.summary()}"

    def summary(self) -> str:
        """The first difference with its figures, and what could not be compared."""
        first, n = self.first, sum(pair.differs for pair in self.pairs)
        lines = [*self.notes, self.about]
        if first is not None:
            name, *figures = _told(first)
            lines += [f"first tensor that differs: {name}", *figures, *self._sources(first)]
            lines.append(f"{n} of {len(self.pairs)} tensors differ")
        elif self.pairs:
            worst = max(self.pairs, key=lambda pair: pair.distance)
            name, *figures = _told(worst)
            lines += [f"all {len(self.pairs)} tensors agree; the most distant: {name}", *figures]
        else:
            lines.append("no tensor has the same name and sizes here")
        if self.other_sizes:
            lines.append(f"other sizes: {listed(self.other_sizes)}")
        if self.only_theirs:
            lines.append(f"only in {self.there}: {listed(self.only_theirs)}")
        return "\n".join(lines)

    def table(self) -> str:
        """A line for each tensor: name, op and sizes, the largest difference, the distance and its
        bound."""
        rows = [
            (
                pair.name, pair.op, braced(pair.ne), f"{pair.difference:.4g}",
                f"{pair.distance:.3%}", f"{pair.bound:.3%}", "differs" if pair.differs else "",
            )
            for pair in self.pairs
        ]  # fmt: skip
        rows.insert(0, ("tensor", "op", "sizes", "difference", "distance", "bound", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(7)]
        lines = ("  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _sources(self, pair: TensorPair) -> Iterable[str]:
        """A line about the tensors that `pair` is made of."""
        before = self.pairs[: self.pairs.index(pair)]
        for name in pair.sources:
            own = [other for other in before if other.name == name and other.run == pair.run]
            if own:
                yield f"  reads {name}, which {_verdict(own[-1])} (distance {own[-1].distance:.2%})"
            elif name.endswith((".weight", ".bias", ".scale")) or "inp_" in name:
                yield f"  reads {name}"
            else:
                yield f"  reads {name}, which is not compared"
        if pair.bound == 0.0:
            yield "  it has whole numbers; a choice, as of experts, changes where scores are close"


def _verdict(pair: TensorPair) -> str:
    return "differs" if pair.differs else "agrees"


def _told(pair: TensorPair) -> list[str]:
    """Lines about a pair, the first one with its name."""
    run = f" of ubatch {pair.run}" if pair.run else ""
    at = braced(pair.place[: len(_short(pair.ne))], short=False)
    lines = [
        f"{pair.name} ({pair.op} {braced(pair.ne)}){run}",
        f"  distance {pair.distance:.2%} of at most {pair.bound:.2%}",
        f"  max |difference| {pair.difference:.4g} at {at}: {pair.ours:.6g} here, "
        f"{pair.theirs:.6g} there",
    ]
    if pair.their_sum is not None:
        lines.append(f"  sum {pair.our_sum:.6g} here, {pair.their_sum:.6g} there")
    return lines


def braced(sizes: Sequence[int], *, short: bool = True) -> str:
    """Sizes as ggml's logs have them, `{64, 4}`."""
    return "{" + ", ".join(map(str, _short(sizes) if short else sizes)) + "}"


def _short(ne: Sequence[int]) -> Sequence[int]:
    """Sizes without trailing ones, at least two."""
    n = max((d + 1 for d in range(len(ne)) if ne[d] != 1), default=1)
    return ne[: max(n, 2)]


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names, in which `*` stands for the number of layers."""
    whole = list(dict.fromkeys(re.sub(r"-\d+", "-*", name) for name in names))
    more = f" and {len(whole) - most} more" if len(whole) > most else ""
    return ", ".join(whole[:most]) + more
