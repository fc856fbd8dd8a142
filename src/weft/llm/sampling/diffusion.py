"""`Canvas`: a text that is written by diffusion, whose tokens become known in any order.

    canvas = Canvas(prompt, 64, params, mask=7, usual=config.diffusion)
    while len(canvas.wanted):               # masks that the next step may write
        canvas.write(logits(canvas.ids)[canvas.rows])
    canvas.answer                           # ids [64]

Every token of the answer is a mask at first. A step reads the logits of masks, draws a token for
each, and writes a share of them: the surest, by the algorithm. A token that is written stays.

The share of a step of n follows from the part of the masks that is left after it, at time t = 0..1:

    linear   1 - t             (LLaDA, arXiv 2502.09992)
    cosine   cos(pi t / 2)     (MaskGIT, arXiv 2202.04200)

With blocks, the steps are shared out among the blocks, which are written one after another, each
token in exactly one step. Without, t ends at 1 - eps, and each step writes its part of the masks,
rounded down (Dream, arXiv 2508.15487). The last step of a block or of the text writes what is left.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.config_parts import DiffusionConfig
from weft.llm.sampling.candidates import Running
from weft.llm.sampling.params import SamplingParams
from weft.llm.sampling.sampler import Sampler, of_order

LENGTH = 128
"""Number of tokens of a text by diffusion that has no `max_tokens`."""
_EPS = 1e-3
"""The time that is left at the end, for models without blocks of their own."""
_LEAST = 1e-10
"""Added to probabilities whose logarithm is taken."""

Floats = NDArray[np.float64]


class Canvas:
    """The tokens of a prompt, and of the answer behind it."""

    def __init__(
        self,
        prompt: Collection[int],
        length: int,
        params: SamplingParams,
        *,
        mask: int,
        usual: DiffusionConfig,
        ends: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """`length` is the number of tokens of the answer, `mask` the token that stands for one that
        is not written, and `usual` says how the model writes if `params` do not. `ends` are not
        written among the first `min_tokens`."""
        require_diffusion(params)
        self.start = len(prompt)
        """Number of tokens of the prompt."""
        self.ids = np.array([*prompt, *[mask] * length], np.int32)
        """All tokens, in order of position."""
        self.wanted: NDArray[np.intp] = np.empty(0, np.intp)
        """Positions of the masks that the next step may write; empty: the text is written."""
        self._mask, self._params, self._shifts = mask, params, usual.shifts
        self._ends, self._min_tokens = [*ends], min_tokens
        self._cold = params.temperature == 0 and params.dynatemp_range == 0
        self._noisy = bool(params.diffusion_add_gumbel_noise) and not self._cold
        plain = self._cold or self._noisy  # probabilities are the model's then
        self._sampler = Sampler(replace(params, temperature=1.0) if plain else params)
        self._random = np.random.Generator(np.random.PCG64(params.seed).jumped())
        self._eps, block = schedule_of(params, usual)
        size = min(block, length) or length
        n_blocks = -(-length // size) if length else 1
        self._size = size
        self._n_steps = max(params.diffusion_steps // n_blocks, 1)
        self._end = self.start
        self._next_block()

    @property
    def rows(self) -> NDArray[np.intp]:
        """The positions whose rows of logits the next step reads, one for each of `wanted`."""
        return self.wanted - self._shifts

    @property
    def answer(self) -> NDArray[np.int32]:
        """The tokens behind the prompt; some may be masks."""
        return self.ids[self.start :]

    @property
    def n_settled(self) -> int:
        """Number of tokens of the answer in front of the first mask."""
        masks = self.answer == self._mask
        return int(masks.argmax()) if masks.any() else len(masks)

    def _next_block(self) -> None:
        begin, self._end = self._end, min(self._end + self._size, len(self.ids))
        self._block = slice(begin, self._end)
        self._n_masks, self._step = self._end - begin, -1
        self._next_step()

    def _next_step(self) -> None:
        """Goes on to the next step that writes something."""
        begin = self._block.start
        while True:
            masked = np.flatnonzero(self.ids[self._block] == self._mask) + begin
            if not len(masked):
                self.wanted = masked
                if self._end < len(self.ids):
                    self._next_block()
                return
            self._step += 1
            self._share, self._n = self._share_of(self._step, len(masked))
            if self._n or (self._share and self._params.diffusion_algorithm == "origin"):
                self.wanted = masked
                return

    def _share_of(self, step: int, n_masked: int) -> tuple[float, int]:
        """The part and the number of `n_masked` masks that a step of the block writes."""
        n, masks = self._n_steps, self._n_masks
        if step >= n - 1:
            return 1.0, n_masked
        cosine = self._params.diffusion_schedule == "cosine"
        if self._eps is not None:
            t, s = ((1.0 - self._eps) * (step + i) / n for i in (0, 1))
            now, then = (math.cos(math.pi / 2 * x) if cosine else 1.0 - x for x in (t, s))
            share = 1.0 - then / now
            return share, int(share * n_masked)
        if cosine:
            left = [int(masks * math.cos(math.pi / 2 * (step + i) / n)) for i in (0, 1)]
            count = left[0] - left[1]
        else:
            count = masks // n + (step < masks % n)
        return min(count / n_masked, 1.0), min(count, n_masked)

    def write(self, logits: NDArray[np.float32]) -> None:
        """Takes a step, given the logits [n_wanted, n_vocab] of `rows`, and goes on to the next.

        Raises the errors of `Sampler.sample`."""
        at = self.wanted
        if self._params.diffusion_algorithm == "origin":
            chosen = np.flatnonzero(self._random.random(len(at)) < self._share)
            for i in chosen:
                self.ids[at[i]] = self._drawn(logits[i], at[i])[0]
        else:
            drawn = [self._drawn(row, p) for row, p in zip(logits, at, strict=True)]
            sure = np.array([one[1] for one in drawn])
            if self._params.diffusion_alg_temp:  # a draw without replacement
                sure = sure / self._params.diffusion_alg_temp + self._noise(len(sure))
            for i in np.argsort(-sure, kind="stable")[: self._n]:
                self.ids[at[i]] = drawn[i][0]
        self._next_step()

    def _drawn(self, row: NDArray[np.float32], position: int) -> tuple[int, float]:
        """A token for a position, and how sure it is."""
        row = np.array(row)
        row[self._mask] = -np.inf  # the others stay masks, too, until a step writes them
        if position - self.start < self._min_tokens:
            row[[id_ for id_ in self._ends if id_ < len(row)]] = -np.inf
        ids, p = self._sampler.chances(row)
        if self._cold:
            i = int(p.argmax())
        elif self._noisy:
            with np.errstate(divide="ignore"):  # a token may have no probability
                i = int(np.argmax(np.log(p) + self._params.temperature * self._noise(len(p))))
        else:
            i = Running(p).find(self._random.random(), "right")
        return i if ids is None else int(ids[i]), self._sureness(p, i)

    def _noise(self, n: int) -> Floats:
        """Gumbel noise [n], with which the largest logarithm of a probability is a draw."""
        noise: Floats = -np.log(-np.log(self._random.random(n).clip(1e-300)))
        return noise

    def _sureness(self, p: Floats, i: int) -> float:
        """How sure the drawn token is, the `i`-th of the tokens whose probabilities are p."""
        match self._params.diffusion_algorithm:
            case "entropy":
                return float((p * np.log(p + _LEAST)).sum())
            case "margin":
                best = np.partition(p, -2)[-2:] if len(p) > 1 else [0.0, p[0]]
                return float(best[1] - best[0])
            case "random":
                return float(self._random.random())
        return float(p[i])


def schedule_of(params: SamplingParams, usual: DiffusionConfig) -> tuple[float | None, int]:
    """The epsilon of a text without blocks (None: it has blocks), and the length of its blocks."""
    eps, block = params.diffusion_eps, params.diffusion_block_length
    if not eps and not block:
        block = usual.block_length
        eps = 0.0 if block else _EPS
    return (None, block) if block else (eps, 0)


def n_computed(params: SamplingParams, usual: DiffusionConfig, length: int) -> tuple[int, int]:
    """The maximum number of steps of an answer of `length` tokens, and of the rows of logits that
    a step reads."""
    _, block = schedule_of(params, usual)
    n_blocks = -(-length // block) if block else 1
    # a step of `origin` may write nothing; any other step writes one token at least
    draws = params.diffusion_algorithm == "origin" and length > 0
    most = params.diffusion_steps if draws else length
    return max(min(params.diffusion_steps, most), n_blocks), min(block or length, length)


def require_diffusion(params: SamplingParams) -> None:
    """Raises ContextError for options of sampling that need the tokens in front of each."""
    why = (
        "follows a text token by token, and this model writes in any order (by diffusion); "
        "leave it out"
    )
    if params.constrained:
        raise ContextError(f"a grammar, a JSON schema or a regular expression {why}")
    for name in of_order(params):
        raise ContextError(why, argument=name)
