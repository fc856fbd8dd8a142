"""`Sampler`: the chain of samplers over the state of one text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.sampling import cuts
from weft.llm.sampling.candidates import Candidates, Running
from weft.llm.sampling.constraint import Constraint
from weft.llm.sampling.cuts import AdaptiveP, Mirostat
from weft.llm.sampling.history import Dry, History, Penalties
from weft.llm.sampling.params import SamplingParams
from weft.llm.tokenizers.tokenizer import Tokenizer

Step = Callable[[Candidates], None]


_quiet = np.errstate(over="ignore")  # differences of huge logits may be infinite


class Sampler:
    """Draws the tokens of one text, with its own random generator, history and constraint.

    Samplers share no mutable state, so different texts may take turns or run in threads."""

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer | None = None) -> None:
        """DRY with sequence breakers and constraints need the `tokenizer`, whose suppressed tokens
        are never drawn.

        Raises ContextError if it is missing, and for a constraint that no text can satisfy."""
        self.params = params
        self._random = np.random.Generator(np.random.PCG64(params.seed))
        self._bias = _bias(params)
        suppressed = () if tokenizer is None else tokenizer.vocab.suppressed
        self._suppressed = np.array(suppressed, np.intp)
        self._constraint: Constraint | None = None
        if params.constrained:
            self._constraint = Constraint(params, _needed(tokenizer, "a constraint"))
        self._history = History()
        self._penalties: Penalties | None = None
        self._dry: Dry | None = None
        self._last: Mirostat | AdaptiveP | None = None
        self._only_cold = False
        self._chain = self._steps(tokenizer)
        bare = self._bias is None and self._constraint is None and self._last is None
        bare = bare and not len(self._suppressed)
        self._largest = bare and self._only_cold
        """Whether the largest logit is what is drawn, and nothing changes logits before."""

    def _steps(self, tokenizer: Tokenizer | None) -> list[Step]:
        """The samplers that have an effect, in order."""
        p, order = self.params, self.params.order
        if p.mirostat:
            order = ("penalties", "dry", "temperature")
            self._last = Mirostat(p.mirostat_tau, p.mirostat_eta)
        active = [name for name in order if _does_something(p, name)]
        if "adaptive_p" in active:
            active.remove("adaptive_p")
            self._last = AdaptiveP(p.adaptive_target, p.adaptive_decay)
        if "penalties" in active:
            self._penalties = Penalties(
                p.repeat_last_n, p.repeat_penalty, p.presence_penalty, p.frequency_penalty
            )
        if "dry" in active:
            breakers = p.dry_sequence_breakers
            piece = (
                partial(_needed(tokenizer, "dry_sequence_breakers").piece, special=True)
                if breakers
                else lambda _: b""
            )
            self._dry = Dry(
                p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_last_n, breakers, piece
            )
        if _greedy(p, active):  # cuts keep the likeliest token, so those at the end can go
            last = max((i for i, n in enumerate(active) if n in ("penalties", "dry")), default=-1)
            active = [*active[: last + 1], "temperature"]
            self._only_cold = len(active) == 1
        return [self._step(name, active[i + 1 : i + 2]) for i, name in enumerate(active)]

    def _step(self, name: str, following: list[str]) -> Step:
        p = self.params
        steps: dict[str, Step] = {
            "top_n_sigma": partial(cuts.top_n_sigma, n=p.top_n_sigma),
            "top_k": partial(cuts.top_k, k=p.top_k),
            "typ_p": partial(cuts.typical, p=p.typical_p, keep=p.min_keep),
            "top_p": partial(
                cuts.top_p,
                p=p.top_p,
                keep=p.min_keep,
                next_min_p=p.min_p if following == ["min_p"] and p.min_keep < 2 else 0.0,
            ),
            "min_p": partial(cuts.min_p, p=p.min_p, keep=p.min_keep),
            "xtc": self._xtc,
            "temperature": partial(cuts.temperature, t=p.temperature),
        }
        if p.dynatemp_range > 0:
            steps["temperature"] = partial(
                cuts.dynamic_temperature,
                t=p.temperature, reach=p.dynatemp_range, exponent=p.dynatemp_exponent,
            )  # fmt: skip
        if self._penalties is not None:
            steps["penalties"] = self._penalties
        if self._dry is not None:
            steps["dry"] = partial(self._dry, history=self._history)
        return steps[name]

    def _xtc(self, c: Candidates) -> None:
        if self._random.random() <= self.params.xtc_probability:
            cuts.xtc(c, self.params.xtc_threshold, self.params.min_keep)

    @property
    def done(self) -> bool:
        """True if a constraint is satisfied and only an end token could follow."""
        return self._constraint is not None and self._constraint.done

    def start(self, prompt: Iterable[int]) -> None:
        """Gives penalties and DRY the tokens in front of the text."""
        self._remember([int(id_) for id_ in prompt])

    def accept(self, id_: int) -> None:
        """Appends token `id_` to the text; raises ContextError if the constraint forbids it."""
        if self._constraint is not None:
            self._constraint.accept(id_)
        self._remember((id_,))

    def _remember(self, ids: Iterable[int]) -> None:
        if self._penalties is None and self._dry is None:
            return
        for id_ in ids:
            self._history.append(id_)
            if self._dry is not None:
                self._dry.accept(id_)
            if self._penalties is not None:
                self._penalties.accept(self._history, (id_,))

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Draws a token id from `logits` [n_vocab]; of equal logits the lowest id comes first.

        Raises ContextError if a logit is NaN, the largest is infinite, or the constraint allows no
        token."""
        if not self._largest:
            return self._drawn(logits)
        best = int(logits.argmax())  # the first NaN counts as largest
        _require_finite(logits[best])
        return best

    @_quiet
    def _drawn(self, logits: NDArray[np.float32]) -> int:
        """A token of those that the chain leaves."""
        c = self._left(logits)
        if len(c) == 1 and self._last is None:
            return c.id_at(0)
        sums = Running(weights := c.weights())
        position = sums.find(self._random.random() * sums.total, "right")
        if self._last is not None:
            self._last.observe(position, float(weights[position]) / sums.total)
        return c.id_at(position)

    @_quiet
    def distribution(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The tokens that can be drawn, the most likely first, and their probabilities.

        XTC is applied at random here too, with its probability."""
        c = self._left(logits)
        if not c.ordered:
            c.keep(c.order(), True)
        assert c.ids is not None
        weights = c.weights().astype(np.float64)
        return c.ids, weights / weights.sum()

    @_quiet
    def chances(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp] | None, NDArray[np.float64]]:
        """The same as `distribution` without its order: the tokens that can be drawn (None: all, by
        id), and the probability of each."""
        c = self._left(logits)
        weights = c.weights().astype(np.float64)
        return c.ids, weights / weights.sum()

    def _left(self, logits: NDArray[np.float32]) -> Candidates:
        """The tokens that the constraint, the bias and the chain leave."""
        logits = np.asarray(logits, np.float32)
        _require_finite(logits.max())  # NaN counts as largest
        c = Candidates(logits, self._allowed(len(logits)))
        if self._bias is not None:
            _add(c, *self._bias, len(logits))
        if len(self._suppressed):
            positions, _ = c.find(self._suppressed)
            c.set_logits(positions, np.full(len(positions), -np.inf, np.float32))
        if not (c.logits is logits or math.isfinite(c.logits.max())):
            if len(self._suppressed):
                raise ContextError(
                    "every token that could be drawn is forbidden by the model (suppress_tokens) "
                    "or by logit_bias"
                )
            raise ContextError("forbids every token that could be drawn", argument="logit_bias")
        for step in self._chain:
            step(c)
        if self._last is not None:
            self._last.shape(c)
        return c

    def _allowed(self, n: int) -> NDArray[np.intp] | None:
        if self._constraint is None:
            return None
        ids = self._constraint.allowed()
        if not len(ids):
            raise ContextError("the text is complete and the model has no end token; see `done`")
        return ids if ids[-1] < n else ids[ids < n]


def _require_finite(largest: np.floating[Any]) -> None:
    if not math.isfinite(largest):
        raise ContextError(
            "the largest logit of the model is infinite or not a number; the file may be damaged, "
            "or the model needs f32 activations"
        )


def _does_something(p: SamplingParams, name: str) -> bool:
    neutral = {
        "penalties": p.repeat_last_n == 0
        or (p.repeat_penalty == 1 and p.presence_penalty == 0 and p.frequency_penalty == 0),
        "dry": p.dry_multiplier == 0 or p.dry_last_n == 0,
        "top_n_sigma": p.top_n_sigma <= 0,
        "top_k": p.top_k <= 0,
        "typ_p": p.typical_p == 1,
        "top_p": p.top_p == 1,
        "min_p": p.min_p == 0,
        "xtc": p.xtc_probability == 0 or p.xtc_threshold > 0.5,
        "temperature": p.temperature == 1 and p.dynatemp_range == 0,
        "adaptive_p": p.adaptive_target < 0,
    }
    return not neutral[name]


_PENALTIES = {"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""The options of penalties, and the values without an effect."""


def of_order(p: SamplingParams) -> list[str]:
    """The options that have an effect by the tokens in front of the one that is drawn."""
    found = [name for name in _PENALTIES if getattr(p, name) != _PENALTIES[name]]
    found = found if _does_something(p, "penalties") else []
    found += ["dry_multiplier"] * _does_something(p, "dry")
    found += ["adaptive_target"] * _does_something(p, "adaptive_p")
    return found + ["mirostat"] * bool(p.mirostat)


MAY_DROP_THE_LIKELIEST = {"typ_p", "xtc"}
"""The cuts that can leave out the likeliest token."""


def _greedy(p: SamplingParams, active: list[str]) -> bool:
    """True if the likeliest token is drawn, whatever the cuts are."""
    cold = p.temperature == 0 and p.dynatemp_range == 0 and "temperature" in active
    return cold and p.mirostat == 0 and not MAY_DROP_THE_LIKELIEST & set(active)


def _needed(tokenizer: Tokenizer | None, what: str) -> Tokenizer:
    if tokenizer is None:
        raise ContextError(f"{what} needs the tokenizer; give Sampler(params, tokenizer)")
    return tokenizer


def _bias(p: SamplingParams) -> tuple[NDArray[np.intp], NDArray[np.float32]] | None:
    if not p.logit_bias:
        return None
    ids = np.fromiter(p.logit_bias.keys(), np.intp, len(p.logit_bias))
    return ids, np.fromiter(p.logit_bias.values(), np.float32, len(ids))


def _add(c: Candidates, ids: NDArray[np.intp], values: NDArray[np.float32], n: int) -> None:
    """Adds `values` to the logits of `ids`, of a vocabulary of `n`."""
    if (largest := int(ids.max())) >= n:
        raise ContextError(
            f"has token {largest}; the model's tokens are 0..{n - 1}", argument="logit_bias"
        )
    positions, which = c.find(ids)
    c.set_logits(positions, c.logits[positions] + values[which])
