"""What an engine is asked for, and the events that answer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from weft.errors import ContextError
from weft.llm.sampling import Sampler, SamplingParams, TokenLogprobs
from weft.llm.stop_strings import StopAutomaton

__all__ = ["Delta", "Done", "Event", "Read", "Reason", "Request", "Ticket"]

Reason = Literal["stop", "length", "cancelled", "error"]
"""Why a text ended: the model's own end or a stop string; `max_tokens` or a full context; its
reader left; it failed."""


_MAX_LOGPROBS = 100


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

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ContextError("the prompt has no tokens; give some text")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ContextError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        for name in ("logprobs", "prompt_logprobs"):
            n = getattr(self, name)
            if n is not None and not 0 <= n <= _MAX_LOGPROBS:
                raise ContextError(f"{name} is {n}; it must be 0 to {_MAX_LOGPROBS}")
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
    """A request in an engine. `on_event` is called in the engine's thread and must return soon."""

    __slots__ = ("after", "cancelled", "on_event", "prompt_done", "request", "sampler", "stops",
                 "wake")  # fmt: skip

    def __init__(
        self,
        request: Request,
        sampler: Sampler,
        on_event: Callable[[Event], None],
        after: Ticket | None = None,
    ) -> None:
        self.request = request
        self.sampler = sampler
        same = after is not None and after.request.stop == request.stop
        self.stops: StopAutomaton = after.stops if after and same else StopAutomaton(request.stop)
        self.on_event = on_event
        self.after = after
        """Starts when that one's prompt has been computed, to share its cells."""
        self.prompt_done = False
        self.cancelled = False
        self.wake: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        """Ends the text; its cells are free before the next step. From any thread, at any time."""
        self.cancelled = True
        self.wake()
