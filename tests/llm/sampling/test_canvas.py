"""Texts by diffusion against a slow definition, token for token, with a model of a few lines."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm import SamplingParams
from weft.llm.config_parts import DiffusionConfig
from weft.llm.sampling.diffusion import LENGTH, Canvas, n_computed
from weft.llm.sampling.params import ALGORITHMS

N_VOCAB, MASK, PROMPT = 11, 10, [3, 1, 4]
_WEIGHTS = np.random.default_rng(1).standard_normal((N_VOCAB, 64, N_VOCAB))
Array = NDArray[Any]


def logits(ids: Array) -> Array:
    """Logits [n, n_vocab] of a model whose rows depend on all tokens and their places."""
    seen = sum(_WEIGHTS[id_, i] for i, id_ in enumerate(ids))
    return (2 * np.sin(seen + _WEIGHTS[0, : len(ids)])).astype(np.float32)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


def kept_tokens(row: Array, p: SamplingParams, t: float) -> tuple[list[int], Array]:
    """The tokens that may be drawn and their probabilities: the likeliest first if `top_k` cuts, or
    else by id."""
    row = row.astype(np.float64)
    row[MASK] = -np.inf
    order = list(range(N_VOCAB))
    if p.top_k:
        order = sorted(order, key=lambda i: (-row[i], i))[: p.top_k]
    return order, softmax(row[order] / t)


def slowly(length: int, p: SamplingParams, usual: DiffusionConfig) -> list[list[int]]:
    """The answer after each step that writes something, straight from the definitions."""
    random = np.random.Generator(np.random.PCG64(p.seed).jumped())
    ids = np.array(PROMPT + [MASK] * length)
    n_prompt, states = len(PROMPT), []
    eps, block = p.diffusion_eps, p.diffusion_block_length
    if not eps and not block:
        block = usual.block_length
        eps = 0.0 if block else 0.001
    size = min(block or length, length)
    n_blocks = math.ceil(length / size)
    n_steps = max(p.diffusion_steps // n_blocks, 1)
    for b in range(n_blocks):
        places = range(n_prompt + b * size, min(n_prompt + (b + 1) * size, len(ids)))
        n_masks = len(places)
        for step in range(n_steps):
            masked = [i for i in places if ids[i] == MASK]
            last = step == n_steps - 1
            if block and p.diffusion_schedule == "linear":
                n = n_masks // n_steps + (step < n_masks % n_steps)
            elif block:
                left = [int(n_masks * math.cos(math.pi / 2 * (step + i) / n_steps)) for i in (0, 1)]
                n = left[0] - left[1]
            if block and masked:
                part = min(n / len(masked), 1.0)
            else:
                t, s = ((1 - eps) * (step + i) / n_steps for i in (0, 1))
                linear = p.diffusion_schedule == "linear"
                part = 1 - ((1 - s) / (1 - t) if linear else
                            math.cos(math.pi / 2 * s) / math.cos(math.pi / 2 * t))  # fmt: skip
                n = int(part * len(masked))
            part, n = (1.0, len(masked)) if last else (part, min(n, len(masked)))
            if not masked or not (n or (part and p.diffusion_algorithm == "origin")):
                continue
            all_rows = logits(ids)
            if p.diffusion_cfg_scale:
                without = ids.copy()
                without[:n_prompt] = MASK
                other = logits(without)
                all_rows = other + (p.diffusion_cfg_scale + 1) * (all_rows - other)
            chosen = masked
            if p.diffusion_algorithm == "origin":
                chosen = [i for i in masked if random.random() < part]
            drawn = {}
            for i in chosen:
                row = all_rows[i - usual.shifts]
                plain = p.temperature == 0 or p.diffusion_add_gumbel_noise
                tokens, q = kept_tokens(row, p, 1.0 if plain else p.temperature)
                if p.temperature == 0:
                    at = int(np.argmax(q))
                elif p.diffusion_add_gumbel_noise:
                    noise = [-math.log(-math.log(random.random())) for _ in q]
                    at = int(np.argmax(np.log(q + 1e-300) + p.temperature * np.array(noise)))
                else:
                    u, at = random.random(), 0
                    while at < len(q) - 1 and q[: at + 1].sum() <= u:
                        at += 1
                sure = {
                    "confidence": q[at],
                    "margin": sorted(q)[-1] - sorted(q)[-2],
                    "entropy": sum(x * math.log(x + 1e-10) for x in q),
                }.get(p.diffusion_algorithm, 0.0)
                if p.diffusion_algorithm == "random":
                    sure = random.random()
                drawn[i] = tokens[at], sure
            if p.diffusion_algorithm != "origin":
                if p.diffusion_alg_temp:
                    for i in chosen:
                        noise = -math.log(-math.log(random.random()))
                        drawn[i] = drawn[i][0], drawn[i][1] / p.diffusion_alg_temp + noise
                chosen = sorted(chosen, key=lambda i: (-drawn[i][1], i))[:n]
            for i in chosen:
                ids[i] = drawn[i][0]
            states.append(ids[n_prompt:].tolist())
    return states


def quickly(length: int, p: SamplingParams, usual: DiffusionConfig) -> list[list[int]]:
    canvas, states = Canvas(PROMPT, length, p, mask=MASK, usual=usual), []
    while len(canvas.wanted) and len(states) < 50:
        rows = logits(canvas.ids)
        if p.diffusion_cfg_scale:
            without = canvas.ids.copy()
            without[: canvas.start] = MASK
            rows = (other := logits(without)) + (p.diffusion_cfg_scale + 1) * (rows - other)
        canvas.write(rows[canvas.rows])
        states.append(canvas.answer.tolist())
    return states


SCHEDULES: dict[str, dict[str, Any]] = {
    "linear": {"diffusion_eps": 0.01},
    "cosine": {"diffusion_eps": 0.01, "diffusion_schedule": "cosine"},
    "blocks": {"diffusion_block_length": 5},
    "cosine blocks": {"diffusion_block_length": 5, "diffusion_schedule": "cosine"},
    "usual": {},
}
DRAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "warm": {"temperature": 0.7, "top_k": 4},
    "noise": {"temperature": 0.7, "diffusion_add_gumbel_noise": 1},
    "guided": {"temperature": 1.0, "diffusion_cfg_scale": 0.5, "diffusion_alg_temp": 0.1},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_step_is_that_of_the_definition(schedule: str, algorithm: str) -> None:
    for (seed, draw), usual in itertools.product(
        enumerate(DRAWS), (DiffusionConfig(True, 0), DiffusionConfig(False, 8))
    ):
        p = SamplingParams(
            **{"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed, "diffusion_steps": 9}
            | DRAWS[draw] | SCHEDULES[schedule], diffusion_algorithm=algorithm,
        )  # fmt: skip
        want = slowly(17, p, usual)
        assert quickly(17, p, usual) == want and MASK not in want[-1]
        n_steps, _ = n_computed(p, usual, 17)
        assert len(want) <= n_steps


def test_the_number_of_steps_and_of_tokens() -> None:
    """A token each step where there are as many; more steps than tokens are not computed."""
    usual, p = DiffusionConfig(False, 4), SamplingParams(temperature=0, diffusion_steps=100)
    assert len(quickly(10, p, usual)) == 10
    assert n_computed(p, usual, 10) == (10, 4)
    one = SamplingParams(diffusion_steps=1)
    assert len(quickly(10, one, usual)) == 3 == n_computed(one, usual, 10)[0]
    assert n_computed(one, DiffusionConfig(True, 0), 10) == (1, 10)
    empty = Canvas(PROMPT, 0, p, mask=MASK, usual=usual)
    assert not len(empty.wanted) and empty.n_settled == 0 and LENGTH == 128


def test_blocks_are_written_one_after_another() -> None:
    usual, p = DiffusionConfig(False, 4), SamplingParams(temperature=0)
    for state in quickly(12, p, usual):
        first = state.index(MASK) // 4 * 4 if MASK in state else 12
        assert all(id_ == MASK for id_ in state[first + 4 :])


def test_ends_are_not_among_the_first_tokens() -> None:
    def first_end(min_tokens: int) -> int:
        canvas = Canvas(PROMPT, 20, SamplingParams(temperature=0), mask=MASK, ends=[2, 5, 99],
                        usual=DiffusionConfig(False, 0), min_tokens=min_tokens)  # fmt: skip
        while len(canvas.wanted):
            canvas.write(logits(canvas.ids)[canvas.rows])
        return next(i for i, id_ in enumerate(canvas.answer) if id_ in (2, 5))

    assert first_end(0) < 9 <= first_end(9)


def test_names_and_numbers_of_algorithms() -> None:
    for number, name in enumerate(ALGORITHMS):
        assert SamplingParams(diffusion_algorithm=number).diffusion_algorithm == name
    assert SamplingParams(diffusion_algorithm="maskgit-plus").diffusion_algorithm == "confidence"
    assert SamplingParams(diffusion_algorithm="topk_margin").diffusion_algorithm == "margin"
    assert SamplingParams(diffusion_add_gumbel_noise=True).of_diffusion  # type: ignore[arg-type]
    for wrong in (
        {"diffusion_algorithm": 5}, {"diffusion_algorithm": "entropi"}, {"diffusion_steps": 0},
        {"diffusion_schedule": "sine"}, {"diffusion_eps": 1.0}, {"diffusion_steps": 1 << 20},
        {"diffusion_eps": 0.1, "diffusion_block_length": 4}, {"diffusion_cfg_scale": -1},
    ):  # fmt: skip
        with pytest.raises(ContextError, match="diffusion_"):
            SamplingParams(**wrong)  # type: ignore[arg-type]


def test_options_that_follow_the_order_of_tokens_are_refused() -> None:
    options: list[dict[str, Any]] = [
        {"repeat_penalty": 1.1}, {"dry_multiplier": 1}, {"mirostat": 2}, {"regex": "a"},
        {"adaptive_target": 0.5}, {"presence_penalty": 1},
    ]  # fmt: skip
    for one in options:
        with pytest.raises(ContextError, match="by diffusion"):
            Canvas(PROMPT, 4, SamplingParams(**one), mask=MASK, usual=DiffusionConfig(False, 0))


def test_steps_that_write_nothing_count() -> None:
    """Steps of `origin` draw which masks they write, and may draw none: there are as many as asked
    for, however short the answer is."""
    p = SamplingParams(diffusion_algorithm="origin", diffusion_eps=0.001, diffusion_steps=40)
    usual = DiffusionConfig(True, 0)
    assert n_computed(p, usual, 2) == (40, 2)
    assert n_computed(replace(p, diffusion_algorithm="entropy"), usual, 2) == (2, 2)
    counts = [len(quickly(2, replace(p, seed=seed), usual)) for seed in range(9)]
    assert 2 < max(counts) <= 40
