"""Checks the kernels of a target, or of a device, against the baseline's and against NumPy, case by
case."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import field
from functools import partial
from time import perf_counter

from weft.backends import Backend, make_backend
from weft.backends.cases import Case, all_cases, some_cases
from weft.backends.cpu import default_threads
from weft.backends.cpu.record import Verdict, under_check, write_verdict
from weft.errors import WeftError
from weft.execute.trial import Array, disagreement, run_case
from weft.native import _native
from weft.records import dataclass

_BETWEEN_TARGETS = 5e-5
"""The largest NMSE between two targets, unless a case allows less: the error of rounding to 16
bits. Against NumPy a case may allow more, e.g. where activations are quantized."""

Runner = Callable[[Case, Backend], Array]
Progress = Callable[[str, int, int], None]
"""Is told the target, the number of cases that are done, and the number of all."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A wrong result of a kernel."""

    kernel: str
    """The case's name, e.g. `MUL_MAT q4_0 x1`."""
    op: str
    against: str
    """The result that it was compared with: `baseline`, `reference`, or empty for none."""
    how: str
    """The fault, as a short phrase."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Cases of an op on a device: the first one, or the others."""

    target: str
    """The kernel target, or the device."""
    op: str
    cases: int
    """The number of cases that ran."""
    refused: int
    """The number of cases that the device does not take."""
    failures: tuple[Failure, ...]
    seconds: float


Finished = Callable[[Checked], None]


@dataclass(slots=True)
class Report:
    """The results of checking one target."""

    target: str
    """The kernel target, or the device."""
    cases: int = 0
    ops: int = 0
    against_reference: int = 0
    """The number of cases that were also compared with NumPy."""
    refused: list[str] = field(default_factory=list)
    """Cases that both the target and the baseline refuse."""
    failures: list[Failure] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    """Cases that the limit of time left out."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the target may be used."""
        return not self.failures

    @property
    def verdict(self) -> Verdict:
        """The record of the check that is kept on disk."""
        names = tuple(dict.fromkeys(f.kernel for f in self.failures))
        return Verdict(names, self.cases, datetime.date.today().isoformat())


def check_targets(
    targets: Sequence[str],
    n_threads: int | None = None,
    *,
    run: Runner = run_case,
    cases: Sequence[Case] | None = None,
    remember: bool = True,
    progress: Progress | None = None,
) -> Iterator[Report]:
    """Checks one target after the other and returns a report for each.

    Every case of the table runs with `n_threads` threads (default: the physical cores, at most 4)
    on memory filled with a pattern, so that a kernel that writes nothing or too little is detected.
    Results are compared with the baseline on one thread, where the build has it, and with the
    reference backend. `remember` records the verdict, and a target that failed is not
    used from then on; the earlier record stays until a check is over, unless the check ends its
    process. Raises DeviceError for a target that this machine cannot run, or a record that cannot
    be written."""
    expected = _Expected(run)
    for target in targets:
        threads = min(default_threads(), 4) if n_threads is None else n_threads
        backend = make_backend("cpu", target=target, n_threads=threads, even_if_failing=True)
        show = None if progress is None else partial(progress, target)
        with under_check(target) if remember else nullcontext():
            chosen = all_cases() if cases is None else cases
            report = _check(backend, target, expected, chosen, show)
            if remember:
                write_verdict(target, report.verdict)
        yield report


def check_devices(
    names: Sequence[str],
    *,
    every: bool = False,
    limit: float | None = None,
    run: Runner = run_case,
    cases: Sequence[Case] | None = None,
    progress: Progress | None = None,
    finished: Finished | None = None,
) -> Iterator[Report]:
    """Checks one device after the other as `check_targets` does, against the reference backend
    alone, and records nothing.

    Of ops that take formats, a format of each kind is checked (`some_cases`), with `every` all
    formats. The first case of each op runs first. No case of a device starts later than `limit`
    seconds after its first; the report then has what is known, and what did not run. `finished` is
    told of the first case of each op, then of its others. Raises DeviceError for a device that
    cannot be used."""
    expected = _Expected(run, baseline=False)
    chosen = (all_cases() if every else some_cases()) if cases is None else cases
    for name in names:
        backend = make_backend(name)
        backend.kind = "CPU"  # so that it may be the only device, and cases run nowhere else
        show = None if progress is None else partial(progress, name)
        yield _check(backend, name, expected, chosen, show, finished, limit)


class _Expected:
    """Right results, computed once for all targets."""

    def __init__(self, run: Runner, baseline: bool = True) -> None:
        self.run = run
        self.backends = {"reference": make_backend("reference")}
        # not in a build for one processor only
        if baseline and "baseline" in dict(_native.targets()):
            self.backends["baseline"] = make_backend(
                "cpu", target="baseline", n_threads=1, even_if_failing=True
            )
        self._known: dict[tuple[Case, str], Array | str] = {}

    def of(self, case: Case, name: str) -> Array | str:
        """The result of `baseline` or `reference`, or the reason why there is none."""
        key = (case, name)
        if key not in self._known:
            self._known[key] = _result(case, self.backends[name], self.run)
        return self._known[key]


def _check(
    backend: Backend,
    target: str,
    expected: _Expected,
    cases: Sequence[Case],
    progress: Callable[[int, int], None] | None,
    finished: Finished | None = None,
    limit: float | None = None,
) -> Report:
    start = perf_counter()
    report = Report(target)
    done, ops = 0, set()
    for op, group in _rounds(cases):
        begun, before = perf_counter(), (report.cases, len(report.refused), len(report.failures))
        for i, case in enumerate(group):
            if limit is not None and perf_counter() - start >= limit:
                report.not_run.extend(left.name for left in group[i:])
                break
            if progress is not None:
                progress(done, len(cases))
            _check_case(case, backend, expected, report)
            done += 1
        n_run, n_refused = report.cases - before[0], len(report.refused) - before[1]
        if n_run:
            ops.add(op)
        if finished is not None and n_run + n_refused:
            wrong = tuple(report.failures[before[2] :])
            finished(Checked(target, op, n_run, n_refused, wrong, perf_counter() - begun))
    report.ops = len(ops)
    report.seconds = perf_counter() - start
    return report


def _rounds(cases: Sequence[Case]) -> Iterator[tuple[str, list[Case]]]:
    """One case of each op, then the others op by op: a check that is cut short has seen each op."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.op, []).append(case)
    yield from ((op, of_op[:1]) for op, of_op in found.items())
    yield from ((op, of_op[1:]) for op, of_op in found.items() if len(of_op) > 1)


def _check_case(case: Case, backend: Backend, expected: _Expected, report: Report) -> None:
    """Adds a case to the report."""
    node = case.node()
    if backend.supports_op(node):
        report.cases += 1
        report.failures.extend(_wrong(case, backend, report.target, expected, report))
        return
    report.refused.append(case.name)
    baseline = expected.backends.get("baseline")
    if baseline is not None and baseline.supports_op(node):
        report.failures.append(
            Failure(case.name, case.op, "baseline", "is refused, but the baseline runs it")
        )


def _wrong(
    case: Case, backend: Backend, target: str, expected: _Expected, report: Report
) -> Iterator[Failure]:
    """The first disagreement of a case, or None."""
    result = _result(case, backend, expected.run)
    if isinstance(result, str):
        yield Failure(case.name, case.op, "", result)
        return
    dtype = case.node().dtype
    limits = {"reference": case.limit}
    if target != "baseline" and "baseline" in expected.backends:
        limits = {"baseline": min(case.limit, _BETWEEN_TARGETS), **limits}
    for against, limit in limits.items():
        want = expected.of(case, against)
        if isinstance(want, str):
            continue  # the expected side failed, not the target
        report.against_reference += against == "reference"
        how = disagreement(result, want, dtype, limit)
        if how:
            yield Failure(case.name, case.op, against, how)
            return


def _result(case: Case, backend: Backend, run: Runner) -> Array | str:
    """The result, or the way in which the case failed."""
    try:
        return run(case, backend)
    except WeftError as error:
        return f"fails: {error}"
