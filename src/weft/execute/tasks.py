"""`Tasks`: how the cpu shared the steps of a run out to its threads, and the memory they work in.

session.run(inputs)
print(session.tasks())
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.base import NativeRun
from weft.program import Program
from weft.records import dataclass

_FIELDS = 9
"""Numbers of each step in `NativeRun.step_tasks`."""
_HEADING = ("stage", "step", "units", "least", "at once", "threads", "prepares", "scratch",
            "shared")  # fmt: skip
_OFTEN_EMPTY = ("prepares", "shared")
"""Columns that are left out where all is 0, so that most models fit 80 columns."""


@dataclass(frozen=True, slots=True)
class StepTasks:
    """A step of the cpu as its threads shared it out."""

    name: str
    """The tensor that it computes."""
    op: str
    split: int
    stage: int
    """The number of its stage. Steps of one stage run side by side; before the next stage begins,
    all their work is done."""
    joined: bool
    """True where it goes on with the rows of the step before in one loop, without waiting."""
    units: int
    """Parts that could be computed one by one: blocks of 32 rows of a product, rows of most other
    ops."""
    least: int
    """The number of units below which a thread is not worth its while."""
    at_once: int
    """The largest number of units that a thread claims at a time: an eighth of its share, but not
    less than `least`."""
    threads: int
    """The number of threads that find work; 1: thread 0 does all, and nobody waits for it."""
    prepares: int
    """Units of preparation, such as packed activations, which all threads share out before."""
    scratch: int
    """Bytes of memory that each thread needs for itself."""
    shared: int
    """Bytes of memory, made by the preparation, that all threads read."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """All steps of the cpu in the last run."""

    steps: tuple[StepTasks, ...]
    waits: int
    """The number of times that threads waited for each other."""
    work_bytes: int
    """Bytes of scratch memory of all threads, whole cache lines for each, and of shared memory."""

    def __str__(self) -> str:
        if not self.steps:
            return "no step ran on the threads of the cpu"
        columns = []
        for heading, *cells in zip(_HEADING, *(_row(step) for step in self.steps), strict=True):
            if heading in _OFTEN_EMPTY and set(cells) <= {"0"}:
                continue
            width = max(map(len, (heading, *cells)))
            place = str.ljust if heading == "step" else str.rjust
            columns.append([place(cell, width) for cell in (heading, *cells)])
        times = f"{self.waits} time{'' if self.waits == 1 else 's'}"
        lines = [f"threads waited {times}; {self.work_bytes:,} B of work memory"]
        return "\n".join([*lines, *map("  ".join, zip(*columns, strict=True))])


def _row(step: StepTasks) -> tuple[str, ...]:
    stage = "+" if step.joined else f"{step.stage}"
    numbers = (step.units, step.least, step.at_once, step.threads, step.prepares, step.scratch,
               step.shared)  # fmt: skip
    return (stage, f"{step.op} {step.name}", *(f"{n:,}" for n in numbers))


def tasks_of(program: Program, executables: Sequence[object]) -> Tasks:
    """The tasks of the last run of a program, split by split."""
    steps: list[StepTasks] = []
    native = [(i, e) for i, e in enumerate(executables) if isinstance(e, NativeRun)]
    for number, executable in native:
        flat = executable.step_tasks()
        for i, spec in enumerate(program.splits[number].steps):
            stage, first, *rest = flat[i * _FIELDS : (i + 1) * _FIELDS]
            name = program.tensors[spec.dst].name
            joined = first != i and rest[0] > 0
            steps.append(StepTasks(name, spec.op.name, number, stage, joined, *rest))
    waits = sum(e.barriers for _, e in native)
    return Tasks(tuple(steps), waits, max((e.scratch_bytes for _, e in native), default=0))
