"""Bodies of requests to requests of the engine."""

from __future__ import annotations

from typing import Any

from weft.llm import SamplingParams, Tokenizer
from weft.llm.chat import ChatTemplate
from weft.llm.engine import Request
from weft.serve.errors import ApiError
from weft.serve.options import ServeOptions
from weft.serve.schema import ChatBody, CompletionBody, Generation, ResponseFormat

__all__ = ["Prompts", "token_lists"]

COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions where the request has none, as the OpenAI API states it."""


class Prompts:
    """Makes requests of bodies; raises ApiError or ContextError for what cannot be served."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, options: ServeOptions) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._options = options

    def of_chat(self, body: ChatBody) -> list[Request]:
        """`n` requests with the same prompt."""
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
        tools = None if body.tool_choice == "none" else body.tools
        text = self._template.render(body.messages, tools=tools)
        ids = self._tokenizer.encode(text, add_special=False, parse_special=True)
        vocab = self._tokenizer.vocab  # most templates write BOS themselves
        if vocab.add_bos and vocab.bos is not None and vocab.bos not in ids[:1]:
            ids.insert(0, vocab.bos)
        limit = body.max_completion_tokens or body.max_tokens
        top = (body.top_logprobs or 0) if body.logprobs else None
        schema = _json_schema(body.response_format)
        return self._requests(body, [ids], limit, top, self._template.stops, schema)

    def of_completion(self, body: CompletionBody) -> list[Request]:
        """`n` requests for each prompt."""
        prompts = token_lists(self._tokenizer, body.prompt)
        return self._requests(body, prompts, body.max_tokens or COMPLETION_TOKENS, body.logprobs)

    def _requests(
        self,
        body: Generation,
        prompts: list[list[int]],
        max_tokens: int | None,
        logprobs: int | None,
        stops: tuple[str, ...] = (),
        json_schema: dict[str, Any] | None = None,
    ) -> list[Request]:
        n, most = body.n or 1, self._options.max_tokens
        if len(prompts) * n > self._options.max_choices:
            raise ApiError(
                400,
                f"{len(prompts) * n} texts in one request; this server allows "
                f"{self._options.max_choices}",
                "n",
            )
        if most is not None and max_tokens is not None and max_tokens > most:
            raise ApiError(
                400, f"max_tokens is {max_tokens}; this server allows {most}", "max_tokens"
            )
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        return [
            Request(
                tuple(ids),
                max_tokens=most if max_tokens is None else max_tokens,
                sampling=_sampling(body, choice, json_schema),
                logprobs=logprobs,
                stop=stop + stops,
                ignore_eos=body.ignore_eos,
            )
            for ids in prompts
            for choice in range(n)
        ]


def _sampling(body: Generation, choice: int, json_schema: dict[str, Any] | None) -> SamplingParams:
    """Every choice has a seed of its own, so that they differ. Penalties look at the whole answer,
    and at no token of the prompt."""
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=None if body.seed is None else (body.seed + choice) % (1 << 63),
        repeat_last_n=-1,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=body.logit_bias,
        grammar=body.grammar,
        regex=body.regex,
        json_schema=json_schema,
    )


def _json_schema(given: ResponseFormat | None) -> dict[str, Any] | None:
    """What the answer must be; None: any text."""
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return {"type": "object"}
    schema = (given.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        raise ApiError(400, "response_format.json_schema has no schema", "response_format")
    return schema


def token_lists(
    tokenizer: Tokenizer, given: str | list[str] | list[int] | list[list[int]]
) -> list[list[int]]:
    """Texts or ids, one or several, as lists of ids."""
    if isinstance(given, str):
        return [tokenizer.encode(given)]
    if not given:
        raise ApiError(400, "the list of texts is empty; give at least one")
    if isinstance(given[0], int):
        return [[i for i in given if isinstance(i, int)]]
    return [tokenizer.encode(one) if isinstance(one, str) else list(one)
            for one in given if not isinstance(one, int)]  # fmt: skip
