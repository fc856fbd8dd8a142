"""The bodies of requests. An unknown field is not an error: `Body.ignored` names it. Fields of the
OpenAI API that have no effect here, such as `user` and `store`, are accepted silently."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from weft.llm.sampling import SAMPLING_OPTIONS
from weft.serve.validation import IDLE, problem_of, shown, with_constraints

_SPELLINGS = {
    "dry_penalty_last_n": "dry_last_n",
    "repetition_penalty": "repeat_penalty",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "regex",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
}
"""Names of options in other servers, and the names here."""
SAMPLING_FIELDS: Mapping[str, str] = {name: name for name in SAMPLING_OPTIONS} | _SPELLINGS
"""The sampling option of each field that a request may have."""

MOST_TEXTS = 2048
"""Maximum number of texts in a list, as in the OpenAI API."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, strict=True)]
Limit = Annotated[int, Field(ge=-1)]
"""A number of tokens; -1: no limit."""


def _is_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Checks a tool and returns it unchanged but for a type that it lacks, since templates write it
    into the prompt. Those that a service would run itself are left out later."""
    function = tool.get("function")
    if tool.get("type") is None:
        tool = {"type": "function"} | {key: tool[key] for key in tool if key != "type"}
    if isinstance(tool.get("type"), str) and tool["type"] != "function" and function is None:
        return tool
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise ValueError('a tool is {"type": "function", "function": {...}}')
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError("the function of a tool has no name")
    if not isinstance(function.get("parameters") or {}, dict):
        raise ValueError("the parameters of a function are a JSON schema, an object")
    return tool


def _is_bias(biases: dict[str, Any]) -> dict[int, float]:
    """Checks biases and converts them. It stops at the first mistake, because a list of all would
    take more memory than the biases."""
    for key, value in biases.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise ValueError(f"logit_bias has the key {shown(key)}; keys are token ids")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"logit_bias.{key} is {shown(value)}; it must be a number")
        if not -100 <= value <= 100:
            raise ValueError(f"logit_bias.{key} is {shown(value)}; it must be -100 to 100")
    return {int(key): float(value) for key, value in biases.items()}


Tool = Annotated[dict[str, Any], AfterValidator(_is_tool)]
Tokens = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = (
    str
    | Annotated[list[str], Field(fail_fast=True, max_length=MOST_TEXTS)]
    | Tokens
    | Annotated[list[Tokens], Field(fail_fast=True, max_length=MOST_TEXTS)]
)
"""One text or several, as strings or as lists of ids."""


def _is_metadata(values: dict[str, Any]) -> dict[str, Any]:
    if len(values) > 16:
        raise ValueError(f"metadata has {len(values)} keys; it may have 16")
    for key, value in values.items():
        if not isinstance(value, str) or len(value) > 512 or len(key) > 64:
            raise ValueError(
                "metadata has texts of 512 characters at most, by keys of 64 characters at most"
            )
    return values


Metadata = Annotated[dict[str, Any], AfterValidator(_is_metadata)]
"""Values that responses and batches repeat for the client, within the bounds of the OpenAI API."""


def _takes_null(field: FieldInfo) -> bool:
    """True if null has a meaning for a field, or the field has to be there."""
    return field.is_required() or field.get_default(call_default_factory=False) is None


@cache
def _number_kind(part: type[BaseModel], name: str) -> str | None:
    """ "int" or "float" for a field that is a number or null, None for another one."""
    kinds, stack = set(), [part.model_fields[name].annotation]
    while stack:
        kind = stack.pop()
        inner = get_args(kind)
        stack += inner[:1] if hasattr(kind, "__metadata__") else inner
        kinds |= set() if inner else {kind}
    kinds.discard(type(None))
    return next((k.__name__ for k in (float, int) if k in kinds and kinds <= {int, float}), None)


class Part(BaseModel):
    """A body, or an object in one."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """The fields without nulls for those that have a default of another type: clients write
        null for what they leave out."""
        if not isinstance(data, dict) or None not in data.values():
            return data
        fields = cls.model_fields
        return {
            name: value
            for name, value in data.items()
            if value is not None or name not in fields or _takes_null(fields[name])
        }

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true and false for numbers, which pydantic takes for 1 and 0."""
        if isinstance(value, bool):
            kind = _number_kind(cls, str(info.field_name))
            if kind is not None:
                raise PydanticCustomError(f"{kind}_type", "a switch is no number")
        return value

    def ignored(self) -> list[str]:
        """The names of unknown fields; a field of an inner object is written as `object.field`."""
        names = list(self.model_extra or ())
        for name in type(self).model_fields:
            part = getattr(self, name)
            if isinstance(part, Part):
                names += [f"{name}.{inner}" for inner in part.ignored()]
        return names


class Body(Part):
    """A body whose errors are an `ApiError` with a whole sentence."""

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, data: Any, handler: ModelWrapValidatorHandler[Body]) -> Body:
        data = cls._object(data)
        try:
            return handler(data)
        except ValidationError as error:
            raise problem_of(error, cls, data) from None

    @classmethod
    def _object(cls, data: Any) -> Any:
        """The fields of the body, which is an object as a rule."""
        return data


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False


class AdapterScale(Part):
    id: Annotated[int, Field(ge=0)]
    scale: Annotated[float, Field(allow_inf_nan=False)]


AdapterScales = Annotated[list[AdapterScale], Field(fail_fast=True, max_length=MOST_TEXTS)]


class Sampled(Body):
    """A body that may have the fields of `SAMPLING_FIELDS` besides its own."""

    @classmethod
    def _object(cls, data: Any) -> Any:
        return with_constraints(data, known=cls.model_fields) if isinstance(data, dict) else data

    @property
    def sampling(self) -> Mapping[str, Any]:
        """The fields of `SAMPLING_FIELDS` that have a value."""
        extra = self.model_extra or {}
        return {
            name: value
            for name, value in extra.items()
            if name in SAMPLING_FIELDS
            and value is not None
            and not (value == "" and SAMPLING_FIELDS[name] == "grammar")
        }

    def ignored(self) -> list[str]:
        """The names of unknown fields; see `Part.ignored`."""
        own = SAMPLING_FIELDS.keys() | IDLE
        return [name for name in super().ignored() if name not in own]

    def _hosted(self, functions: Collection[str | None]) -> list[str]:
        """The tools that a service would run itself, which are left out here, as
        `tools.0.web_search`. Those of the client are of one of these types."""
        tools = getattr(self, "tools", None) or ()
        kinds = [(number, tool.get("type")) for number, tool in enumerate(tools)]
        return [f"tools.{i}.{str(kind)[:40]}" for i, kind in kinds if kind not in functions]


class Generation(Sampled):
    """The fields that chat and completions share, besides `SAMPLING_FIELDS`."""

    model: str | None = None
    max_tokens: Limit | None = None
    n_predict: Limit | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: Annotated[
        str | Annotated[list[str], Field(fail_fast=True)] | None,
        Field(description="a text or a list of texts"),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Any], AfterValidator(_is_bias)] | None = None
    stop_token_ids: Annotated[
        list[TokenId] | None,
        Field(fail_fast=True, max_length=MOST_TEXTS, description="a list of token ids"),
    ] = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool = False
    timings_per_token: bool = False
    lora: Annotated[
        AdapterScales | None, Field(description='a list of {"id": NUMBER, "scale": NUMBER}')
    ] = None
    control_vectors: Annotated[
        dict[str, Annotated[float, Field(allow_inf_nan=False)]] | None,
        Field(max_length=MOST_TEXTS, description="an object of scales by name"),
    ] = None
    # these have no effect here
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


class AdaptersBody(Body):
    """The body of `/lora-adapters`, which is the list alone."""

    lora: Annotated[AdapterScales, Field(description='a list of {"id": NUMBER, "scale": NUMBER}')]

    @classmethod
    def _object(cls, data: Any) -> Any:
        return {"lora": data} if isinstance(data, list) else data


class CompletionBody(Generation):
    """The body of `/v1/completions`."""

    prompt: Annotated[
        Texts, Field(description=f"a text, token ids, or a list of at most {MOST_TEXTS} of either")
    ]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: str | None = None
    add_special_tokens: bool = True
    parse_special: bool = True


class ResponseFormat(Part):
    type: Literal["text", "json_object", "json_schema", "grammar", "regex"] | None = None
    json_schema: dict[str, Any] | None = None
    schema_: Annotated[Any, Field(alias="schema")] = None
    value: Any = None
    grammar: str | None = None
    regex: str | None = None

    @property
    def narrows(self) -> bool:
        """True if not every text is an answer."""
        return self.type not in (None, "text")


def _with_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose older `function_call` is one of `tool_calls`, and a refusal their content."""
    made: list[dict[str, Any]] = []
    for message in messages:
        call, refusal = message.get("function_call"), message.get("refusal")
        if isinstance(call, dict) and not message.get("tool_calls"):
            id_ = f"call{len(made):05d}"
            calls = [{"id": id_, "type": "function", "function": call}]
            message = {**message, "function_call": None, "tool_calls": calls}
        if isinstance(refusal, str) and not message.get("content"):
            message = {**message, "content": refusal}
        made.append(message)
    return made


class ChatBody(Generation):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[
        list[dict[str, Any]],
        Field(fail_fast=True, description="a list of messages, objects"),
        AfterValidator(_with_calls),
    ]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | dict[str, Any] | None,
        Field(description='"none", "auto", "required" or a function'),
    ] = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Field(description="an object of variables for the chat template")
    ] = None
    reasoning_format: Annotated[
        Literal["auto", "deepseek", "none"] | None, Field(description='"auto" or "none"')
    ] = None
    reasoning_budget: Annotated[int, Field(ge=-1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None
    # these have no effect here
    prediction: dict[str, Any] | None = None
    verbosity: str | None = None

    def ignored(self) -> list[str]:
        """The names of unknown fields, and tools that are left out."""
        return [*super().ignored(), *self._hosted(("function",))]


class _Wide(Generation):
    """A body without the bounds of the OpenAI API, which llama.cpp and Ollama have not."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None


class WideChat(_Wide, ChatBody):
    """The body of a chat of Ollama's API."""


class WideCompletion(_Wide, CompletionBody):
    """The body of a completion of llama.cpp's or Ollama's API."""


class EmbeddingBody(Body):
    """The body of `/v1/embeddings`."""

    model: str | None = None
    input: Annotated[
        Texts, Field(description=f"a text, token ids, or a list of at most {MOST_TEXTS} of either")
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """The tokens of a text that are read, the first ones, by vLLM's name; -1: as many as fit."""


class Document(Part):
    """A document as an object; other fields come back with it."""

    text: str


Documents = Annotated[
    Annotated[list[str | Document], Field(fail_fast=True, min_length=1, max_length=MOST_TEXTS)]
    | None,
    Field(description=f'a list of 1 to {MOST_TEXTS} texts, or of objects {{"text": TEXT}}'),
]
RankedTexts = Annotated[
    Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_TEXTS)] | None,
    Field(description=f"a list of 1 to {MOST_TEXTS} texts"),
]


class RerankBody(Body):
    """The body of `/v1/rerank`: with `documents`, as Jina and Cohere have it, or with `texts`, as
    text-embeddings-inference has."""

    model: str | None = None
    query: str
    documents: Documents = None
    texts: RankedTexts = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    return_text: bool = False


class TokenizeBody(Body):
    """The body of `/tokenize`."""

    content: str
    add_special: bool = True
    parse_special: bool = False
    with_pieces: bool = False


class DetokenizeBody(Body):
    """The body of `/detokenize`."""

    tokens: Tokens
    special: bool = False
