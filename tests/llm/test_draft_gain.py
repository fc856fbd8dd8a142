"""`Gain` drafts where it pays, as much as pays, and loses little where it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.llm.drafting.gain import LENGTHS, Chance, Costs, Credit, Gain, Odds


def run(
    gain: Gain, n: int, right: Callable[[int], float], slope: float, belief: float = 0.6
) -> tuple[float, float, list[int]]:
    """Writes `n` tokens; `right(i)` is how many of 1 tokens of a draft are right there. Returns the
    time taken, in steps without drafts, the tokens drawn, and all lengths of drafts."""
    odds, credit, clock, drawn, lengths, owed = Odds(belief), Credit(), 0.0, 0, [], 0.0
    while drawn < n:
        before = drawn
        k = gain.length([Chance(odds, 30, credit)], 1, 30)
        seconds = 1 + slope * k
        owed += k * right(drawn)
        n_right = min(k, int(owed))
        owed -= n_right
        clock += seconds
        drawn += 1 + n_right
        if k:
            odds.note(n_right, n_right < k)
        drafted = [(credit, k, 1 + n_right)] if k else []
        gain.note(1 + k, 1, seconds, seconds, 1 + n_right, drafted)
        credit.note(0.0, drawn - before)
        lengths.append(k)
    return clock, drawn, lengths


@pytest.mark.parametrize("slope", [0.05, 0.3, 0.7])
def test_right_drafts_become_long(slope: float) -> None:
    clock, drawn, lengths = run(Gain(), 400, lambda i: 1.0, slope, 0.9)
    assert lengths[:2] == [0, 0] and max(lengths) == LENGTHS[-1]
    assert drawn / clock > 0.75 * 31 / (1 + 30 * slope)


@pytest.mark.parametrize("n", [64, 128, 1000])
@pytest.mark.parametrize("slope", [0.02, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("belief", [0.3, 0.97])
def test_wrong_drafts_lose_little(n: int, slope: float, belief: float) -> None:
    clock, drawn, _ = run(Gain(), n, lambda i: 0.0, slope, belief)
    assert drawn / clock > (0.97 if n > 100 else 0.955)


def test_it_tries_again() -> None:
    """After a part without repetition, one with it is noticed."""
    gain = Gain()
    _, _, before = run(gain, 600, lambda i: 0.0, 0.3)
    clock, drawn, after = run(gain, 600, lambda i: 1.0, 0.3)
    assert sum(map(bool, before)) < 12 and max(after[-20:]) >= 15 and drawn / clock > 1.5


def test_columns_that_cost_as_much_as_steps_are_not_drafted() -> None:
    clock, drawn, lengths = run(Gain(), 500, lambda i: 0.9, 1.0)
    assert drawn / clock > 0.97 and sum(map(bool, lengths)) < 30


def test_a_text_beside_is_not_slowed_down() -> None:
    gain, odds = Gain(), Odds(0.99)
    for _ in range(3):
        gain.note(2, 2, 1.0, 1.0, 2)
    for n in (3, 5, 9, 17, 25):
        gain.costs.note(n, 1 + 0.2 * (n - 2))
    sure, none = Chance(odds, 30, Credit(9.0)), Chance(Odds(0.0), 0, Credit())
    gain.credit.left = 9.0
    assert gain.length([sure, sure], 2, 29) and not gain.length([sure, none], 2, 29)


def test_times_between_those_measured() -> None:
    costs = Costs()
    costs.note(1, 1.0)
    assert costs.seconds(3) == pytest.approx(2.0)  # the slope that is assumed
    costs.note(5, 1.8)
    assert costs.seconds(3) == pytest.approx(1.4) and costs.seconds(9) == pytest.approx(2.6)
    costs.note(1, 90.0)
    assert costs.seconds(1) == pytest.approx(1.25)  # an interruption counts twice at most


def test_looking_in_vain_rests() -> None:
    gain = Gain()
    assert gain.rests(1.0, 1) == 0
    for _ in range(3):
        gain.note(1, 1, 1e-3, 1e-3, 1)
    assert gain.rests(1e-6, 1) == 0 and gain.rests(1e-4, 1) == 14 and gain.rests(1.0, 1) == 64
