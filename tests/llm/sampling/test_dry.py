"""DRY: the examples of its definition, a slow version, and sequence breakers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.sampling import slow
from tests.profiles import examples
from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.history import Dry, History


def costs(
    text: list[int] | str,
    *,
    multiplier: float = 1.0,
    base: float = 1.75,
    allowed: int = 2,
    last_n: int = -1,
    breakers: tuple[str, ...] = (),
    pieces: list[bytes] | None = None,
) -> dict[int, float]:
    """What DRY takes from tokens; tokens of a str are its characters, or `pieces` by id."""
    ids = [ord(c) for c in text] if isinstance(text, str) else text
    dry = Dry(multiplier, base, allowed, last_n, breakers,
              lambda i: pieces[i] if pieces else chr(i).encode())  # fmt: skip
    history = History()
    for id_ in ids:
        history.append(id_)
        dry.accept(id_)
    c = Candidates(np.zeros(128, np.float32))
    dry(c, history)
    return {int(i): -float(c.logits[i]) for i in np.flatnonzero(c.logits)}


def letters(by_id: dict[int, float]) -> dict[str, float]:
    return {chr(i): cost for i, cost in by_id.items()}


def test_a_breaker_may_be_half_a_character() -> None:
    """Text of JSON may have a lone surrogate; no token has it."""
    assert costs([1, 2, 1, 2, 1], breakers=("\ud800",), pieces=[b"a"] * 9)


def test_nothing_repeats() -> None:
    assert costs("abcdefg") == {}


def test_a_repetition_costs_by_its_length() -> None:
    # "abcd ... abc": the three that repeat, one more than allowed, make d cost base ** 1
    assert letters(costs("abcdxabc", multiplier=0.8)) == pytest.approx({"d": 0.8 * 1.75})
    assert letters(costs("abcdxyabcd", multiplier=0.8)) == pytest.approx({"x": 0.8 * 1.75**2})


def test_up_to_the_allowed_length() -> None:
    assert letters(costs("abxab", allowed=2)) == {"x": 1.0}
    assert costs("abxab", allowed=3) == {}


def test_the_longest_of_several_repetitions_counts() -> None:
    # bc was followed by x once, by d behind "abc"
    assert letters(costs("bcx.abcd-abc")) == pytest.approx({"x": 1.0, "d": 1.75**1})
    assert letters(costs("bcd.abcd-abc")) == pytest.approx({"d": 1.75})


def test_a_breaker_ends_the_sequence() -> None:
    text = "say: hello\nsay: hello"
    assert "\n" in letters(costs(text))
    assert letters(costs(text, breakers=("\n",)))["\n"] == pytest.approx(1.75 ** (10 - 2))
    assert letters(costs(text, breakers=("\n", ":")))["\n"] == pytest.approx(1.75 ** (6 - 2))
    assert costs("a:\nab:\na", breakers=("\n",)) == {}


def test_breakers_within_and_across_tokens() -> None:
    pieces = [b"hi", b"END", b"xE", b"N", b"Dy", b"yEN", b"D"]
    # 1, 2+3+4 and 5+6 hold a breaker; so does no other run of these
    assert costs([0, 1, 0, 1], pieces=pieces, breakers=("END",), allowed=1) == {}
    assert costs([0, 2, 3, 4, 0, 2, 3, 4], pieces=pieces, breakers=("END",), allowed=1) == {}
    assert costs([0, 5, 6, 0, 5, 6], pieces=pieces, breakers=("END",), allowed=1) == {}
    assert costs([0, 5, 3, 0, 5, 3], pieces=pieces, breakers=("END",), allowed=1) != {}


def test_the_window() -> None:
    assert costs("abcdxabc", last_n=5) == {}
    assert letters(costs("abcdxabc", last_n=8)) == pytest.approx({"d": 1.75})


def test_a_very_long_repetition_stays_finite() -> None:
    (cost,) = costs([1] * 3000, base=4.0).values()
    assert np.isfinite(cost) and cost == pytest.approx(4.0 ** int(88.7228391 / np.log(4)))


@settings(max_examples=examples(3.0))
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    multiplier=st.floats(0.1, 3),
    base=st.sampled_from([1.0, 1.2, 1.75, 3.0]),
    allowed=st.integers(1, 4),
    last_n=st.sampled_from([-1, 5, 12]),
    breaker=st.sampled_from([None, 0, 3]),
)
def test_against_the_definition(
    ids: list[int],
    multiplier: float,
    base: float,
    allowed: int,
    last_n: int,
    breaker: int | None,
) -> None:
    window = ids if last_n < 0 else ids[-last_n:]
    since = len(window)
    if breaker in ids:
        since = min(since, ids[::-1].index(breaker))
    row = [(i, 0.0) for i in range(4)]
    want = slow.dry(row, window, multiplier, base, allowed, since)
    got = costs(
        ids, multiplier=multiplier, base=base, allowed=allowed, last_n=last_n,
        breakers=() if breaker is None else (chr(breaker),),
    )  # fmt: skip
    assert got == pytest.approx({i: -x for i, x in want if x}, rel=1e-6)
