"""Orders steps into stages: steps of one stage may run at the same time.

Two steps must stay in order when one writes bytes that the other reads or writes. Addresses decide
(not names), because memory is reused; they are taken at the symbols' maxima. A step goes to the
first stage after the stages of all earlier steps that it clashes with, so there are as few stages
as the longest chain of clashes has steps (list scheduling without a limit on width).

Each buffer is cut into segments that record the last stage that wrote them and the last one that
has read them since:

    bytes     0      64      128     192
    written   |  2   |   5    |   0   |
    read      |  4   |   -    |   3   |
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from weft.records import dataclass

Range = tuple[int, int, int]
"""A buffer, its first byte and the byte after the last."""

_NEVER = -1


@dataclass(frozen=True, slots=True)
class Access:
    """The ranges of memory that a step touches."""

    writes: Range
    reads: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Stages:
    """The steps, reordered so that steps which clash stay in order."""

    order: tuple[int, ...]
    """Numbers of the steps, stage by stage; within a stage ascending."""
    bounds: tuple[tuple[int, int], ...]
    """Half-open ranges of `order`, which cover it."""


def form_stages(steps: Sequence[Access]) -> Stages:
    """The fewest possible stages, in time proportional to the steps and the segments they touch."""
    written = {step.writes[0] for step in steps}
    buffers = {buffer: _Segments() for buffer in written}
    stages: list[list[int]] = []
    for number, step in enumerate(steps):
        # buffers that no step writes (weights) impose no order
        reads = [(buffers[b], first, end) for b, first, end in step.reads if b in written]
        buffer, low, high = step.writes
        target = buffers[buffer]
        stage = target.last_use(low, high)
        for segments, first, end in reads:
            stage = max(stage, segments.last_write(first, end))
        stage += 1
        for segments, first, end in reads:
            segments.read(first, end, stage)
        target.write(low, high, stage)
        if stage == len(stages):
            stages.append([])
        stages[stage].append(number)
    bounds = []
    first_member = 0
    for members in stages:
        bounds.append((first_member, first_member + len(members)))
        first_member += len(members)
    return Stages(tuple(n for members in stages for n in members), tuple(bounds))


class _Segments:
    """A buffer cut at every byte where the stages change. Segment `i` begins at `cuts[i]`."""

    __slots__ = ("cuts", "reads", "writes")

    def __init__(self) -> None:
        self.cuts = [0]
        self.writes = [_NEVER]
        self.reads = [_NEVER]

    def last_write(self, low: int, high: int) -> int:
        """The last stage that writes any of the bytes."""
        if low >= high:
            return _NEVER
        first = bisect_right(self.cuts, low) - 1
        end = bisect_left(self.cuts, high, first)
        return self.writes[first] if end - first == 1 else max(self.writes[first:end])

    def last_use(self, low: int, high: int) -> int:
        """The last stage that writes or reads any of the bytes."""
        if low >= high:
            return _NEVER
        first = bisect_right(self.cuts, low) - 1
        end = bisect_left(self.cuts, high, first)
        return max(*self.writes[first:end], *self.reads[first:end])

    def read(self, low: int, high: int, stage: int) -> None:
        """Records that stage `stage` reads the bytes."""
        if low >= high:
            return
        first = self._cut(low)
        end = self._cut(high, first)
        reads = self.reads
        for i in range(first, end):
            if reads[i] < stage:
                reads[i] = stage

    def write(self, low: int, high: int, stage: int) -> None:
        """Records that stage `stage`, later than all uses so far, writes the bytes."""
        if low >= high:
            return
        first = self._cut(low)
        end = self._cut(high, first)
        if end - first > 1:
            del (
                self.cuts[first + 1 : end],
                self.writes[first + 1 : end],
                self.reads[first + 1 : end],
            )
        self.writes[first] = stage
        self.reads[first] = _NEVER

    def _cut(self, at: int, first: int = 0) -> int:
        """The segment that begins at `at`, cut off if there is none yet."""
        i = bisect_left(self.cuts, at, first)
        if i == len(self.cuts) or self.cuts[i] != at:
            self.cuts.insert(i, at)
            self.writes.insert(i, self.writes[i - 1])
            self.reads.insert(i, self.reads[i - 1])
        return i
