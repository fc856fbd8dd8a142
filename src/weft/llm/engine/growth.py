"""`Growth`: one text as it grows, from logits to text; `Stats`: its tokens and times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, TokenizerError
from weft.llm.sampling import Sampler, TokenLogprobs, token_logprobs
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

FinishReason = Literal["", "stop", "length", "context"]
"""The reason why a text ended: "stop" is an end token, a stop string or a satisfied constraint,
"length" is `max_tokens`, "context" a full context. Empty while it goes on and after an
interruption."""


@dataclass(slots=True)
class Stats:
    """Tokens and times of the last generation, without the caller's time between pieces.

    For a list of prompts, numbers are sums and all time counts as generation."""

    n_prompt: int = 0
    n_cached: int = 0
    """Number of prompt tokens that were in the cache and not computed again."""
    prompt_seconds: float = 0.0
    """Time of the prompt and of the first token, which is drawn from its logits."""
    n_generated: int = 0
    """Number of tokens drawn, the one that ended the text included."""
    generation_seconds: float = 0.0
    """Time of all tokens except the first."""
    finish_reason: FinishReason = ""
    """The reason why the text ended, see `FinishReason`; for a list of prompts, the last text's."""
    n_drafted: int = 0
    n_accepted: int = 0
    """Number of drafted tokens that were right."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log-probabilities of all drawn tokens, the end token included, if they were asked for."""
    why_not_reused: str = ""
    """Why no more tokens were in the cache; empty if those were all that an earlier text had in
    common with the prompt. For a list of prompts, the last text's."""

    @property
    def prompt_tokens_per_second(self) -> float:
        """Speed of prompt processing, in tokens per second."""
        n = self.n_prompt - self.n_cached
        return n / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Speed of generation, in tokens per second."""
        n = max(self.n_generated - 1, 0)
        return n / self.generation_seconds if self.generation_seconds else 0.0


class Growth:
    """Draws tokens and turns them into text. Incomplete characters, and text that may become a stop
    string, are held back."""

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: Tokenizer,
        stops: StopStrings,
        *,
        ends: Collection[int],
        max_tokens: int | None,
        min_tokens: int = 0,
        logprobs: int | None = None,
        special: bool = False,
    ) -> None:
        """`sampler` has been started with the prompt. `ends` are the tokens that end the text,
        which are not drawn before `min_tokens` others.
        `logprobs` is the number of likeliest tokens whose log-probabilities are kept beside those
        of the drawn tokens (None: keep none). With `special`, control tokens are text too."""
        self._sampler = sampler
        self._stream = tokenizer.stream(special=special)
        self._stops = stops
        self.ends = ends
        """The tokens that end the text."""
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens if ends else 0
        self._n_logprobs = logprobs
        self.logprobs: list[TokenLogprobs] = []
        self.n_drawn = 0
        """Number of tokens drawn, the one that ended the text included."""
        self.n_drafted = 0
        """Number of tokens that were drafted."""
        self.n_accepted = 0
        """Number of drafted tokens that were right."""
        self.token = -1
        self.ids: list[int] = []
        """All tokens drawn, without one that ended the text."""
        self.ended_by_token = False
        """True if the last token ended the text and is not a part of it."""
        self.finish_reason: FinishReason = ""

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text; None: none did."""
        return self._stops.met

    def begin_anew(self) -> None:
        """Says that the text does not continue its prompt, which an encoder reads."""
        self._stream.begins = True

    def push(self, logits: NDArray[np.float32]) -> str:
        """Draws a token from `logits` [n_vocab]; returns the text that has become certain.

        While `finish_reason` is empty, `token` must be decoded next."""
        token = self._drawn(logits)
        if self._n_logprobs is not None:
            self.logprobs.append(token_logprobs(logits, token, self._n_logprobs))
        return self.append(token)

    def append(self, token: int) -> str:
        """Appends a token that was drawn; returns the text that has become certain."""
        self.token = token
        self.n_drawn += 1
        if token in self.ends:
            self.ended_by_token = True
            return self.finish("stop")
        self.ids.append(token)
        self._sampler.accept(token)
        text, stopped = self._stops.push(self._stream.push(token))
        if stopped:
            self.finish_reason = "stop"
        elif self._sampler.done:
            text += self.finish("stop")
        elif self.n_drawn == self._max_tokens:
            text += self.finish("length")
        return text

    def _drawn(self, logits: NDArray[np.float32]) -> int:
        """A token, which does not end the text before `min_tokens`. A constraint that is satisfied
        ends the text sooner."""
        if self.n_drawn >= self._min_tokens:
            return self._sampler.sample(logits)
        others = np.array(logits)
        others[[id_ for id_ in self.ends if id_ < len(others)]] = -np.inf
        if self._sampler.params.constrained:
            try:
                return self._sampler.sample(others)
            except ContextError:
                return self._sampler.sample(logits)
        return self._sampler.sample(others)

    def finish(self, reason: FinishReason) -> str:
        """Ends the text; returns the text that was held back."""
        text, stopped = self._stops.push(self._stream.flush())
        self.finish_reason = "stop" if stopped else reason
        return text if stopped else text + self._stops.flush()


# `StopStrings` ends a stream of text before the first of several strings.
#
# The strings form one automaton (Aho and Corasick 1975), whose state is the longest end of the text
# that a string begins with. A character takes few steps, however many strings there are.


class StopAutomaton:
    """Finds several strings at once, in any number of texts."""

    def __init__(self, stop: Sequence[str]) -> None:
        """Raises TokenizerError for an empty string, which would stop everything."""
        if "" in stop:
            raise TokenizerError("a stop string is empty; leave it out")
        self._next: list[dict[str, int]] = [{}]  # for each state, the next one by character
        self.depth = [0]
        """For each state, the number of characters that it stands for."""
        self.length = [0]
        """For each state, the length of the longest string that ends in it; 0: none does."""
        for string in stop:
            self._add(string)
        self._shorter = [0] * len(self._next)  # for each state, the longest state that ends it
        self._link()

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            following = self._next[state].setdefault(char, len(self._next))
            if following == len(self._next):
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.length.append(0)
            state = following
        self.length[state] = len(string)

    def _link(self) -> None:
        """Finds the shorter state of each state, in order of depth."""
        for state in sorted(range(len(self._next)), key=self.depth.__getitem__):
            for char, following in self._next[state].items():
                shorter = self.step(self._shorter[state], char) if state else 0
                self._shorter[following] = shorter
                self.length[following] = self.length[following] or self.length[shorter]

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def step(self, state: int, char: str) -> int:
        """The state after `char`."""
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)


class StopStrings:
    """Ends a stream of text before the first of several strings, and never lets out a part of
    one."""

    def __init__(self, stop: Sequence[str] | StopAutomaton) -> None:
        """Raises TokenizerError for an empty string, which would stop everything."""
        self._automaton = stop if isinstance(stop, StopAutomaton) else StopAutomaton(stop)
        self._state = 0
        self._held = ""
        self.met: str | None = None
        """The stop string that was met, or None."""

    def push(self, text: str) -> tuple[str, bool]:
        """Adds text to the stream. Returns the text that can be let out, and whether a stop string
        was met, after which nothing follows.

        If several strings end in `text`, the one that begins first counts."""
        automaton, state = self._automaton, self._state
        if not automaton:
            return text, False
        buffer = self._held + text
        first = last = len(buffer)
        for end, char in enumerate(text, len(self._held) + 1):
            state = automaton.step(state, char)
            if automaton.length[state]:
                begin = end - automaton.length[state]
                first, last = (begin, end) if begin < first else (first, last)
        stopped = first < len(buffer)
        self.met = buffer[first:last] if stopped else None
        cut = first if stopped else len(buffer) - automaton.depth[state]
        self._state, self._held = (0, "") if stopped else (state, buffer[cut:])
        return buffer[:cut], stopped

    def flush(self) -> str:
        """The text held back, for a stream that ends without a stop string."""
        held, self._state, self._held = self._held, 0, ""
        return held
