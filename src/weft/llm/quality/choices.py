"""Finds the answer that a model prefers among several, by llama-perplexity's methods.

The answers of a task share the cells of their common beginning, and as many tasks as the context
has cells and sequences for are computed together. Only rows that are read are computed, at most
`n_outputs` at a time.

HellaSwag and multiple choice: the mean log p of the tokens of an answer. Winogrande: of the tokens
behind the word, without the last, if both answers have more than 3 tokens of their own; else of
those from the word on, where the first token of the second word is scored by the row of the first
answer's last token, as in llama-perplexity (a slip there, kept so that figures are the same).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.perplexity import pieces, require_in_order
from weft.llm.quality.logits_file import log_sums, some_rows
from weft.llm.quality.tasks import Blank, Choice
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

_LEAST_BEHIND = 3
_Z95 = 1.95996398454


@dataclass(frozen=True, slots=True)
class Score:
    """The share of tasks that were answered right, so far."""

    n_tasks: int
    n_right: int
    n_answers: int
    """Number of answers of all tasks together."""

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.n_right / self.n_tasks

    @property
    def error(self) -> float:
        """One standard error of `accuracy`."""
        return _binomial(self.accuracy, self.n_tasks)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `accuracy`, by Wilson's formula."""
        n, p = self.n_tasks, self.accuracy
        z = _Z95 * _Z95 / n
        half = z * math.sqrt(n * (4 * p * (1 - p) + z)) / (2 * _Z95)
        return (p + z / 2 - half) / (1 + z), (p + z / 2 + half) / (1 + z)

    @property
    def chance(self) -> float:
        """The share that guessing would get."""
        return self.n_tasks / self.n_answers

    @property
    def chance_error(self) -> float:
        """One standard error of `chance` for the number of tasks."""
        return _binomial(self.chance, self.n_tasks)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task."""

    scores: tuple[float, ...]
    """The mean log p of each answer."""
    chosen: int
    right: bool
    so_far: Score


def score_choices(
    context: Context, tokenizer: Tokenizer, tasks: Sequence[Choice]
) -> Iterator[TaskResult]:
    """Yields the result of each task in turn.

    Raises ContextError for a task that has more answers than the context sequences, or more tokens
    than it has cells."""
    prepared = (_Prepared.of_choice(tokenizer, task) for task in tasks)
    return _scored(context, prepared, [task.right for task in tasks])


def score_blanks(
    context: Context, tokenizer: Tokenizer, tasks: Sequence[Blank]
) -> Iterator[TaskResult]:
    """Scores tasks as `score_choices` does, for sentences with a gap."""
    prepared = (_Prepared.of_blank(tokenizer, task) for task in tasks)
    return _scored(context, prepared, [frozenset({task.right}) for task in tasks])


@dataclass(slots=True)
class _Prepared:
    """A task as tokens."""

    answers: list[list[int]]
    common: int
    """Number of tokens with which all answers begin."""
    pairs: list[list[tuple[int, int, int]]]
    """For each answer, what is scored: the answer and index of the token whose row predicts, and
    the token that is predicted. A token of the common beginning counts to answer 0."""
    later_wins: bool = False
    """True if the last of equal scores wins, False if the first does."""

    @property
    def n_tokens(self) -> int:
        """The cells that the task needs."""
        return self.common + sum(len(ids) - self.common for ids in self.answers)

    @classmethod
    def of_choice(cls, tokenizer: Tokenizer, task: Choice) -> _Prepared:
        """Scores all tokens behind the common beginning."""
        answers = [tokenizer.encode(f"{task.text} {answer}") for answer in task.answers]
        common = _common(answers)
        pairs = [
            [(a if at > common else 0, at - 1, ids[at]) for at in range(max(common, 1), len(ids))]
            for a, ids in enumerate(answers)
        ]
        return cls(answers, common, pairs)

    @classmethod
    def of_blank(cls, tokenizer: Tokenizer, task: Blank) -> _Prepared:
        """Scores the tokens behind the word, or from the word on."""
        answers = [tokenizer.encode(task.before + word + task.behind) for word in task.words]
        common = _common(answers)
        behind = all(len(ids) - common > _LEAST_BEHIND for ids in answers)
        pairs: list[list[tuple[int, int, int]]] = []
        for a, (ids, word) in enumerate(zip(answers, task.words, strict=True)):
            first = max(len(tokenizer.encode(task.before + word)), common) if behind else common
            end = len(ids) - (1 if len(ids) - first > 1 else 0)
            own = [(a if at > common else 0, at - 1, ids[at]) for at in range(max(first, 1), end)]
            if a == 1 and first == common and own and len(answers[0]) > common:
                own[0] = (0, len(answers[0]) - 1, own[0][2])
            pairs.append(own)
        return cls(answers, common, pairs, later_wins=True)


def _common(answers: Sequence[Sequence[int]]) -> int:
    """The tokens that all answers begin with; each has one more at least."""
    shortest = min(map(len, answers))
    same = 0
    while same < shortest - 1 and len({ids[same] for ids in answers}) == 1:
        same += 1
    return same


def _scored(
    context: Context, prepared: Iterator[_Prepared], right: Sequence[frozenset[int]]
) -> Iterator[TaskResult]:
    require_in_order(context.model.config)
    n_right, n_answers, number = 0, 0, 0
    for group in _groups(context, prepared):
        for task, scores in zip(group, _log_probs(context, group), strict=True):
            chosen = _best(scores, later=task.later_wins)
            is_right = chosen in right[number]
            n_right += is_right
            n_answers += len(scores)
            number += 1
            so_far = Score(number, n_right, n_answers)
            yield TaskResult(tuple(scores), chosen, is_right, so_far)


def _groups(context: Context, prepared: Iterator[_Prepared]) -> Iterator[list[_Prepared]]:
    """The tasks that are computed together."""
    group: list[_Prepared] = []
    cells = sequences = 0
    most = context.cache.n_seq_max
    for number, task in enumerate(prepared, 1):
        n = len(task.answers)
        if task.n_tokens > context.n_ctx:
            raise ContextError(
                f"task {number} has {task.n_tokens} tokens, but `n_ctx` is {context.n_ctx}; make "
                "it larger"
            )
        if n > most:
            raise ContextError(
                f"task {number} has {n} answers, but `n_seq_max` is {most}; make it larger"
            )
        if cells + task.n_tokens > context.n_ctx or sequences + n > most:
            yield group
            group, cells, sequences = [], 0, 0
        group.append(task)
        cells, sequences = cells + task.n_tokens, sequences + n
    if group:
        yield group


def _log_probs(context: Context, group: Sequence[_Prepared]) -> list[list[float]]:
    """The mean log p of each answer of each task."""
    tokens: list[int] = []
    positions: list[int] = []
    seqs: list[tuple[int, ...]] = []
    reads: dict[int, list[tuple[int, int, int]]] = {}
    """By token of the batch: task, answer, and the token that is predicted."""
    first_seq = 0
    for t, task in enumerate(group):
        own = tuple(range(first_seq, first_seq + len(task.answers)))
        place: dict[tuple[int, int], int] = {}
        for a, ids in enumerate(task.answers):
            for at in range(0 if a == 0 else task.common, len(ids)):
                place[a, at] = len(tokens)
                tokens.append(ids[at])
                positions.append(at)
                seqs.append(own if at < task.common else (own[a],))
        for a, pairs in enumerate(task.pairs):
            for of, at, following in pairs:
                reads.setdefault(place[of, at], []).append((t, a, following))
        first_seq += len(task.answers)
    found = _read(context, np.array(tokens), np.array(positions), seqs, reads)
    return [
        [_mean(found.get((t, a), [])) for a in range(len(task.answers))]
        for t, task in enumerate(group)
    ]


def _read(
    context: Context,
    tokens: np.ndarray[tuple[int], np.dtype[np.int64]],
    positions: np.ndarray[tuple[int], np.dtype[np.int64]],
    seqs: Sequence[tuple[int, ...]],
    reads: dict[int, list[tuple[int, int, int]]],
) -> dict[tuple[int, int], list[np.float32]]:
    """Computes the batch; returns log p of the tokens that are predicted, by task and answer."""
    wanted = np.zeros(len(tokens), bool)
    wanted[list(reads)] = True
    found: dict[tuple[int, int], list[np.float32]] = {}
    context.cache.clear()
    try:
        for part in pieces(context, wanted):
            rows = context.decode(
                tokens[part], positions[part], seqs=seqs[part], outputs=wanted[part]
            )
            where = np.flatnonzero(wanted[part]) + part.start
            for some in some_rows(*rows.shape):
                top, log_sum = log_sums(rows[some])
                for row, at, high, total in zip(
                    rows[some], where[some], top[:, 0], log_sum[:, 0], strict=True
                ):
                    for t, a, following in reads[int(at)]:
                        found.setdefault((t, a), []).append(row[following] - high - total)
    finally:
        context.cache.clear()
    return found


def _mean(values: Sequence[np.float32]) -> float:
    """The mean; not a number for an answer that has nothing to score."""
    return float(np.mean(values, dtype=np.float64)) if values else math.nan


def _best(scores: Sequence[float], *, later: bool) -> int:
    """The number of the largest score."""
    best = 0
    for number, score in enumerate(scores):
        if score > scores[best] or (later and not scores[best] > score):
            best = number
    return best


def _binomial(p: float, n: int) -> float:
    return math.sqrt(max(p * (1 - p), 0.0) / (n - 1)) if n > 1 else 0.0
