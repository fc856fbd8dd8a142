"""Requests to an engine, and the events that answer them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from time import monotonic
from typing import Any, Literal

from weft.errors import ContextError
from weft.llm.engine.growth import Growth, StopAutomaton, StopStrings
from weft.llm.sampling import Sampler, SamplingParams, TokenLogprobs
from weft.llm.scaled_files import Chosen
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

Reason = Literal["stop", "length", "context", "cancelled", "error"]
"""The reason why a text ended: "stop" is an end token, a stop string or a satisfied constraint,
"length" is `max_tokens`, "context" a full context, "cancelled" a call of `Ticket.cancel`."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request for one text. Raises ContextError for a value out of range."""

    prompt: tuple[int, ...]
    """Token ids, at least one."""
    max_tokens: int | None = None
    """Maximum number of tokens to draw; None: until the model ends the text or the context is full;
    0: only compute the prompt."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs: int | None = None
    """Number of likeliest tokens whose log-probabilities are reported beside those of the drawn
    tokens; None: report none."""
    prompt_logprobs: int | None = None
    """Same number for the tokens of the prompt, which are reported as an event `Read`. The whole
    prompt is then computed."""
    penalize_prompt: bool = False
    """True if penalties count the tokens of the prompt too."""
    stop: tuple[str, ...] = ()
    """Strings; the text ends before the first of them."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the text, besides the model's own."""
    ignore_eos: bool = False
    """True if the model's end tokens do not end the text."""
    min_tokens: int = 0
    """Number of tokens before which no token may end the text."""
    special: bool = False
    """True if control tokens are part of the text, except those that end it."""
    reuse: bool = True
    """True if tokens of the prompt that are in the cache are not computed again."""
    whole: bool = False
    """True if the text starts only when there are cells for its greatest length."""
    n_keep: int | None = None
    """Number of first tokens that stay when the context is full and the older half of the others is
    dropped; None: the text ends when the context is full."""

    adapters: Chosen | None = None
    """The adapters of the text; None: all, at the scales that they were given with."""
    control_vectors: Chosen | None = None
    """The control vectors of the text; None: all, at the scales that they were given with."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ContextError("the prompt has no tokens; give some text")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ContextError(f"is {self.max_tokens}; it must be 0 or more", argument="max_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            n = getattr(self, name)
            if n is not None and n < 0:
                raise ContextError(f"is {n}; it must be 0 or more, or None", argument=name)
        if self.min_tokens < 0:
            raise ContextError(f"is {self.min_tokens}; it must be 0 or more", argument="min_tokens")
        if "" in self.stop:
            raise ContextError("a stop string is empty; leave it out")


@dataclass(slots=True)
class Times:
    """When things happened to a text, in seconds of `time.monotonic`; 0: not (yet)."""

    asked: float = 0.0
    started: float = 0.0
    """Time at which the text got a slot and left the queue."""
    first: float = 0.0
    """Time at which the first token was drawn."""
    last: float = 0.0
    """Time at which the latest token was drawn."""
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Read:
    """The prompt has been computed. Reported only if `prompt_logprobs` were asked for."""

    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, in whole characters."""

    text: str
    tokens: tuple[TokenLogprobs, ...] = ()
    """The tokens of the text, if log-probabilities were asked for."""
    n_ids: int = 0
    """Number of tokens drawn so far, without one that ended the text."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a text, its last event."""

    reason: Reason
    n_prompt: int
    n_reused: int
    """Number of prompt tokens that were in the cache."""
    n_generated: int
    error: Exception | None = None
    why_not_reused: str = ""
    """Reason why no more prompt tokens were in the cache; empty if the cache had all that an
    earlier text had in common with the prompt."""
    times: Times | None = None
    """Times of the request, the start, the first token and the end."""
    ids: tuple[int, ...] = ()
    """The drawn tokens, without the end token."""
    stopped_by: str | None = None
    """The stop string that ended the text, if one did."""
    prompt_seconds: float = 0.0
    """Time from the start of the text to its first token, without the time in a queue."""
    generation_seconds: float = 0.0
    """Time from the first token to the end."""


Event = Read | Delta | Done


class Ticket:
    """A text in an engine: its request and its progress.

    `on_event` is called by the thread that steps, so it must return quickly."""

    __slots__ = (
        *(
            "after",
            "behind",
            "cancelled",
            "growth",
            "n_read",
            "n_reused",
            "n_told",
            "on_event",
            "promised",
        ),
        *("prompt_done", "read", "request", "stops", "times", "turn", "wake", "why_not_reused"),
    )

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        on_event: Callable[[Event], None],
        after: Ticket | None = None,
    ) -> None:
        """Raises ContextError for a constraint that no text can satisfy, and TokenizerError for an
        empty stop string."""
        self.request = request
        same = after is not None and after.request.stop == request.stop
        self.stops: StopAutomaton = after.stops if after and same else StopAutomaton(request.stop)
        sampler = Sampler(request.sampling, tokenizer)
        if request.penalize_prompt:
            n_vocab = len(tokenizer.vocab)  # ids beyond are of images
            sampler.start([id_ for id_ in request.prompt if id_ < n_vocab])
        self.growth = Growth(
            sampler,
            tokenizer,
            StopStrings(self.stops),
            ends=frozenset(request.stop_ids)
            | (frozenset() if request.ignore_eos else tokenizer.vocab.eog),
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            logprobs=request.logprobs,
            special=request.special,
        )
        self.on_event = on_event
        self.after = after
        """A text with the same prompt, whose cells this one shares once that prompt is computed."""
        self.behind: tuple[Any, Ticket, int] | None = None
        """The slot, its text and the number of tokens that this one waits for, to share them."""
        self.turn = 0.0
        """Time that orders texts: those with a lesser one start, and are read, before it."""
        self.promised = 0
        """Number of cells that the text may count on."""
        self.n_reused = 0
        """Number of tokens of the prompt that were in the cache at the start."""
        self.why_not_reused = ""
        """Why there were no more of these, as in `Done`."""
        self.n_read = 0
        """Number of prompt tokens that are in the cache now."""
        self.read: list[TokenLogprobs] = []
        """Log-probabilities of the prompt's tokens so far, if they were asked for."""
        self.n_told = 0
        """Number of drawn tokens whose log-probabilities have been reported."""
        self.prompt_done = False
        self.cancelled = False
        self.times = Times(asked=monotonic())
        self.wake: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        """Ends the text; its cells can be used from the next step on. May be called from any
        thread, at any time."""
        self.cancelled = True
        self.wake()

    def done(self, reason: Reason, error: Exception | None = None) -> Done:
        """The event for the end of the text."""
        n_prompt = len(self.request.prompt)
        growth, times, now = self.growth, self.times, monotonic()
        return Done(
            reason, n_prompt, self.n_reused, growth.n_drawn, error, self.why_not_reused, times,
            tuple(growth.ids), growth.stopped_by,
            prompt_seconds=(times.first or now) - times.started if times.started else 0.0,
            generation_seconds=now - times.first if times.first else 0.0,
        )  # fmt: skip
