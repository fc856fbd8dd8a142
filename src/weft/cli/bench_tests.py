"""The tests of `weft bench`: a prompt, generated tokens, or both, after tokens in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from weft.cli.command import usage_error
from weft.cli.value_lists import numbers
from weft.execute import Profile
from weft.llm import Context
from weft.options import parse_tokens
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class BenchTest:
    """The numbers of tokens of a prompt, of generated tokens, and of those before in the cache."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def name(self) -> str:
        """The name of the test, such as `pp512`, `tg128`, `pp512+tg128` or `pp512 @ d4096`."""
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (
            self.n_gen > 0
        )
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def n_tokens(self) -> int:
        """The number of tokens whose time is measured."""
        return self.n_prompt + self.n_gen

    @property
    def n_cells(self) -> int:
        """The number of tokens that the cache must hold."""
        return self.n_depth + self.n_tokens


def tests_of(
    n_prompt: Sequence[str], n_gen: Sequence[str], pairs: Sequence[str], n_depth: Sequence[str]
) -> list[BenchTest]:
    """The tests that -p, -n, -pg and -d ask for, by depth. Raises a usage error for text that is
    not a list of numbers."""
    prompts = [(n, 0) for n in numbers("-p", n_prompt, parse_tokens)]
    texts = [(0, n) for n in numbers("-n", n_gen, parse_tokens)]
    depths = numbers("-d", n_depth, parse_tokens)
    sizes = [*prompts, *texts, *map(_pair, pairs)]
    return [BenchTest(p, n, depth) for depth in depths for p, n in sizes if p or n]


def _pair(text: str) -> tuple[int, int]:
    counts = numbers("-pg", [text], parse_tokens)
    if len(counts) != 2:
        raise usage_error(f"-pg {text}: write tokens of the prompt, and generated: 512,128")
    return counts[0], counts[1]


class Runner:
    """Runs tests with a context. The tokens in the cache before a test are computed once, and
    extended for a greater depth."""

    def __init__(self, context: Context, n_batch: int, say: Callable[[str], None]) -> None:
        """`n_batch` is the number of prompt tokens given to the context at once. `say` is called
        with a text about each step."""
        self._context, self._n_batch, self._say = context, n_batch, say
        self._depth = 0
        self._state = b""
        """The saved cache of this depth, for models whose tokens cannot be removed."""

    def run(self, test: BenchTest, what: str = "", profile: Profile | None = None) -> int:
        """Runs a test and returns its nanoseconds. `what` is shown meanwhile, and `profile` records
        the run."""
        self.go_to(test.n_depth)
        self._say(what)
        tokens = _tokens(self._context, test.n_tokens, 1)
        with nullcontext() if profile is None else self._context.profile(profile):
            start = perf_counter_ns()
            self._read(tokens[: test.n_prompt])
            for token in tokens[test.n_prompt :]:
                self._context.decode([token])
            return perf_counter_ns() - start

    def go_to(self, depth: int) -> None:
        """Leaves `depth` tokens in the cache."""
        n_kept = self._take_back(min(depth, self._depth))
        if n_kept < depth:
            self._say(f"computing {depth} tokens of depth")
            self._read(_tokens(self._context, depth, 0)[n_kept:])
            if not self._can_take_back:
                self._state = self._context.save_state()
        self._depth = depth

    @property
    def _can_take_back(self) -> bool:
        """True if any number of last tokens can be removed from the cache."""
        cache = self._context.cache
        return cache.states is None and cache.window is None

    def _take_back(self, n: int) -> int:
        """Removes all but the first `n` tokens, or all tokens; returns how many stay."""
        cache = self._context.cache
        if self._can_take_back and n > 0:
            cache.seq_rm(0, n)
            return n
        cache.clear()
        if n > 0 and n == self._depth:
            self._context.load_state(self._state)
            return n
        return 0

    def _read(self, tokens: NDArray[np.int64]) -> None:
        for batch in _batches(tokens, self._n_batch):
            self._context.decode(batch)


def _batches(tokens: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    return (tokens[i : i + size] for i in range(0, len(tokens), size))


def _tokens(context: Context, n: int, seed: int) -> NDArray[np.int64]:
    """Random token ids [n], which depend on the seed only."""
    return np.random.default_rng(seed).integers(0, context.model.config.n_vocab, n)
