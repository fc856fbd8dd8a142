"""The options of `LLM.generate`: their types, their texts for `help()`, and the request that is
made from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import index

from weft.errors import ArgumentError, ContextError
from weft.execute import Progress
from weft.llm.engine.request import Request
from weft.llm.sampling import SAMPLING_OPTIONS, SamplingOptions, SamplingParams
from weft.llm.scaled_files import Chosen
from weft.options import Option


class GenerateOptions(SamplingOptions, total=False):
    """See `LLM.generate`."""

    max_tokens: int | None
    stop: str | Sequence[str]
    parse_special: bool
    stop_token_ids: Sequence[int]
    min_tokens: int
    ignore_eos: bool
    special: bool
    sampling: SamplingParams | None
    logprobs: int | None
    cache_prompt: bool
    adapters: Chosen | None
    control_vectors: Chosen | None
    progress: Progress | None


GENERATE_OPTIONS: dict[str, Option] = {
    "max_tokens": Option(
        None, "Most tokens to generate; None: until the model ends the text or the context is full."
    ),
    "stop": Option((), "A string or a list of strings; the text ends before the first of them."),
    "parse_special": Option(
        False, "True reads the names of control tokens in the prompt as these tokens."
    ),
    "stop_token_ids": Option((), "Tokens that end the text, besides the model's own end tokens."),
    "min_tokens": Option(0, "Number of tokens before which no token may end the text."),
    "ignore_eos": Option(False, "True lets the text go on after the model's end tokens."),
    "special": Option(
        False, "True writes drawn control tokens as text, except those that end the text."
    ),
    "sampling": Option(
        None, "The sampling options as one `SamplingParams`; options given by name take precedence."
    ),
    "logprobs": Option(
        None,
        "Number of likeliest tokens whose log-probabilities the text has (`Completion.logprobs`) "
        "beside those of the drawn tokens; None: none.",
    ),
    "cache_prompt": Option(
        True,
        "True computes only the tokens of the prompt that differ from the beginning of the text "
        "before (logits may then differ in their last bits).",
    ),
    "adapters": Option(
        None,
        "LoRA adapters of the text: a name, a list of names, or scales by name; None: all that "
        "the model was opened with, at their scales.",
    ),
    "control_vectors": Option(
        None,
        "Control vectors of the text: a name, a list of names, or scales by name; None: all that "
        "the model was opened with, at their scales.",
    ),
    "progress": Option(
        None,
        "Function that is called with (tokens done, all tokens) while a single prompt is computed.",
    ),
    **SAMPLING_OPTIONS,
}
"""Every option of `LLM.generate`, with default and meaning."""


def stop_strings(options: GenerateOptions) -> tuple[str, ...]:
    """The option `stop` as a tuple. Raises ArgumentError if it is not a string or a list of
    strings."""
    stop: object = options.get("stop") or ()
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Collection) or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"stop is {stop!r:.60}; it must be a text or a list of texts")
    return tuple(texts)


def request_of(ids: list[int], options: GenerateOptions, *, n_keep: int | None = None) -> Request:
    """The request for a text after the tokens `ids`. `n_keep` is that of `Request`.

    Raises ArgumentError or ContextError for an option of the wrong type or out of range."""
    sampling = {name: v for name, v in options.items() if name in SAMPLING_OPTIONS}
    return Request(
        tuple(ids),
        max_tokens=_number("max_tokens", options.get("max_tokens"), 1),
        sampling=SamplingParams.combine(options.get("sampling"), sampling),
        logprobs=_number("logprobs", options.get("logprobs"), 0),
        stop=stop_strings(options),
        stop_ids=_ids(options.get("stop_token_ids", ())),
        ignore_eos=options.get("ignore_eos", False),
        min_tokens=_number("min_tokens", options.get("min_tokens"), 0) or 0,
        special=options.get("special", False),
        reuse=options.get("cache_prompt", True),
        penalize_prompt=True,
        whole=True,
        n_keep=n_keep,
        adapters=options.get("adapters"),
        control_vectors=options.get("control_vectors"),
    )


def _ids(given: object) -> tuple[int, ...]:
    listed = given if isinstance(given, Collection) and not isinstance(given, str) else (given,)
    if not all(hasattr(id_, "__index__") for id_ in listed):
        raise ArgumentError(
            f"is {given!r:.60}; it must be a list of token ids", argument="stop_token_ids"
        )
    return tuple(map(index, listed))


def _number(name: str, n: int | None, least: int) -> int | None:
    if n is not None and n < least:
        raise ContextError(f"is {n}; it must be {least} or more, or None", argument=name)
    return n
