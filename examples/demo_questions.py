"""The questions of the demo model: ten kinds, each with a rule that gives the one right answer.

`solve` answers any question of these kinds, also one that a model made up, so generated text can
be checked line by line. A tenth of all questions is held out: training never sees them. Standard
library only.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Kind(NamedTuple):
    """How to ask a random question, the form of all such questions, and the answer to a match.

    A match without a right answer (3 6 10 has no next term by our rule) gives None.
    """

    ask: Callable[[random.Random], str]
    form: str
    answer: Callable[[re.Match[str]], str | None]


def _ask_sum(rng: random.Random) -> str:
    return f"What is {rng.randrange(100)} + {rng.randrange(100)}?"


def _ask_difference(rng: random.Random) -> str:
    small, large = sorted((rng.randrange(100), rng.randrange(100)))
    return f"What is {large} - {small}?"


def _ask_sequence(rng: random.Random) -> str:
    """Three numbers rising in equal steps; they and the next one are all in 0..99."""
    step = rng.randrange(1, 25)
    first = rng.randrange(100 - 3 * step)
    return f"Next after {first} {first + step} {first + 2 * step}?"


def _ask_calendar(rng: random.Random, unit: str, names: list[str]) -> str:
    side = rng.choice(["after", "before"])
    return f"Which {rng.randrange(2, 9)} {unit} come {side} {rng.choice(names)}?"


def _ask_comparison(rng: random.Random) -> str:
    a, b = rng.sample(range(100), 2)
    return f"Which is {rng.choice(['larger', 'smaller'])}, {a} or {b}?"


def _ask_count(rng: random.Random) -> str:
    """Up or down, three to ten numbers."""
    distance = rng.randrange(2, 10)
    low = rng.randrange(100 - distance)
    a, b = rng.sample([low, low + distance], 2)
    return f"Count from {a} to {b}?"


def _ask_sort(rng: random.Random) -> str:
    return f"Sort {' '.join(rng.choices('0123456789', k=rng.randrange(3, 6)))}?"


def _ask_reverse(rng: random.Random) -> str:
    return f"Reverse {' '.join(rng.choices(LETTERS, k=rng.randrange(3, 6)))}?"


def _ask_parity(rng: random.Random) -> str:
    return f"Is {rng.randrange(1000)} even or odd?"


def _next_term(m: re.Match[str]) -> str | None:
    a, b, c = map(int, m[1].split())
    return str(c + c - b) if c - b == b - a else None


def _calendar(m: re.Match[str], names: list[str]) -> str:
    start, sign = names.index(m[3]), 1 if m[2] == "after" else -1
    return " ".join(names[(start + sign * i) % len(names)] for i in range(1, int(m[1]) + 1))


def _count(m: re.Match[str]) -> str:
    a, b = int(m[1]), int(m[2])
    return " ".join(map(str, range(a, b + 1) if a < b else range(a, b - 1, -1)))


KINDS: dict[str, Kind] = {
    "sum": Kind(_ask_sum, r"What is (\d+) \+ (\d+)\?", lambda m: str(int(m[1]) + int(m[2]))),
    "difference": Kind(
        _ask_difference, r"What is (\d+) - (\d+)\?", lambda m: str(int(m[1]) - int(m[2]))
    ),
    "sequence": Kind(_ask_sequence, r"Next after (\d+(?: \d+){2})\?", _next_term),
    "days": Kind(
        lambda rng: _ask_calendar(rng, "days", DAYS),
        rf"Which (\d+) days come (after|before) ({'|'.join(DAYS)})\?",
        lambda m: _calendar(m, DAYS),
    ),
    "months": Kind(
        lambda rng: _ask_calendar(rng, "months", MONTHS),
        rf"Which (\d+) months come (after|before) ({'|'.join(MONTHS)})\?",
        lambda m: _calendar(m, MONTHS),
    ),
    "comparison": Kind(
        _ask_comparison,
        r"Which is (larger|smaller), (\d+) or (\d+)\?",
        lambda m: str((max if m[1] == "larger" else min)(int(m[2]), int(m[3]))),
    ),
    "count": Kind(_ask_count, r"Count from (\d+) to (\d+)\?", _count),
    "sort": Kind(_ask_sort, r"Sort (\d(?: \d)*)\?", lambda m: " ".join(sorted(m[1].split()))),
    "reverse": Kind(_ask_reverse, r"Reverse ([a-z](?: [a-z])*)\?", lambda m: m[1][::-1]),
    "parity": Kind(
        _ask_parity, r"Is (\d+) even or odd\?", lambda m: "Odd" if int(m[1]) % 2 else "Even"
    ),
}


def kind_of(prompt: str) -> str | None:
    """The name of the kind of question that `prompt` is, or None."""
    return next((name for name, k in KINDS.items() if re.fullmatch(k.form, prompt)), None)


def solve(prompt: str) -> str | None:
    """The right answer to `prompt`, full stop included, or None if it is no question of ours."""
    for kind in KINDS.values():
        if match := re.fullmatch(kind.form, prompt):
            answer = kind.answer(match)
            return None if answer is None else answer + "."
    return None


def is_right(line: str) -> bool:
    """Whether `line` is a question of ours followed by a space and its right answer."""
    prompt, mark, answer = line.partition("?")
    expected = solve(prompt + mark)
    return expected is not None and answer == " " + expected


def is_held_out(prompt: str) -> bool:
    """Whether training must not see this question: one in ten, by a hash of its words.

    The words are sorted first, so that questions which differ only in the order of their operands
    (17 + 25 and 25 + 17, two orders of the same digits to sort) are held out together.
    """
    words = " ".join(sorted(re.findall(r"\w+|[+-]", prompt)))
    return hashlib.sha256(words.encode()).digest()[0] * 10 < 256


def ask(kind: str, rng: random.Random, *, held_out: bool) -> tuple[str, str]:
    """A random question of `kind`, from the held-out part or from the rest, and its answer."""
    while True:
        prompt = KINDS[kind].ask(rng)
        if is_held_out(prompt) == held_out:
            return prompt, solve(prompt) or ""


def held_out(n: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """`n` distinct held-out questions as (prompt, expected answer), the kinds taking turns.

    A model is right if it continues `prompt` with a space, the answer and a newline. A kind with
    few questions (a dozen about days are held out) leaves its turns to the others once used up.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    kinds = list(KINDS)
    while kinds:
        for kind in list(kinds):
            # After this many repeats in a row the kind has nothing new, or nearly so.
            for _ in range(100):
                prompt, answer = ask(kind, rng, held_out=True)
                if prompt not in seen:
                    break
            else:
                kinds.remove(kind)
                continue
            if len(seen) == n:
                return
            seen.add(prompt)
            yield prompt, answer


def page(rng: random.Random) -> list[tuple[str, str]]:
    """A page of training text: one question of each kind, in random order, none held out."""
    return [ask(kind, rng, held_out=False) for kind in rng.sample(list(KINDS), len(KINDS))]
