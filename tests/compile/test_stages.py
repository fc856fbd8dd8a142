"""Stages: steps run together exactly while no bytes clash."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.compile.stages import Access, form_stages


def _step(write: tuple[int, int], *reads: tuple[int, int], buffer: int = 0) -> Access:
    return Access((buffer, *write), tuple((buffer, *r) for r in reads))


def test_independent_steps_share_a_stage() -> None:
    steps = [_step((100, 200), (0, 50)), _step((200, 300), (0, 50)), _step((300, 400), (0, 50))]
    assert form_stages(steps) == [(0, 3)]


def test_a_reader_waits_for_its_writer() -> None:
    assert form_stages([_step((0, 10)), _step((10, 20), (5, 6))]) == [(0, 1), (1, 2)]


def test_reused_memory_separates_steps() -> None:
    # the second step overwrites what the first reads, though their tensors are unrelated
    assert form_stages([_step((100, 110), (0, 10)), _step((5, 15))]) == [(0, 1), (1, 2)]


def test_other_buffers_do_not_clash() -> None:
    assert form_stages([_step((0, 10)), _step((0, 10), buffer=1)]) == [(0, 2)]


ranges = st.tuples(st.integers(0, 20), st.integers(1, 5)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(st.builds(lambda w, r: _step(w, *r), ranges, st.lists(ranges, max_size=2))))
def test_stages_cover_in_order_and_never_clash(steps: list[Access]) -> None:
    stages = form_stages(steps)
    assert [i for a, b in stages for i in range(a, b)] == list(range(len(steps)))
    for begin, end in stages:
        for i in range(begin, end):
            written = set(range(*steps[i].writes[1:]))
            for j in range(begin, end):
                if i != j:
                    touched = [steps[j].writes, *steps[j].reads]
                    assert not any(written & set(range(*t[1:])) for t in touched)
