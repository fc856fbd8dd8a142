"""Why a device had nothing to do, by name, and how much of that more runs under way would hide."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.execute.stub_devices import Device, cpu
from tests.execute.test_pipeline import pipeline, run_all, some
from weft.backends.base import QueueSpan
from weft.errors import named
from weft.execute import Profile
from weft.execute.overlap import Hidden, Stage, hidden, stages_of, time_of
from weft.execute.profile_table import advice, wait_rows
from weft.execute.recorder import Recorder
from weft.execute.waits import Part, Parts, Wait, find_waits, units

MS = 1_000_000
"""Nanoseconds."""


def bound_of(where: Sequence[int], copies: int = 1) -> list[Any]:
    """The bound programs of a chain of products p0 .. y on a gpu (0) and a cpu (1)."""
    driver = pipeline([Device("gpu"), cpu("cpu")], list(where), copies)
    return [session.bound for session in driver.sessions]


def part(bound: Any, split: int, begin: float, end: float, copy: int = -1, **more: Any) -> Part:
    """A piece of work between two times in milliseconds; copies are made by the host."""
    queue = more.pop("queue", "host" if copy >= 0 else bound.program.splits[split].device)
    if copy >= 0:  # of the value, not of a weight
        names = [bound.program.tensors[c.src].name for c in bound.program.splits[split].copies]
        copy = next(i for i, name in enumerate(names) if name.startswith("p"))
    return Part(bound, split, copy, queue, int(begin * MS), int(end * MS), **more)


def found(parts: Sequence[Part], end: float) -> list[tuple[str, int, str, float, float]]:
    waits = find_waits(parts, 0, int(end * MS), Parts())
    return [
        (one.wait.device, one.wait.split, one.wait.text, one.begin / MS, one.end / MS)
        for one in waits
    ]


def test_a_split_waits_for_what_another_device_computes() -> None:
    (bound,) = bound_of([1, 1, 0, 1])  # cpu, gpu, cpu
    parts = [
        part(bound, 0, 0, 2),
        part(bound, 1, 2, 3, 0, nbytes=64), part(bound, 1, 3.5, 8),
        part(bound, 2, 8, 8.25, 0, nbytes=64), part(bound, 2, 8.25, 9),
    ]  # fmt: skip
    assert found(parts, 10) == [
        ("gpu", 1, "p1 (64 B), from split 0 on cpu", 0, 2),
        ("gpu", 1, "the copy of p1 (64 B), by host", 2, 3),
        ("gpu", 1, "calls and enqueueing on the host", 3, 3.5),
        ("cpu", 2, "p2 (64 B), from split 1 on gpu", 2, 8),
        ("cpu", 2, "the copy of p2 (64 B), by host", 8, 8.25),
        ("cpu", -1, "the end of the run, of which gpu has the rest", 9, 10),
        ("gpu", -1, "the end of the run, of which cpu has the rest", 8, 10),
    ]


def test_a_run_waits_for_the_memory_of_an_earlier_one() -> None:
    """A later run of the same copy writes what the gpu still reads; one of another copy does
    not."""
    a, b = bound_of([1, 1, 0, 0], 2)
    first = [part(a, 0, 0, 1), part(a, 1, 1, 1.5, 0), part(a, 1, 1.5, 6)]
    (wait, *_) = [one for one in found([*first, part(a, 0, 6, 7)], 7) if one[0] == "cpu"]
    assert wait[2:] == ("the end of an earlier run in its memory, split 1 on gpu", 1, 6)
    (wait, *_) = [one for one in found([*first, part(b, 0, 6, 7)], 7) if one[0] == "cpu"]
    assert wait[2:] == ("calls and enqueueing on the host", 1, 6)


def test_memory_that_is_still_read() -> None:
    """The copy of a second run overwrites the input of the split that computes."""
    (bound,) = bound_of([1, 1, 0, 0])
    parts = [
        part(bound, 0, 0, 1), part(bound, 1, 1, 1.5, 0), part(bound, 1, 1.5, 6),
        part(bound, 0, 1.6, 2), part(bound, 1, 6, 6.5, 0), part(bound, 1, 6.5, 7),
    ]  # fmt: skip
    relation = Parts().relation
    assert relation(parts[2], parts[4]) == "memory" and relation(parts[1], parts[2]) == "data"
    assert relation(parts[0], parts[2]) is None
    text = Wait("cpu", 1, "memory", "x", 4, "gpu", 1, 1).text
    assert text == "memory of x (4 B), in use by split 1 on gpu of the run before"


def test_gaps_between_kernels_are_waits() -> None:
    (bound,) = bound_of([1, 1, 0, 1])
    spans = [QueueSpan("kernel", "k", 0, 0, *at) for at in ((10, 20), (15, 5000), (8000, 9000))]
    recorder = Recorder(Profile(), bound.program)
    recorder._part(bound, 1, -1, "gpu", 0, 9000, spans)
    (kept,) = recorder._parts
    assert (kept.begin, kept.end, kept.gaps) == (10, 9000, 3000)
    parts = [part(bound, 0, 0, 1), part(bound, 1, 1, 3, gaps=MS), part(bound, 2, 3, 4)]
    assert ("gpu", 1, "the next of its kernels", 2, 3) in found(parts, 4)


def test_one_device_waits_for_nothing() -> None:
    (bound,) = bound_of([1, 1, 1, 1])
    assert found([part(bound, 0, 3, 4)], 9) == []


def test_runs_are_told_apart() -> None:
    a, b = bound_of([1, 1, 0, 1], 2)
    splits = units([
        part(a, 0, 0, 1), part(b, 0, 1, 2), part(a, 1, 2, 3, 0), part(a, 1, 3, 4), part(a, 0, 4, 5),
        part(b, 1, 5, 6), part(b, 2, 6, 7), part(b, 0, 7, 8),
    ])  # fmt: skip
    assert [(u.run, u.steps.split, len(u.copies)) for u in splits] == [
        (0, 0, 0), (1, 0, 0), (0, 1, 1), (2, 0, 0), (1, 1, 0), (1, 2, 0), (3, 0, 0)
    ]  # fmt: skip


# ---- a profile -----------------------------------------------------------------------------------


def slow_profile(copies: int, runs: int) -> Profile:
    driver = pipeline([Device("gpu", seconds=0.02), cpu("cpu")], [1, 1, 0, 1], copies)
    run_all(driver, some(2))
    profile = Profile()
    with driver.profile(profile):
        run_all(driver, some(runs))
    return profile


def test_a_profile_has_names_for_its_waits(tmp_path: Path) -> None:
    profile = slow_profile(1, 3)
    longest = profile.waits_by_time()[0]
    assert (longest.device, longest.split, longest.tensor) == ("cpu", 2, "p2")
    assert (longest.reason, longest.on, longest.work, longest.times) == ("data", "gpu", 1, 3)
    assert longest.seconds >= 3 * 0.02 and longest.nbytes == 16 * 4 * 3
    names, row, *_ = wait_rows(profile, 9)
    assert row[0:3] == ["cpu", "2", "3"] and row[-1] == "p2 (192 B), from split 1 on gpu"
    assert len(names) == len(row) and row[-1] in str(profile)
    data = json.loads(json.dumps(profile.as_json()))
    assert data["waits"][0]["text"] == row[-1]
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [e for e in events if e.get("cat") == "wait" and e["args"]["split"] == 2]
    assert any(
        e["name"].startswith("waits for p2 (") and e["args"]["queue"] == "gpu" for e in slices
    )


def test_nothing_is_recorded_without_several_devices() -> None:
    driver = pipeline([Device("gpu"), cpu("cpu")], [1, 1, 1, 1], 2)
    profile = Profile()
    with driver.profile(profile):
        run_all(driver, some(3))
    assert not profile.waits and not profile.parts and not profile.busiest
    assert advice(profile).startswith("one device did all the work")


def test_advice() -> None:
    profile = slow_profile(1, 4)
    program = next(iter(profile.parts))
    profile.wall, profile.busy = 0.1, {"gpu": 0.08, "cpu": 0.01}
    profile.parts[program] = _evenly(profile.parts[program])
    begin = "gpu has the most work, 20.00 ms of each run, and waited 5.00 ms: "
    for calls, text in (
        (None, "if runs do not depend on each other, n_copies 2 would hide"),
        ({program: [4]}, "n_copies 2 would hide"),
        ({program: [1, 1, 1, 1]}, "more copies would hide nothing, as each call was one batch; "
         "a smaller n_ubatch"),
        ({}, "more copies would hide nothing, as single tokens depend on each other"),
    ):  # fmt: skip
        profile.calls = calls
        assert named(advice(profile), str).startswith(begin + text)
    profile.calls = {program: [4]}
    for busy, text in ((0.095, ", as it works 95% of the time"), (0.005, "; it waited most for ")):
        profile.wall, profile.busy = 0.1, {"gpu": busy, "cpu": 0.001}
        profile.parts = {}
        assert f"more copies would hide nothing{text}" in advice(profile)
    flags = named(advice(profile), lambda name: f"--{name.replace('_', '-')}")
    assert "n_ubatch" not in flags


def _evenly(parts: Sequence[Part]) -> list[Part]:
    """The parts of a run with a millisecond of work for each split of the cpu, 10 for the gpu."""
    lengths = {"gpu": 10 * MS, "cpu": MS}
    return [p._replace(begin=0, end=lengths.get(p.queue, 0) if p.copy < 0 else 0) for p in parts]


# ---- the simulation ------------------------------------------------------------------------------

A, B = Stage("a", 1.0, (), ()), Stage("b", 1.0, (0,), ())


@pytest.mark.parametrize(
    ("stages", "times"),
    [
        ([A, B], [8, 5, 5]),
        ([A, B._replace(seconds=3.0)], [16, 13, 13]),
        ([A, B, Stage("c", 1.0, (1,), ())], [12, 7, 6]),
        ([A, B, Stage("a", 1.0, (1,), ())], [12, 8, 8]),
        ([A, B._replace(queue="a")], [8, 8, 8]),
        ([A._replace(across=(1,)), B], [8, 8, 8]),  # what comes last feeds the next run
        ([A, B._replace(across=(1,))], [8, 5, 5]),
    ],
)
def test_runs_that_overlap(stages: list[Stage], times: list[float]) -> None:
    assert [time_of(stages, 4, copies) for copies in (1, 2, 3)] == times
    assert time_of(stages, 1, 3) == sum(stage.seconds for stage in stages)


def test_the_fewest_copies_that_hide_most() -> None:
    three = [A, B, Stage("c", 1.0, (1,), ())]
    assert hidden([A, B], [4], 1) == Hidden(2, 3.0)
    assert hidden(three, [4, 4], 1) == Hidden(3, 12.0)
    assert hidden(three, [4], 2) == Hidden(3, 1.0)
    assert hidden([A, B], [4], 2) is None  # no more is hidden
    assert hidden([A, B], [1, 1], 1) is None and hidden([], [4], 1) is None


def test_the_simulation_is_what_a_pipeline_does() -> None:
    profile = slow_profile(1, 8)
    (parts,) = profile.parts.values()
    stages = stages_of(parts, profile.known)
    # each reads what the one before it writes
    assert [(s.queue, bool(s.after), s.across) for s in stages if s.seconds > 0.01] == [
        ("gpu", True, ())
    ]
    predicted = time_of(stages, 8, 2)
    assert predicted < time_of(stages, 8, 1)
    driver = pipeline([Device("gpu", seconds=0.02), cpu("cpu")], [1, 1, 0, 1], 2)
    run_all(driver, some(2))
    begin = time.perf_counter()
    run_all(driver, some(8))
    # the gpu sleeps at least as long in any case; whatever else this machine does takes longer
    assert 8 * 0.02 <= predicted and 8 * 0.02 <= time.perf_counter() - begin
