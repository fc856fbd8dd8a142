"""Turns bodies and options of Ollama's API into bodies of the OpenAI API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weft.serve.chats import THINKS
from weft.serve.errors import ApiError
from weft.serve.ollama.schema import ChatRequest, GenerateRequest, Writing
from weft.serve.schema import ChatBody, CompletionBody, WideChat, WideCompletion
from weft.serve.validation import shown

_DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
}
"""Ollama's defaults for options that neither a request nor a model sets."""
_SAME = frozenset((
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "seed", "stop"),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
))  # fmt: skip
"""Options with the same name and meaning."""
_OF_LOADING = frozenset((
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap"),
    *("use_mlock", "low_vram", "f16_kv", "vocab_only", "logits_all", "embedding_only", "num_keep"),
))  # fmt: skip
"""Options of loading, which the command line of the server has instead, and `num_keep`, because
texts end when the context is full."""


def fields_of(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """The fields of `options`, with Ollama's defaults, and the names of options without an effect.

    Raises ApiError for a `num_predict` that is not a number."""
    fields, ignored = dict(_DEFAULTS), list[str]()
    for name, value in (options or {}).items():
        if value is None:
            continue
        if name == "mirostat" and value == 1:  # Ollama has no mirostat any longer, and weft only 2
            ignored.append(f"options.{name}")
        elif name == "repeat_penalty" and value == 0:
            fields[name] = 1.0
        elif name in _SAME:
            fields[name] = value
        elif name == "num_predict":
            fields["max_tokens"] = _limit(value)
        elif name not in _OF_LOADING:
            ignored.append(f"options.{name}")
    return fields, ignored


def _limit(value: Any) -> int:
    """The maximum number of tokens; -1 for 0 and for every number below it, which mean no limit."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(
            400, f"num_predict is {shown(value)}; it must be a whole number, -1 for no limit",
            "num_predict",
        )  # fmt: skip
    return max(value, -1) or -1


def chat_of(body: ChatRequest) -> tuple[ChatBody, list[str]]:
    """A chat, and the names of options without an effect."""
    messages = messages_of(body.messages or ())
    tools = {"tools": body.tools} if body.tools else {}
    return _chat(body, messages, tools)


def wants_template(body: GenerateRequest) -> bool:
    """True if `/api/generate` puts the prompt into the chat template."""
    return not body.raw and not body.suffix


def completion_of(body: GenerateRequest) -> tuple[ChatBody | CompletionBody, list[str]]:
    """The body that `/api/generate` asks for: a chat of one message, or a completion of the plain
    text for `raw` and `suffix`. Raises ApiError for a template in Ollama's language, and for what
    `raw` would drop."""
    if body.template:
        raise ApiError(
            400, "template is in Go's language, which is not known here; leave it out to use the "
            "model's own, or send raw: true with a finished prompt", "template", "unsupported",
        )  # fmt: skip
    if wants_template(body):
        messages: list[dict[str, Any]] = []
        if body.system:
            messages.append({"role": "system", "content": body.system})
        user = {"role": "user", "content": body.prompt or "", "images": body.images}
        return _chat(body, [*messages, *messages_of([user])], {})
    if body.raw and (body.system or body.context):
        left = "system" if body.system else "context"
        raise ApiError(400, f"raw: true takes no {left}; write it into the prompt", left)
    if body.images:
        raise ApiError(400, "images need the chat template; leave out raw and suffix", "images")
    fields, ignored = fields_of(body.options)
    ignored += [name for name in ("system", "context") if getattr(body, name)]
    fields.setdefault("max_tokens", -1)
    more: dict[str, Any] = {"suffix": body.suffix} if body.suffix else {}
    if body.logprobs:
        more["logprobs"] = body.top_logprobs or 0
    more |= _held(body)
    form = {"model": body.model, "prompt": body.prompt or "", "stream": body.stream is not False}
    return WideCompletion.model_validate(form | fields | more), ignored


def _held(body: Writing) -> dict[str, Any]:
    """The field that holds an answer to `format`, also where there are tools."""
    if not body.format:
        return {}
    return {"json_schema": {"type": "object"} if body.format == "json" else body.format}


def messages_of(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages in the form of the OpenAI API: images are parts of the content, and calls of tools
    have ids, which messages of role tool repeat in order."""
    made: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []
    for message in messages:
        plain = {k: v for k, v in message.items() if v is not None and k in _KEPT}
        images = message.get("images")
        if images:
            plain["content"] = _with_images(plain.get("content") or "", images)
        if message.get("thinking"):
            plain["reasoning_content"] = message["thinking"]
        if message.get("tool_calls"):
            calls = _calls(message["tool_calls"], len(made))
            open_calls = [(call["id"], call["function"]["name"]) for call in calls]
            plain["tool_calls"] = calls
        if message.get("role") == "tool":
            name = message.get("tool_name") or message.get("name")
            plain |= _answered(open_calls, name)
        made.append(plain)
    return made


_KEPT = frozenset(("role", "content", "tool_call_id"))


def _with_images(content: Any, images: Any) -> list[dict[str, Any]]:
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise ApiError(400, "images is a list of images in base64", "images")
    # what the data are is found in the data
    urls = [
        image if image[:5].lower() == "data:" else f"data:image/png;base64,{image}"
        for image in images
    ]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*parts, {"type": "text", "text": content}]


def _calls(calls: Any, number: int) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise ApiError(400, "tool_calls is a list of calls", "messages")
    made = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ApiError(
                400, 'a call is {"function": {"name": NAME, "arguments": {...}}}', "messages"
            )
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        id_ = call.get("id")
        made.append({
            "id": id_ if isinstance(id_, str) and id_ else f"call{number:03d}{i:02d}",
            "type": "function",
            "function": {"name": function["name"], "arguments": text},
        })  # fmt: skip
    return made


def _answered(open_calls: list[tuple[str, str]], name: Any) -> dict[str, Any]:
    """The call that a message of role tool answers: the first that has no answer yet, of the tool
    `name` if it names one."""
    at = next((i for i, call in enumerate(open_calls) if name in (None, call[1])), None)
    named = {"name": name} if isinstance(name, str) else {}
    if at is None:
        return named
    id_, called = open_calls.pop(at)
    return {"name": called, "tool_call_id": id_} | named


def _chat(
    body: Writing, messages: list[dict[str, Any]], more: Mapping[str, Any]
) -> tuple[ChatBody, list[str]]:
    fields, ignored = fields_of(body.options)
    form: dict[str, Any] = {
        "model": body.model, "messages": messages, "stream": body.stream is not False,
        **fields, **more,
    }  # fmt: skip
    form |= _held(body)
    if isinstance(body.think, str):
        form["reasoning_effort"] = body.think
    elif body.think is not None:
        form |= {"chat_template_kwargs": THINKS} if body.think else {"reasoning_effort": "none"}
    if body.logprobs:
        form |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return WideChat.model_validate(form), ignored
