"""Tasks with several answers, in the files that llama-perplexity reads.

HellaSwag: six lines a task: the beginning, the number of the right ending (0 to 3), four endings.

Winogrande: CSV without a head: number, sentence with `_`, two words for it, the right one (1 or 2).
A sentence with commas is in double quotes.

Multiple choice: little endian: u32 tasks, u32 positions of the tasks in the file, and the tasks:
u32 length and UTF-8 bytes of the question, then twice (one right answer; several right ones, which
is not used): u32 answers (at most 100), u32 length and bytes of each, i32 labels (1: right).

A share of the tasks is drawn as llama-perplexity draws it, so that it is the same share.

Source: tools/perplexity/perplexity.cpp in llama.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from weft.errors import FormatError
from weft.records import dataclass

_MOST_ANSWERS = 100
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Choice:
    """A text and the ways in which it may go on."""

    text: str
    answers: tuple[str, ...]
    right: frozenset[int]
    """The numbers of the right answers, from 0."""


@dataclass(frozen=True, slots=True)
class Blank:
    """A sentence with a gap, and two words for it."""

    before: str
    behind: str
    words: tuple[str, str]
    right: int
    """0 or 1."""


def read_hellaswag(text: str) -> list[Choice]:
    """The tasks of a file. Raises FormatError, naming the line, for one that is damaged."""
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines or len(lines) % 6:
        raise FormatError(
            f"HellaSwag tasks have 6 lines each, but the file has {len(lines)}; each is a "
            "beginning, the number of the right ending, and 4 endings"
        )
    tasks = []
    for at in range(0, len(lines), 6):
        label = lines[at + 1].strip()
        if label not in ("0", "1", "2", "3"):
            raise FormatError(f"line {at + 2} is {_short(label)}, but the right ending is 0 to 3")
        tasks.append(Choice(lines[at], tuple(lines[at + 2 : at + 6]), frozenset({int(label)})))
    return tasks


def read_winogrande(text: str) -> tuple[list[Blank], list[str]]:
    """The tasks of a file, and what is wrong with lines that are none, which are left out.

    Raises FormatError if there is no task at all."""
    tasks, wrong = [], []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            tasks.append(_blank(line))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if not tasks:
        raise FormatError(
            "there is no Winogrande task: lines are number,sentence with _,word,word,1 or 2 "
            f"({wrong[0]})"
        )
    return tasks, wrong


def _blank(line: str) -> Blank:
    commas, quoted = [], False
    for at, sign in enumerate(line):
        if sign == '"':
            quoted = not quoted
        elif sign == "," and not quoted:
            commas.append(at)
            if len(commas) == 4:
                break
    if len(commas) < 4:
        raise ValueError(f"it has {len(commas)} commas of 4: {_short(line)}")
    first, second, third, fourth = commas
    sentence = line[first + 1 : second]
    if sentence.startswith('"'):
        sentence = sentence[1:-1]
    before, gap, behind = sentence.partition("_")
    if not gap:
        raise ValueError(f"the sentence has no _: {_short(sentence)}")
    answer = line[fourth + 1 :].strip()
    if answer not in ("1", "2"):
        raise ValueError(f"the right word is {_short(answer)}, but it must be 1 or 2")
    return Blank(
        before, behind, (line[second + 1 : third], line[third + 1 : fourth]), int(answer) - 1
    )


def read_multiple_choice(data: bytes) -> list[Choice]:
    """The tasks of a file. Raises FormatError, naming the task, for one that is damaged."""
    reader = _Bytes(data)
    n = reader.u32("the number of tasks")
    if not 1 <= n <= (len(data) - 4) // 4:
        raise FormatError(
            f"a file of {len(data)} bytes cannot have {n} multiple-choice tasks; it is of another "
            "kind or damaged"
        )
    positions = struct.unpack(f"<{n}I", reader.take(4 * n, "positions"))
    return [reader.task(number, position) for number, position in enumerate(positions, 1)]


class _Bytes:
    """Reads a file; every read is checked against its end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.spent = 0

    def take(self, n: int, what: str) -> bytes:
        if n > len(self.data) - self.at:
            raise FormatError(
                f"{what} at byte {self.at} takes {n} bytes, but the file has "
                f"{len(self.data) - self.at} more; it is damaged or no multiple-choice file"
            )
        self.at += n
        return self.data[self.at - n : self.at]

    def u32(self, what: str) -> int:
        return int(struct.unpack("<I", self.take(4, what))[0])

    def text(self, what: str) -> str:
        raw = self.take(self.u32(f"the length of {what}"), what)
        return raw.decode("utf-8", "replace")

    def task(self, number: int, position: int) -> Choice:
        if position > len(self.data):
            raise FormatError(
                f"task {number} is at byte {position} of a file of {len(self.data)}; it is damaged"
            )
        start = self.at = position
        question = self.text(f"the question of task {number}")
        answers, labels = self._answers(number)
        self._answers(number)
        self.spent += self.at - start
        if self.spent > len(self.data):
            raise FormatError(f"task {number} overlaps another; the file is damaged")
        if not question or not answers or not all(answers):
            raise FormatError(f"task {number} has an empty question or answer")
        right = frozenset(i for i, label in enumerate(labels) if label == 1)
        return Choice(question, answers, right)

    def _answers(self, number: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        n = self.u32(f"the number of answers of task {number}")
        if n > _MOST_ANSWERS:
            raise FormatError(f"task {number} has {n} answers; at most {_MOST_ANSWERS} can be")
        answers = tuple(self.text(f"an answer of task {number}") for _ in range(n))
        return answers, struct.unpack(f"<{n}i", self.take(4 * n, f"labels of task {number}"))


def _numbers() -> Callable[[], int]:
    """The numbers of std::mt19937(1), 32 bits each."""
    state = np.random.RandomState(1)
    return lambda: int(state.randint(0, 1 << 32, dtype=np.uint32))


def some_hellaswag(tasks: Sequence[_T], n: int) -> list[_T]:
    """`n` of `tasks` in random order, by the draws of libstdc++'s uniform_int_distribution."""
    draw, left, chosen = _numbers(), list(tasks), []
    for _ in range(min(n, len(tasks))):
        most = len(left)
        product = draw() * most
        while (product & 0xFFFFFFFF) < most and (product & 0xFFFFFFFF) < (1 << 32) % most:
            product = draw() * most
        chosen.append(left.pop(product >> 32))
    return chosen


def some_of(tasks: Sequence[_T], n: int) -> Sequence[_T]:
    """`n` random ones of `tasks`, or all in order if `n` is 0 or there are no more."""
    if not 0 < n < len(tasks):
        return tasks
    draw, left, chosen = _numbers(), list(tasks), []
    scale = np.float32(1) / (np.float32(1) + np.float32(0xFFFFFFFF))
    for _ in range(n):
        at = min(int(scale * np.float32(draw()) * np.float32(len(left))), len(left) - 1)
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
