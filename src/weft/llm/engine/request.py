"""What an engine is asked for, and the events that answer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from weft.errors import ContextError
from weft.llm.engine.draft import Draft
from weft.llm.sampling import Sampler, SamplingParams, TokenLogprobs
from weft.llm.tokenizers.stop_strings import StopAutomaton, StopStrings
from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = ["Delta", "Done", "Event", "Read", "Reason", "Request", "Ticket"]

Reason = Literal["stop", "length", "context", "cancelled", "error"]
"""Why a text ended: the model's own end, a stop string or a constraint that is met; `max_tokens`; a
full context; its reader left; it failed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One text to be generated; raises ContextError for a value out of range."""

    prompt: tuple[int, ...]
    """Token ids, at least one."""
    max_tokens: int | None = None
    """Most tokens to draw; None: until the model ends the text or the context is full. 0: only the
    prompt is read."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs: int | None = None
    """Give log-probabilities: of each token drawn, and of so many likeliest ones."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens, in an event `Read`; all of it is computed then."""
    penalize_prompt: bool = False
    """Penalties count the tokens of the prompt, too."""
    stop: tuple[str, ...] = ()
    """Texts before which it ends."""
    ignore_eos: bool = False
    """The model's end tokens do not end it."""
    special: bool = False
    """Control tokens are part of the text, except those that end it."""
    reuse: bool = True
    """What the cache holds of the prompt is not computed again."""
    whole: bool = False
    """It starts only when there are cells for all that it may become."""
    n_keep: int | None = None
    """When the context is full, the older half of what follows so many first tokens is dropped;
    None: the text ends there."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ContextError("the prompt has no tokens; give some text")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ContextError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        for name in ("logprobs", "prompt_logprobs"):
            n = getattr(self, name)
            if n is not None and n < 0:
                raise ContextError(f"{name} is {n}; it must be 0 or more, or None")
        if "" in self.stop:
            raise ContextError("a stop string is empty; leave it out")


@dataclass(frozen=True, slots=True)
class Read:
    """The prompt has been computed; where `prompt_logprobs` were asked for."""

    tokens: tuple[TokenLogprobs, ...]
    """Its tokens from the second on, each given those before it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, whole characters; the tokens that made it, if log-probabilities were asked for."""

    text: str
    tokens: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a text; nothing follows."""

    reason: Reason
    n_prompt: int
    n_reused: int
    """Tokens of the prompt that were in the cache already."""
    n_generated: int
    error: Exception | None = None


Event = Read | Delta | Done


class Ticket:
    """A text in an engine: what was asked for, and how far it has come. `on_event` is called by
    whoever steps and must return soon."""

    __slots__ = ("after", "cancelled", "draft", "n_read", "n_reused", "n_told", "on_event",
                 "promised", "prompt_done", "read", "request", "stops", "wake")  # fmt: skip

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        on_event: Callable[[Event], None],
        after: Ticket | None = None,
    ) -> None:
        """Raises ContextError for a constraint that cannot be met, TokenizerError for an empty stop
        string."""
        self.request = request
        same = after is not None and after.request.stop == request.stop
        self.stops: StopAutomaton = after.stops if after and same else StopAutomaton(request.stop)
        sampler = Sampler(request.sampling, tokenizer)
        if request.penalize_prompt:
            sampler.start(request.prompt)
        self.draft = Draft(
            sampler,
            tokenizer,
            StopStrings(self.stops),
            ends=frozenset() if request.ignore_eos else tokenizer.vocab.eog,
            max_tokens=request.max_tokens,
            logprobs=request.logprobs,
            special=request.special,
        )
        self.on_event = on_event
        self.after = after
        """Starts when that one's prompt has been computed, to share its cells."""
        self.promised = 0
        """Cells that it may count on."""
        self.n_reused = 0
        """Tokens of the prompt that were in the cache."""
        self.n_read = 0
        """Tokens of the prompt that are in the cache."""
        self.read: list[TokenLogprobs] = []
        """Tokens of the prompt, where they are asked for."""
        self.n_told = 0
        """Log-probabilities of drawn tokens that have been given out."""
        self.prompt_done = False
        self.cancelled = False
        self.wake: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        """Ends the text; its cells are free before the next step. From any thread, at any time."""
        self.cancelled = True
        self.wake()

    def done(self, reason: Reason, error: Exception | None = None) -> Done:
        """The event that says how it ended."""
        n_prompt = len(self.request.prompt)
        return Done(reason, n_prompt, self.n_reused, self.draft.n_drawn, error)
