"""Which steps ran at the same time."""

import numpy as np

from weft.execute.profile_lines import Line
from weft.execute.profile_trace import Trace, overlap, overlapping


def spans(*steps: list[tuple[int, int]]) -> np.ndarray:
    """A row a step of (begin, end) a thread, in nanoseconds, busy all the time."""
    return np.array([[(b, e, e - b) for b, e in step] for step in steps], np.int64)


def test_barriers_part_groups_and_waits_count() -> None:
    pairs = overlapping(
        spans([(10, 30), (10, 40)], [(42, 60), (41, 50)], [(51, 55), (0, 0)], [(70, 90), (0, 0)])
    )
    assert [(g.steps, g.begin, g.end) for g in pairs] == [
        ((0,), 10, 40), ((1, 2), 40, 60), ((3,), 60, 90)
    ]  # fmt: skip
    assert round(sum(g.seconds for g in pairs) * 1e9) == 80


def test_order_is_that_of_time_and_idle_steps_are_left_out() -> None:
    pairs = overlapping(spans([(50, 60)], [(0, 0)], [(10, 20)]))
    assert [g.steps for g in pairs] == [(2,), (0,)]
    assert overlapping(np.zeros((0, 1, 3), np.int64)) == []


def test_steps_that_take_turns_are_one_slice() -> None:
    """A chain: both steps work on a few rows at a time."""
    both = np.array([[(10, 50, 20)], [(15, 60, 25)], [(61, 70, 9)]], np.int64)
    lines = [Line("RMS_NORM", "f32", "cpu", "a"), Line("QUANTIZE", "q8_0", "cpu", "b")]
    lines.append(Line("ADD", "f32", "cpu", "c"))
    trace = Trace()
    trace.steps("cpu", lines, overlapping(both), both)
    events = [e for e in trace.as_json()["traceEvents"] if e["ph"] == "X"]
    slices = [e for e in events if e["cat"] == "cpu"]
    assert len(events) == len(slices) + 2  # and a slice for each stage
    assert [(e["name"], e["ts"], e["dur"]) for e in slices] == [
        ("RMS_NORM + QUANTIZE", 0.0, 0.05), ("ADD c", 0.051, 0.009)
    ]  # fmt: skip
    assert slices[0]["args"]["steps"] == ["RMS_NORM f32 a", "QUANTIZE q8_0 b"]


def test_overlap_is_what_rows_have_in_common() -> None:
    assert overlap([]) == overlap([[(0, 10)]]) == overlap([[(0, 10)], [(10, 20)]]) == 0
    assert overlap([[(0, 10)], [(5, 20)]]) == 5
    # within a row nothing overlaps, however its intervals lie
    assert overlap([[(0, 10), (5, 20)], [(100, 200)]]) == 0
    assert overlap([[(30, 40), (0, 10)], [(5, 35)], [(0, 40)]]) == 5 + 5 + 40
