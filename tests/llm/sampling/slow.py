"""Every sampler as its definition says it, over lists of (id, logit), in plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = list[tuple[int, float]]

__all__ = ["adaptive_p", "dry", "min_p", "penalties", "probabilities", "top_k", "top_n_sigma",
           "top_p", "typical", "xtc"]  # fmt: skip


def probabilities(row: Row) -> dict[int, float]:
    largest = max(logit for _, logit in row)
    weights = {id_: math.exp(logit - largest) for id_, logit in row}
    total = sum(weights.values())
    return {id_: w / total for id_, w in weights.items()}


def falling(row: Row) -> Row:
    return sorted(row, key=lambda pair: (-pair[1], pair[0]))


def top_k(row: Row, k: int) -> Row:
    return falling(row)[:k]


def top_p(row: Row, p: float) -> Row:
    probs, kept, total = probabilities(row), [], 0.0
    for pair in falling(row):
        kept.append(pair)
        total += probs[pair[0]]
        if total >= p:
            break
    return kept


def min_p(row: Row, p: float) -> Row:
    probs = probabilities(row)
    largest = max(probs.values())
    return [pair for pair in row if probs[pair[0]] >= p * largest]


def typical(row: Row, p: float) -> Row:
    probs = probabilities(row)
    entropy = -sum(q * math.log(q) for q in probs.values() if q > 0)

    def distance(pair: tuple[int, float]) -> float:
        q = probs[pair[0]]
        return abs(-math.log(q) - entropy) if q > 0 else math.inf

    kept, total = [], 0.0
    for pair in sorted(row, key=distance):
        kept.append(pair)
        total += probs[pair[0]]
        if total > p:
            break
    return kept


def top_n_sigma(row: Row, n: float) -> Row:
    logits = [logit for _, logit in row if logit > -math.inf]
    mean = sum(logits) / len(logits)
    sigma = math.sqrt(sum((x - mean) ** 2 for x in logits) / len(logits))
    bound = max(logits) - n * sigma
    return [pair for pair in row if pair[1] >= bound]


def xtc(row: Row, threshold: float) -> Row:
    probs = probabilities(row)
    choices = [pair for pair in falling(row) if probs[pair[0]] >= threshold]
    out = {id_ for id_, _ in choices[:-1]}
    return [pair for pair in row if pair[0] not in out]


def penalties(
    row: Row, window: Sequence[int], repeat: float, presence: float, frequency: float
) -> Row:
    out = []
    for id_, logit in row:
        count = list(window).count(id_)
        if count:
            logit = logit / repeat if logit > 0 else logit * repeat
            logit -= presence + count * frequency
        out.append((id_, logit))
    return out


def dry(
    row: Row, window: Sequence[int], multiplier: float, base: float, allowed: int, since_break: int
) -> Row:
    """`since_break`: tokens after the last sequence breaker."""
    cost: dict[int, float] = {}
    for place in range(1, len(window)):  # what if window[:place] ends like window?
        length = 0
        while length < place and window[place - 1 - length] == window[-1 - length]:
            length += 1
        length = min(length, since_break)
        if length >= allowed and length > 0:
            id_ = window[place]
            cost[id_] = max(cost.get(id_, 0.0), multiplier * base ** (length - allowed))
    return [(id_, logit - cost.get(id_, 0.0)) for id_, logit in row]


def adaptive_p(row: Row, aim: float) -> Row:
    probs = probabilities(row)
    hills = []
    for id_, logit in row:
        distance = abs(probs[id_] - aim) / 0.3
        hill = 5 - 10 * distance * distance / (1 + distance)
        hills.append((id_, hill if logit > -math.inf else logit))
    return hills
