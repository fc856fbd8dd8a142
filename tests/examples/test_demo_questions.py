"""The rules, the held-out split and the helpers of the demo model's questions."""

import random
from collections import Counter

import demo_questions as dq
import pytest


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("What is 17 + 25?", "42."),
        ("What is 99 + 99?", "198."),
        ("What is 52 - 17?", "35."),
        ("What is 7 - 7?", "0."),
        ("Next after 3 6 9?", "12."),
        ("Next after 40 36 32?", "28."),
        ("Which 3 days come after Saturday?", "Sunday Monday Tuesday."),
        ("Which 2 days come before Monday?", "Sunday Saturday."),
        ("Which 3 months come after November?", "December January February."),
        ("Which 2 months come before March?", "February January."),
        ("Which is larger, 9 or 45?", "45."),
        ("Which is smaller, 9 or 45?", "9."),
        ("Count from 8 to 11?", "8 9 10 11."),
        ("Count from 11 to 9?", "11 10 9."),
        ("Sort 7 0 9 7 1?", "0 1 7 7 9."),
        ("Reverse k t a p?", "p a t k."),
        ("Is 358 even or odd?", "Even."),
        ("Is 7 even or odd?", "Odd."),
    ],
)
def test_solve_answers_by_hand(prompt: str, answer: str) -> None:
    assert dq.solve(prompt) == answer
    assert dq.is_right(f"{prompt} {answer}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What is 17 + 25",
        "What is 17 * 25?",
        " What is 17 + 25?",
        "What is 17 + 25? 42.",
        "Next after 3 6?",
        "Which 3 days come after May?",
        "Which 3 months come after Monday?",
        "Reverse 1 2?",
        "How are you?",
    ],
)
def test_solve_refuses_what_is_no_question(text: str) -> None:
    assert dq.solve(text) is None
    assert dq.kind_of(text) is None


def test_solve_knows_no_next_term_after_unequal_steps() -> None:
    assert dq.solve("Next after 3 6 10?") is None
    assert not dq.is_right("Next after 3 6 10? 14.")


@pytest.mark.parametrize(
    "line",
    [
        "What is 17 + 25? 43.",
        "What is 17 + 25?42.",
        "What is 17 + 25? 42",
        "What is 17 + 25? 42. ",
        "What is 17 + 25?",
        "",
    ],
)
def test_is_right_wants_the_exact_line(line: str) -> None:
    assert not dq.is_right(line)


@pytest.mark.parametrize("kind", dq.KINDS)
def test_each_question_is_of_its_kind_and_has_one_answer(kind: str) -> None:
    rng = random.Random(1)
    for _ in range(300):
        prompt = dq.KINDS[kind].ask(rng)
        assert [k for k in dq.KINDS if dq.kind_of(prompt) == k] == [kind]
        answer = dq.solve(prompt)
        assert answer is not None and answer.endswith(".") and "-" not in answer


def test_sequences_stay_within_two_digits() -> None:
    rng = random.Random(2)
    for _ in range(300):
        prompt, answer = dq.ask("sequence", rng, held_out=False)
        numbers = [int(word) for word in f"{prompt[:-1]} {answer[:-1]}".split()[2:]]
        assert len(numbers) == 4 and 0 <= min(numbers) and max(numbers) <= 99


def test_held_out_is_a_fixed_set_of_distinct_questions_of_all_kinds() -> None:
    questions = list(dq.held_out(400, seed=3))
    assert questions == list(dq.held_out(400, seed=3))
    assert questions != list(dq.held_out(400, seed=4))
    assert len({prompt for prompt, _ in questions}) == 400
    assert all(dq.is_held_out(p) and dq.solve(p) == a for p, a in questions)
    assert {dq.kind_of(p) for p, _ in questions[:10]} == set(dq.KINDS)


def test_a_small_kind_runs_out_and_the_others_go_on() -> None:
    kinds = Counter(dq.kind_of(p) for p, _ in dq.held_out(1500))
    assert kinds.total() == 1500
    # 7 days x 7 lengths x 2 directions: about a tenth of 98 are held out.
    assert 1 <= kinds["days"] <= 20 < kinds["sum"]


def test_held_out_of_nothing_is_empty() -> None:
    assert list(dq.held_out(0)) == []


def test_pages_have_each_kind_once_and_nothing_held_out() -> None:
    rng = random.Random(5)
    for _ in range(100):
        page = dq.page(rng)
        assert sorted(dq.kind_of(p) or "" for p, _ in page) == sorted(dq.KINDS)
        assert not any(dq.is_held_out(p) for p, _ in page)
        assert all(dq.is_right(f"{p} {a}") for p, a in page)


def test_operands_in_another_order_are_held_out_together() -> None:
    for a in range(100):
        for b in range(a):
            one, other = f"What is {a} + {b}?", f"What is {b} + {a}?"
            assert dq.is_held_out(one) == dq.is_held_out(other)
    assert dq.is_held_out("Sort 7 1 9?") == dq.is_held_out("Sort 9 7 1?")
    one, other = "Which is larger, 3 or 45?", "Which is larger, 45 or 3?"
    assert dq.is_held_out(one) == dq.is_held_out(other)


def test_about_one_question_in_ten_is_held_out() -> None:
    held = sum(dq.is_held_out(f"What is {a} + {b}?") for a in range(100) for b in range(100))
    assert 800 < held < 1200
