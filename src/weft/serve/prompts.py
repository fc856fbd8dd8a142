"""Turns the bodies of HTTP requests into requests to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from weft.errors import ContextError
from weft.llm import Senses, Tokenizer
from weft.llm.answers import AnswerFormat
from weft.llm.chat.messages import Message
from weft.llm.chat.template import ChatTemplate, prompt_tokens, render_begun
from weft.llm.engine import Request
from weft.llm.senses.media import Marked, mark_media
from weft.records import dataclass
from weft.serve.adapters import ServedAdapters, ServedVectors
from weft.serve.chats import (
    begun_of,
    call_schema,
    choice_of,
    in_lines,
    is_begun,
    named_tool,
    reasons,
    schema_of,
    thinks,
    tools_of,
    variables_of,
)
from weft.serve.errors import ApiError
from weft.serve.log import logger
from weft.serve.messages import ChatMessage, OneCall, Parser, PlainText, Unsplit
from weft.serve.model_card import FIM_ROLES
from weft.serve.options import ServeOptions
from weft.serve.sampling import looks_at_prompt, own_constraint, require_few, sampling_of
from weft.serve.schema import ChatBody, CompletionBody, Generation

Input = str | list[str] | list[int] | list[list[int]]


def token_lists(
    tokenizer: Tokenizer, texts: Input, name: str, *, add_special: bool = True,
    parse_special: bool = False,
) -> list[list[int]]:  # fmt: skip
    """Encodes texts, one or several, as lists of ids; ids stay. `name` is the field they are in;
    the rest are options of `Tokenizer.encode`."""
    encode = partial(tokenizer.encode, add_special=add_special, parse_special=parse_special)
    if isinstance(texts, str):
        return [encode(texts)]
    if not texts:
        raise ApiError(400, f"{name} is an empty list; give at least one text", name)
    if isinstance(texts[0], int):
        return [[i for i in texts if isinstance(i, int)]]
    return [encode(text) if isinstance(text, str) else list(text)
            for text in texts if not isinstance(text, int)]  # fmt: skip


def require_whole(text: str, name: str) -> None:
    """Raises ApiError for a lone surrogate, which JSON can contain but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(
            400, f"{name} has half a character (a lone surrogate) at {error.start}; send it whole",
            name,
        ) from None  # fmt: skip


def texts_of(texts: Input) -> Sequence[str | None]:
    """The prompts that are texts, with None for each that is a list of ids."""
    if isinstance(texts, str):
        return [texts]
    if texts and isinstance(texts[0], int):
        return [None]
    return [text if isinstance(text, str) else None for text in texts]


Tools = Sequence[Mapping[str, Any]]

COMPLETION_TOKENS = 16
"""Default `max_tokens` of /v1/completions, as in the OpenAI API."""

MOST_COUNTED = 1 << 18
"""Maximum number of tokens of a prompt that is only counted."""

MEDIA_MARK = "<__media__>"
"""The text that stands for an image or a sound in a prompt, as in llama.cpp."""

LONGEST_TOKEN = 256
"""Average number of characters of a token that is assumed at most for an unknown vocabulary."""


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is part of the answer."""

    text: str
    hidden: int
    """Number of first tokens of the prompt that the client did not send (BOS)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The texts that one HTTP request asks for."""

    requests: list[Request]
    """The requests to the engine, `best_of` for each prompt."""
    n: int = 1
    """Number of choices that are shown for each prompt."""
    best_of: int = 1
    """Number of choices that are written for each prompt."""
    logprobs: bool = False
    """True if log-probabilities are shown."""
    message: Callable[[], ChatMessage] | None = None
    """Creates the message of one answer to a chat; None for a completion."""
    echoes: list[Echo] | None = None
    """The prompt of each request, if prompts are shown."""
    held: Sequence[Mapping[str, Any]] = ()
    """The tools that the answer must call."""

    def new_message(self) -> ChatMessage:
        """A message for one answer; all of a completion is content."""
        return ChatMessage(PlainText()) if self.message is None else self.message()


class Prompts:
    """Turns bodies into requests. Raises ApiError or a WeftError for one that cannot be served."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        options: ServeOptions,
        room: int,
        adapters: ServedAdapters,
        vectors: ServedVectors,
        senses: Senses | None = None,
    ) -> None:
        """`room` is the most tokens of a prompt; `senses` makes prompts with images and
        sounds."""
        self._adapters = adapters
        self._vectors = vectors
        self._tokenizer = tokenizer
        self._template = template
        self._options = options
        self._room = room
        self._senses = senses
        self._noted = False

    def of_chat(self, body: ChatBody, *, begun: str = "") -> Asked:
        """The texts that a chat asks for: `n` requests with the same prompt. Answers go on from
        `begun`."""
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
        tools = tools_of(body)
        begun = begun or begun_of(body)
        marked, text = self._rendered(body, begun)
        self.require_short(text.replace(marked.mark, ""), "messages")
        ids = self._ids(marked, text)
        n = body.n or 1
        usual = self._options.chat_template_kwargs
        calls = self._calls_only(body, tools, text, thinks(variables_of(body, usual)))
        message = partial(self._message, body, tools, self._format.before(text, begun), calls)
        form = Request(
            (0,),
            max_tokens=self._limit(body, "max_completion_tokens", "max_tokens", "n_predict"),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            stop=_stops(body) + self._template.stops,
            ignore_eos=body.ignore_eos,
            special=tools is not None or self._hides_marks,  # <|python_tag|>, [TOOL_CALLS]
        )
        constraint = calls or self._call_or_form(body, tools)
        requests = self._requests(body, form, [ids], n, constraint)
        message()  # raises now if the format of answers cannot be detected
        held = tools if calls and tools else ()
        return Asked(requests, n, n, bool(body.logprobs), message=message, held=held)

    def count_chat(self, body: ChatBody, *, begun: str = "") -> int:
        """The number of tokens of the prompt of a chat, which may be more than the context holds;
        see `of_chat`."""
        marked, text = self._rendered(body, begun or begun_of(body))
        self.require_short(text.replace(marked.mark, ""), "messages", MOST_COUNTED)
        return len(self._ids(marked, text))

    def rendered(self, body: ChatBody) -> str:
        """The text of the prompt of a chat, with `MEDIA_MARK` for images and sounds. A last message
        of the assistant is continued unless `body` says otherwise, as llama-server does."""
        last = body.messages[-1] if body.messages else None
        if body.continue_final_message is body.add_generation_prompt is None and is_begun(last):
            body = body.model_copy(update={"continue_final_message": True})
        marked, text = self._rendered(body, begun_of(body))
        return text.replace(marked.mark, MEDIA_MARK)

    def _rendered(self, body: ChatBody, begun: str) -> tuple[Marked, str]:
        """The messages, and the text of the prompt with marks for images and sounds."""
        goes_on = body.continue_final_message
        tools = tools_of(body)
        marked = mark_media(body.messages[:-1] if goes_on else body.messages)
        given = marked.messages
        if not (self._template.reads("type") and self._template.reads("text")):
            given = [in_lines(message, marked.mark) for message in given]
        introduced = self._introduced(given)
        messages = self._format.said(introduced, self._template, tools)
        if tools and not self._template.knows_tools:
            tools = None
            if not self._noted:
                self._noted = True
                logger.warning(
                    "the model's chat template knows no tools; the system message describes them"
                )
        usual = self._options.chat_template_kwargs
        named = variables_of(body, usual)
        if begun:
            text = render_begun(self._template, messages, begun, tools=tools, **named)
        else:
            named["add_generation_prompt"] = body.add_generation_prompt is not False
            text = self._template.render(messages, tools=tools, **named)
            if not reasons(body, usual) and self._format.is_thinking(text):
                text += self._format.no_thought
        return marked, text

    def _introduced(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages behind the server's system message, if they have none of their own."""
        system = self._options.system
        if system is None or (messages and messages[0].get("role") in ("system", "developer")):
            return messages
        return [{"role": "system", "content": system}, *messages]

    def _ids(self, marked: Marked, text: str) -> list[int]:
        if not marked.media:
            return prompt_tokens(self._tokenizer, text)
        if self._senses is None:
            raise ApiError(
                400, f"this server takes no {marked.media[0].noun}s; start it with --mmproj FILE",
                "messages", "unsupported",
            )  # fmt: skip
        return self._senses.prompt(marked.pieces(text), marked.media, files=False)

    @cached_property
    def _format(self) -> AnswerFormat:
        return AnswerFormat.of(self._template)

    @cached_property
    def _hides_marks(self) -> bool:
        return self._format.hides_marks(self._tokenizer)

    def _calls_only(
        self, body: ChatBody, tools: Tools | None, text: str, reasons: bool
    ) -> dict[str, Any]:
        """The constraint of an answer that must consist of calls; empty: it need not. `text` is the
        rendered prompt. `reasons`: reasoning may come first, even if the prompt has not begun it.
        """
        if not tools or choice_of(body) in (None, "auto"):
            return {}
        name = named_tool(choice_of(body), tools)
        several = body.parallel_tool_calls is not False and name is None
        grammar = self._format.grammar(
            self._tokenizer, tools, name=name, parallel=several, prompt=text, reasons=reasons
        )
        return {"grammar": grammar} if grammar else {"json_schema": call_schema(tools, name)}

    def _call_or_form(self, body: ChatBody, tools: Tools | None) -> dict[str, Any]:
        """The constraint of an answer in the form that `response_format` asks for, which with
        tools may be calls instead."""
        form = schema_of(body.response_format)
        if not tools or "json_schema" not in form or own_constraint(body):
            return form
        if self._format.harmony or any(self._format.content):
            return form
        several = body.parallel_tool_calls is not False
        schema = form["json_schema"]
        try:
            grammar = self._format.grammar(self._tokenizer, tools, parallel=several, instead=schema)
        except ContextError:  # a tool cannot be held; an error of the form is told later
            return form
        return {"grammar": grammar} if grammar else form

    def _message(
        self, body: ChatBody, tools: Tools | None, text: str, calls: Mapping[str, Any]
    ) -> ChatMessage:
        """The message that splits an answer. An answer with a constraint of the request has no
        reasoning. Calls come in pieces where a stream is held to them: there they cannot turn out
        to be none."""
        parser: Parser
        if "json_schema" in calls:
            parser = OneCall()
        elif not calls and (own_constraint(body) or schema_of(body.response_format)):
            parser = self._format.parser(tools) if tools else PlainText()
        else:
            pieces = bool(calls) and body.stream is True
            parser = self._format.parser(tools, text, pieces=pieces)
            thought = self._format.thought
            if thought and body.reasoning_format == "none":
                parser = Unsplit(parser, thought, thinking=self._format.is_thinking(text))
        return ChatMessage(parser, one_call=body.parallel_tool_calls is False)

    def of_completion(self, body: CompletionBody) -> Asked:
        """The texts that a completion asks for: `best_of` requests for each prompt."""
        n = body.n or 1
        best_of = n if body.best_of is None else body.best_of
        _require_best(body, n, best_of)
        self._require_texts(body, best_of * max(len(texts_of(body.prompt)), 1))
        for text in texts_of(body.prompt):
            self.require_short(text or "", "prompt")
        prompts = token_lists(
            self._tokenizer, body.prompt, "prompt", add_special=body.add_special_tokens,
            parse_special=body.parse_special,
        )  # fmt: skip
        if body.suffix:  # an empty one is none: programs of Ollama always send it
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
            each = [
                self._echo(ids, text, body.add_special_tokens)
                for ids, text in zip(prompts, texts, strict=True)
            ]
            echoes = [echo for echo in each for _ in range(best_of)]
            if wants:
                requests = _scoring(requests)
        return Asked(requests, n, best_of, wants, echoes=echoes)

    def _echo(self, ids: list[int], text: str | None, begins: bool) -> Echo:
        if text is None:
            return Echo(self._tokenizer.decode(ids), 0)
        return Echo(text, len(self._tokenizer.vocab.prefix) if begins else 0)

    def _infilled(self, body: CompletionBody, prompts: list[list[int]]) -> list[list[int]]:
        """Adds the suffix to prompts, with the tokens of models for infilling in between: prefix,
        suffix, and then the middle, which is the answer."""
        if body.echo:
            raise ApiError(400, "echo and suffix do not go together; leave one out", "suffix")
        special = self._tokenizer.vocab.special
        if any(role not in special for role in FIM_ROLES):
            if not body.suffix:
                return prompts
            raise ApiError(
                400, "this model has no tokens for infilling (prefix, suffix, middle); leave "
                "suffix out, or serve a model that was trained for it", "suffix", "unsupported",
            )  # fmt: skip
        before, between, after = (special[role] for role in FIM_ROLES)
        suffix = self._tokenizer.encode(body.suffix or "", add_special=False, continues=True)
        bos = list(self._tokenizer.vocab.prefix) if body.add_special_tokens else []
        return [
            [*bos, before, *(ids[len(bos):] if ids[: len(bos)] == bos else ids), between, *suffix,
             after]
            for ids in prompts
        ]  # fmt: skip

    def _limit(
        self, body: Generation, *names: str, least: int = 1, default: int | None = None
    ) -> int | None:
        """The most tokens to draw, from the first of the fields `names` that has a number, or
        `default` if the body has none of them. -1 and null mean no limit."""
        is_set = body.model_fields_set.intersection(names)
        name = next((n for n in names if getattr(body, n) is not None), names[0])
        limit: int | None = getattr(body, name) if is_set else default
        most = self._options.max_tokens
        if limit is None or limit == -1:
            return most
        if limit < least:
            raise ApiError(400, f"{name} is 0; it must be 1 or more, or -1 for no limit", name)
        if most is not None and limit > most:
            raise ApiError(400, f"{name} is {limit}; this server allows {most}", name)
        return limit

    def require_short(self, text: str, name: str, room: int | None = None) -> None:
        """Raises ApiError for a text that cannot fit into `room` tokens, before it is tokenized."""
        require_whole(text, name)
        room = self._room if room is None else room
        if len(text) <= room:
            return
        n = self._tokenizer.fewest_tokens(text) or len(text) // LONGEST_TOKEN
        if n > room:
            raise self._too_long(name, n, room, "at least ")

    def _require_ids(self, body: Generation, prompts: list[list[int]]) -> None:
        """Raises ApiError for prompts that are empty or too long, and for tokens, in prompts or
        biases, that the model does not have."""
        name = "messages" if isinstance(body, ChatBody) else "prompt"
        last = self._tokenizer.n_vocab - 1
        for ids in prompts:
            if len(ids) > self._room:
                raise self._too_long(name, len(ids), self._room)
            if not ids:
                raise ApiError(400, f"{name} has no tokens; give some text", name)
            if max(ids) > last and name == "prompt":  # larger ones in messages stand for media
                raise ApiError(400, f"{name} has the token {max(ids)}; the last is {last}", name)
        for field in ("logit_bias", "stop_token_ids"):
            for id_ in map(int, getattr(body, field) or ()):
                if id_ > last:
                    raise ApiError(400, f"{field} has the token {id_}; the last is {last}", field)
        least = body.min_tokens or 0
        if any(0 <= most < least for most in (body.max_tokens, body.n_predict) if most is not None):
            raise ApiError(
                400, f"min_tokens is {least}, more than the most tokens of the answer; make it "
                "smaller", "min_tokens",
            )  # fmt: skip

    @staticmethod
    def _too_long(name: str, n: int, room: int, about: str = "") -> ApiError:
        # clients that shorten a conversation look for these words of OpenAI and of llama.cpp
        return ApiError(
            400, f"{name} has {about}{n} tokens, but the context holds {room}: this model's "
            f"maximum context length is {room} tokens, and the request exceeds the available "
            "context size; shorten it, or start the server with a larger --ctx-size", name,
            "context_length_exceeded", tokens=(n, room),
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
        """Copies `form` for each prompt and choice."""
        self._require_texts(body, len(prompts) * choices)
        self._require_ids(body, prompts)
        looks = looks_at_prompt(body)
        adapters, vectors = self._adapters.of_request(body), self._vectors.of_request(body)
        form = replace(
            form, adapters=adapters, control_vectors=vectors,
            stop_ids=tuple(body.stop_token_ids or ()), min_tokens=body.min_tokens or 0,
        )  # fmt: skip
        usual = self._options.sampling
        samplings = [sampling_of(body, choice, constraint, usual) for choice in range(choices)]
        return [
            replace(form, prompt=tuple(ids), sampling=sampling, penalize_prompt=looks)
            for ids in prompts
            for sampling in samplings
        ]


def _stops(body: Generation) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    require_few("stop", stops)
    return tuple(stop for stop in stops if stop)  # an empty text stops nothing, as in llama.cpp


def _require_best(body: CompletionBody, n: int, best_of: int) -> None:
    if best_of < n:
        raise ApiError(400, f"best_of is {best_of}; it must be n ({n}) or more", "best_of")
    if best_of > n and body.stream:
        raise ApiError(
            400, "which choices are best is known at their end; leave out best_of or stream",
            "best_of",
        )  # fmt: skip


def _scoring(requests: list[Request]) -> list[Request]:
    """Asks for the log-probabilities of every prompt, in the first request that has it."""
    first = {request.prompt: i for i, request in reversed(list(enumerate(requests)))}
    return [
        replace(request, prompt_logprobs=request.logprobs)
        if first[request.prompt] == i
        else request
        for i, request in enumerate(requests)
    ]
