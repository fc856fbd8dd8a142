"""Makes mistakes one by one, and sees whether tests notice them."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.mutants.row import Mutant
from tests.mutants.tree import BuildError, Processes, Tree

__all__ = ["Outcome", "Report", "run"]

LEAST_SECONDS = 60.0
TIMES_LONGER = 5.0
"""Tests of a mistake may take this many times as long as without it, and at least LEAST_SECONDS
more; a mistake that makes them hang is noticed by that."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What became of a mistake."""

    row: Mutant
    noticed: bool
    by: str
    """What noticed it; of one that cannot be tried, why."""
    seconds: float
    tried: bool = True


@dataclass
class Report:
    """The outcomes so far."""

    outcomes: list[Outcome] = field(default_factory=list)

    def of(self, *, noticed: bool, tried: bool = True) -> list[Outcome]:
        """The outcomes of one kind."""
        return [o for o in self.outcomes if o.tried == tried and o.noticed == noticed]


def run(
    rows: Sequence[Mutant], jobs: int, minutes: float, say: Callable[[Outcome], None]
) -> Report:
    """Tries all rows and tells `say` of each: first those of Python, `jobs` at a time, then those
    that need a build, file by file. What has not begun after so many minutes is not tried. Ctrl-C
    ends what runs and takes the mistakes back."""
    until = time.monotonic() + 60 * minutes
    processes = Processes()
    compiled = sorted((r for r in rows if r.build), key=lambda r: (r.build != "native", r.file))
    plain = [r for r in rows if not r.build]
    report, lock = Report(), threading.Lock()

    def done(outcome: Outcome) -> None:
        with lock:
            report.outcomes.append(outcome)
            say(outcome)

    waiting: queue.SimpleQueue[list[Mutant]] = queue.SimpleQueue()
    for group in _by_tests(plain):
        waiting.put(group)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            tree = Tree(number, processes)
            while True:
                try:
                    group = waiting.get_nowait()
                except queue.Empty:
                    break
                _try_group(tree, group, until, done)
            if number == 0 and compiled:
                _try_compiled(tree, compiled, until, done)
        except KeyboardInterrupt:
            pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(max(1, jobs))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    finally:
        processes.stop()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return report


def _by_tests(rows: Sequence[Mutant]) -> list[list[Mutant]]:
    """Rows with the same tests together, so that these run once without a mistake."""
    groups: dict[tuple[str, ...], list[Mutant]] = {}
    for row in rows:
        groups.setdefault(row.tests, []).append(row)
    return list(groups.values())


_NO_TIME = "no time was left"


def _try_group(
    tree: Tree, rows: list[Mutant], until: float, done: Callable[[Outcome], None]
) -> None:
    began = time.monotonic()
    why = _NO_TIME if began > until else _unfit(tree, rows[0].tests)
    usual = time.monotonic() - began
    for row in rows:
        why = why or (_NO_TIME if time.monotonic() > until else "")
        if why:
            done(Outcome(row, False, why, usual, tried=False))
        else:
            done(_try(tree, row, usual))


def _try_compiled(
    tree: Tree, rows: list[Mutant], until: float, done: Callable[[Outcome], None]
) -> None:
    """Tries rows of compiled files: one build without a mistake, then one for each."""
    usual: dict[tuple[str, ...], tuple[str, float]] = {}
    built: set[str] = set()
    changed: str | None = None
    for row in rows:
        if time.monotonic() > until:
            done(Outcome(row, False, _NO_TIME, 0.0, tried=False))
            continue
        if row.build not in built:
            if changed is not None:
                tree.build(changed)  # without the last mistake
            tree.build(row.build)
            built.add(row.build)
            changed = None
        if row.tests not in usual:
            if changed is not None:
                tree.build(changed)
                changed = None
            began = time.monotonic()
            why = _unfit(tree, row.tests)
            usual[row.tests] = why, time.monotonic() - began
        why, seconds = usual[row.tests]
        if why:
            done(Outcome(row, False, why, seconds, tried=False))
            continue
        changed = row.build
        done(_try(tree, row, seconds))


def _unfit(tree: Tree, tests: tuple[str, ...]) -> str:
    """Why tests can notice nothing: they fail without a mistake, or there are none."""
    code, said = tree.test(tests, None)
    if code == 0:
        if " passed" not in said:
            return "its tests are skipped on this machine"
        return ""
    if code == 5:
        return "its tests select nothing that `make test` runs"
    return f"its tests fail without it: {_failed(said)}"


def _try(tree: Tree, row: Mutant, usual: float) -> Outcome:
    began = time.monotonic()
    try:
        tree.write(row.file, row.applied((tree.path / row.file).read_text()))
        if row.build:
            try:
                tree.build(row.build)
            except BuildError as error:
                return Outcome(row, False, f"it does not compile:\n{error}", 0.0, tried=False)
        code, said = tree.test(row.tests, LEAST_SECONDS + TIMES_LONGER * usual)
    finally:
        tree.revert(row)
    seconds = time.monotonic() - began
    if code is None:
        return _try_again(tree, row, usual, seconds)
    if code == 0:
        return Outcome(row, False, "", seconds)
    if code == 1:
        return Outcome(row, True, _failed(said), seconds)
    if code == 2:
        return Outcome(row, True, f"{_failed(said)}, which cannot be imported", seconds)
    if code < 0:
        return Outcome(row, True, f"the end of the process by signal {-code}", seconds)
    return Outcome(row, False, f"pytest ended with {code}: {said[-300:]}", seconds, tried=False)


def _try_again(tree: Tree, row: Mutant, usual: float, seconds: float) -> Outcome:
    """The outcome of a row whose tests did not end in time: they hang, unless the machine has
    become busy, so that they take as long without the mistake."""
    if row.build:
        tree.build(row.build)
    began = time.monotonic()
    tree.test(row.tests, None)
    now = time.monotonic() - began
    if now < 2 * usual + LEAST_SECONDS / 2:
        return Outcome(row, True, "a test that does not end", seconds)
    return _try(tree, row, now)


def _failed(said: str) -> str:
    """The first test that a run of pytest names as failed."""
    match = _FAILED.search(said)
    return match[1] if match else said.strip().rpartition("\n")[2]
