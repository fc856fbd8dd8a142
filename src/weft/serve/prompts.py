"""Bodies of requests to requests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from weft.llm import Tokenizer
from weft.llm.answers import AnswerFormat
from weft.llm.chat.template import ChatTemplate, prompt_tokens
from weft.llm.engine import Request
from weft.serve.errors import ApiError
from weft.serve.messages import (
    ChatMessage,
    Reader,
    TextReader,
    WholeCall,
    call_schema,
    named_tool,
)
from weft.serve.options import ServeOptions
from weft.serve.sampling import looks_at_prompt, own_constraint, require_few, sampling_of
from weft.serve.schema import ChatBody, CompletionBody, Generation, ResponseFormat

__all__ = ["Asked", "Echo", "Prompts", "require_whole", "texts_of", "token_lists"]

Tools = Sequence[Mapping[str, Any]]

COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions where the request has none, as the OpenAI API states it."""

LONGEST_TOKEN = 256
"""Characters that a token has at most on average, where a vocabulary says nothing of it."""


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is part of the answer."""

    text: str
    hidden: int
    """First tokens of the prompt that the client did not send: BOS."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one HTTP request wants to have written."""

    requests: list[Request]
    """`best_of` for each prompt."""
    n: int = 1
    """Choices that are shown of each prompt."""
    best_of: int = 1
    logprobs: bool = False
    """Whether they are shown."""
    message: Callable[[], ChatMessage] | None = None
    """Makes what takes an answer to a chat apart."""
    echoes: list[Echo] | None = None
    """The prompt of each request, where it is shown."""


class Prompts:
    """Makes requests of bodies; raises ApiError or a WeftError for what cannot be served."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, options: ServeOptions, room: int
    ) -> None:
        """`room`: tokens of a prompt that fit."""
        self._tokenizer = tokenizer
        self._template = template
        self._options = options
        self._room = room

    def of_chat(self, body: ChatBody) -> Asked:
        """`n` requests with the same prompt."""
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
        tools = _tools(body)
        text = self._template.render(body.messages, tools=tools)
        self.require_short(text, "messages")
        ids = prompt_tokens(self._tokenizer, text)
        n = body.n or 1
        calls = self._calls_only(body, tools, text)
        reads = partial(self._reader, body, tools, text, calls)
        form = Request(
            (0,),
            max_tokens=self._limit(body, "max_completion_tokens", "max_tokens", "n_predict"),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            stop=_stops(body) + self._template.stops,
            ignore_eos=body.ignore_eos,
            special=tools is not None or self._hides_thought,  # <|python_tag|>, [TOOL_CALLS]
        )
        constraint = calls or _json_schema(body.response_format)
        requests = self._requests(body, form, [ids], n, constraint)
        reads()  # a format that cannot be found out is said now
        return Asked(requests, n, n, bool(body.logprobs), message=reads)

    @cached_property
    def _format(self) -> AnswerFormat:
        return AnswerFormat.of(self._template)

    @cached_property
    def _hides_thought(self) -> bool:
        """Whether the marks around reasoning are control tokens."""
        for mark in self._format.thought or ():
            ids = self._tokenizer.encode(mark, add_special=False, parse_special=True)
            if mark.strip() not in self._tokenizer.decode(ids):
                return True
        return False

    def _calls_only(self, body: ChatBody, tools: Tools | None, text: str) -> dict[str, Any]:
        """The constraint of an answer that has to be calls; `text`: the rendered prompt."""
        if not tools or body.tool_choice in (None, "auto"):
            return {}
        if body.response_format is not None and body.response_format.type != "text":
            raise ApiError(
                400, "response_format does not go together with a tool_choice that asks for a "
                "call; leave one out", "tool_choice",
            )  # fmt: skip
        name = named_tool(body.tool_choice, tools)
        several = body.parallel_tool_calls is not False and name is None
        grammar = self._format.grammar(
            self._tokenizer, tools, name=name, parallel=several, prompt=text
        )
        return {"grammar": grammar} if grammar else {"json_schema": call_schema(tools, name)}

    def _reader(
        self, body: ChatBody, tools: Tools | None, text: str, calls: Mapping[str, Any]
    ) -> ChatMessage:
        """What takes an answer apart. One that is held to a text of the request's has no
        reasoning."""
        reader: Reader
        if "json_schema" in calls:
            reader = WholeCall()
        elif not calls and (own_constraint(body) or _json_schema(body.response_format)):
            reader = self._format.parser(tools) if tools else TextReader()
        else:
            reader = self._format.parser(tools, text)
        return ChatMessage(reader, one_call=body.parallel_tool_calls is False)

    def of_completion(self, body: CompletionBody) -> Asked:
        """`best_of` requests for each prompt."""
        n = body.n or 1
        best_of = n if body.best_of is None else body.best_of
        _require_best(body, n, best_of)
        self._require_texts(body, best_of * _n_texts(body.prompt))
        for text in texts_of(body.prompt):
            self.require_short(text or "", "prompt")
        prompts = token_lists(self._tokenizer, body.prompt, "prompt")
        if body.suffix is not None:
            self.require_short(body.suffix, "suffix")
            prompts = self._infilled(body, prompts)
        limit = self._limit(body, "max_tokens", "n_predict", least=0, default=COMPLETION_TOKENS)
        if limit == 0 and not body.echo:
            name = "max_tokens" if body.max_tokens == 0 else "n_predict"
            raise ApiError(400, f"{name} is 0, which makes sense with echo only", name)
        wants = body.logprobs is not None
        form = Request(
            (0,),
            max_tokens=limit,
            logprobs=0 if best_of > n and not wants else body.logprobs,
            stop=_stops(body),
            ignore_eos=body.ignore_eos,
        )
        requests = self._requests(body, form, prompts, best_of)
        echoes = None
        if body.echo:
            texts = texts_of(body.prompt)
            each = [self._echo(ids, text) for ids, text in zip(prompts, texts, strict=True)]
            echoes = [echo for echo in each for _ in range(best_of)]
            if wants:
                requests = _scoring(requests)
        return Asked(requests, n, best_of, wants, echoes=echoes)

    def _echo(self, ids: list[int], text: str | None) -> Echo:
        if text is None:
            return Echo(self._tokenizer.decode(ids), 0)
        return Echo(text, len(self._tokenizer.vocab.prefix))

    def _infilled(self, body: CompletionBody, prompts: list[list[int]]) -> list[list[int]]:
        """Prompts with the suffix, between the tokens that models for infilling have learned:
        prefix, suffix, and then the middle, which is the answer."""
        if body.echo:
            raise ApiError(400, "echo and suffix do not go together; leave one out", "suffix")
        special = self._tokenizer.vocab.special
        roles = ("fim_pre", "fim_suf", "fim_mid")
        if any(role not in special for role in roles):
            raise ApiError(
                400, "this model has no tokens for infilling (prefix, suffix, middle); leave "
                "suffix out, or serve a model that was trained for it", "suffix", "unsupported",
            )  # fmt: skip
        before, between, after = (special[role] for role in roles)
        suffix = self._tokenizer.encode(body.suffix or "", add_special=False, continues=True)
        bos = list(self._tokenizer.vocab.prefix)
        return [
            [*bos, before, *(ids[len(bos):] if ids[: len(bos)] == bos else ids), between, *suffix,
             after]
            for ids in prompts
        ]  # fmt: skip

    def _limit(
        self, body: Generation, *names: str, least: int = 1, default: int | None = None
    ) -> int | None:
        """Tokens to draw, by the first field that has a number; `default`: where none is given. -1
        and null are no limit."""
        given = body.model_fields_set.intersection(names)
        name = next((n for n in names if getattr(body, n) is not None), names[0])
        wanted: int | None = getattr(body, name) if given else default
        most = self._options.max_tokens
        if wanted is None or wanted == -1:
            return most
        if wanted < least:
            raise ApiError(400, f"{name} is 0; it must be 1 or more, or -1 for no limit", name)
        if most is not None and wanted > most:
            raise ApiError(400, f"{name} is {wanted}; this server allows {most}", name)
        return wanted

    def require_short(self, text: str, name: str, room: int | None = None) -> None:
        """Refuses a text that cannot fit, before it is tokenized; `room`: tokens that fit."""
        require_whole(text, name)
        room = self._room if room is None else room
        if len(text) <= room:
            return
        n = self._tokenizer.fewest_tokens(text) or len(text) // LONGEST_TOKEN
        if n > room:
            raise self._too_long(name, f"at least {n}", room)

    def _require_ids(self, body: Generation, prompts: list[list[int]]) -> None:
        """Refuses prompts that cannot be, and biases of tokens that are not there."""
        name = "messages" if isinstance(body, ChatBody) else "prompt"
        last = self._tokenizer.n_vocab - 1
        for ids in prompts:
            if len(ids) > self._room:
                raise self._too_long(name, str(len(ids)), self._room)
            if not ids:
                raise ApiError(400, f"{name} has no tokens; give some text", name)
            if max(ids) > last:
                raise ApiError(400, f"{name} has the token {max(ids)}; the last is {last}", name)
        for id_ in map(int, body.logit_bias or ()):
            if id_ > last:
                raise ApiError(
                    400, f"logit_bias has the token {id_}; the last is {last}", "logit_bias"
                )

    @staticmethod
    def _too_long(name: str, n: str, room: int) -> ApiError:
        return ApiError(
            400, f"{name} has {n} tokens, but the context holds {room}; shorten it, or start the "
            "server with a larger --ctx-size", name, "context_length_exceeded",
        )  # fmt: skip

    def _require_texts(self, body: Generation, n: int) -> None:
        most = self._options.max_choices
        if n > most:
            name = "best_of" if getattr(body, "best_of", None) else "n"
            raise ApiError(
                400, f"{n} texts in one request, prompts times {name}; this server allows {most}",
                name,
            )  # fmt: skip

    def _requests(
        self,
        body: Generation,
        form: Request,
        prompts: list[list[int]],
        choices: int,
        constraint: Mapping[str, Any] | None = None,
    ) -> list[Request]:
        """As `form`, for each prompt and choice."""
        self._require_texts(body, len(prompts) * choices)
        self._require_ids(body, prompts)
        looks = looks_at_prompt(body)
        samplings = [sampling_of(body, choice, constraint) for choice in range(choices)]
        return [
            replace(form, prompt=tuple(ids), sampling=sampling, penalize_prompt=looks)
            for ids in prompts
            for sampling in samplings
        ]


def _stops(body: Generation) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    require_few("stop", stops)
    if "" in stops:
        raise ApiError(400, "stop has an empty text, which would stop everything; leave it out",
                       "stop")  # fmt: skip
    return stops


def _require_best(body: CompletionBody, n: int, best_of: int) -> None:
    if best_of < n:
        raise ApiError(400, f"best_of is {best_of}, but n is {n}; it must be as many", "best_of")
    if best_of > n and body.stream:
        raise ApiError(
            400, "which choices are best is known at their end; leave out best_of or stream",
            "best_of",
        )  # fmt: skip


def _scoring(requests: list[Request]) -> list[Request]:
    """Log-probabilities of every prompt, computed with the first request that has it."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for request in requests:
        first = request.prompt not in seen
        seen.add(request.prompt)
        found.append(replace(request, prompt_logprobs=request.logprobs) if first else request)
    return found


def _tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """What the template is to write of tools."""
    choice = body.tool_choice
    if choice == "none" or not body.tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice needs tools", "tool_choice")
        return None
    return body.tools


def _json_schema(given: ResponseFormat | None) -> dict[str, Any]:
    """The constraint of an answer; empty: any text will do."""
    if given is None or given.type == "text":
        return {}
    if given.type == "json_object":
        return {"json_schema": {"type": "object"}}
    schema = (given.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        raise ApiError(400, "response_format.json_schema has no schema", "response_format")
    return {"json_schema": schema}


def token_lists(
    tokenizer: Tokenizer, given: str | list[str] | list[int] | list[list[int]], name: str
) -> list[list[int]]:
    """Texts or ids, one or several, as lists of ids. `name`: the field that they are in."""
    if isinstance(given, str):
        return [tokenizer.encode(given)]
    if not given:
        raise ApiError(400, f"{name} is an empty list; give at least one text", name)
    if isinstance(given[0], int):
        return [[i for i in given if isinstance(i, int)]]
    return [tokenizer.encode(one) if isinstance(one, str) else list(one)
            for one in given if not isinstance(one, int)]  # fmt: skip


def require_whole(text: str, name: str) -> None:
    """Refuses half a character, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(
            400, f"{name} has half a character (a lone surrogate) at {error.start}; send it whole",
            name,
        ) from None  # fmt: skip


def _n_texts(given: str | list[str] | list[int] | list[list[int]]) -> int:
    one = isinstance(given, str) or not given or isinstance(given[0], int)
    return 1 if one else len(given)


def texts_of(given: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | None]:
    """The texts of prompts, None for those that were given as ids."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [None]
    return [one if isinstance(one, str) else None for one in given]
