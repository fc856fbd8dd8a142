"""Turns bodies of Anthropic's API into bodies of chats, whose messages templates take.

Content that a chat cannot have is a 400 that names it, such as `messages.2.content.0`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.serve.anthropic.schema import FUNCTIONS, CountBody, MessagesBody, ToolChoice, is_left_out
from weft.serve.chats import THINKS
from weft.serve.errors import ApiError
from weft.serve.schema import ChatBody

_BILLING = "x-anthropic-billing-header:"
"""A block of the system prompt that begins with this is Claude Code's note for Anthropic. It
differs from request to request, so with it no kept prefix would fit."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TEXT_BLOCKS = ("text", "image", "document")


def chat_of(body: CountBody, most_tokens: int | None = None) -> ChatBody:
    """The body of a chat that asks for the same. A last message of the assistant is left out: see
    `begun_of`. No more than `most_tokens` are asked for, because clients fill in `max_tokens` for
    other models. Raises ApiError for content that is not there."""
    if body.mcp_servers:
        raise ApiError(400, "mcp_servers are not here; give tools instead", "mcp_servers")
    if isinstance(body, MessagesBody) and (body.thread or {}).get("type") == "continue":
        raise ApiError(  # Anthropic's client then sends the whole conversation
            404, "no conversation is kept here; send it whole, without thread", "thread",
            "thread_not_found",
        )  # fmt: skip
    messages = list(body.messages)
    if begun_of(body):
        del messages[-1]
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [*_system(body.system), *_merged(_chat_messages(messages))],
        **body.sampling,
        **({"chat_template_kwargs": THINKS} if body.thinks else {"reasoning_budget": 0}),
    }
    tools = [tool for tool in body.tools or () if tool.get("type") in FUNCTIONS]
    if tools:
        fields["tools"] = [_tool(tool) for tool in tools]
    fields |= _choice(body.tool_choice)
    form = body.output_format or (body.output_config and body.output_config.format)
    if form:
        if begun_of(body):
            raise ApiError(
                400, "a format of the output does not go together with a last message of the "
                "assistant; leave one out", "output_config",
            )  # fmt: skip
        schema = {"name": "output", "schema": form.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if body.output_config is not None and body.output_config.effort:
        fields["reasoning_effort"] = body.output_config.effort
    if isinstance(body, MessagesBody):
        limit = body.max_tokens if most_tokens is None else min(body.max_tokens, most_tokens)
        fields |= {"max_tokens": limit, "stop": body.stop_sequences, "top_k": body.top_k}
        fields["stream"] = body.stream
        fields |= {"temperature": body.temperature, "top_p": body.top_p}
    return ChatBody.model_validate({k: v for k, v in fields.items() if v is not None})


def begun_of(body: CountBody) -> str:
    """The text of a last message of the assistant, with which the answer begins. Raises ApiError
    for one that no answer can go on from."""
    last = body.messages[-1] if body.messages else {}
    if last.get("role") != "assistant":
        return ""
    place = f"messages.{len(body.messages) - 1}"
    texts = []
    for where, block in _blocks(last.get("content"), place):
        kind = block.get("type")
        if kind == "tool_use":
            raise ApiError(
                400, f"{where} is a tool_use; give its tool_result in a message behind", "messages"
            )
        if kind == "text":
            texts.append(_text(block, where))
    text = "".join(texts)
    if text != text.rstrip():
        raise ApiError(
            400, f"{place} ends with white space, which no answer can begin with; cut it off",
            "messages",
        )  # fmt: skip
    return text


def _system(system: str | Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    texts = [_text(block, where) for where, block in _blocks(system or [], "system")]
    texts = [text for text in texts if text and not text.startswith(_BILLING)]
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def _chat_messages(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    names: dict[str, str] = {}
    for number, message in enumerate(messages):
        place, role = f"messages.{number}", message.get("role")
        if role == "assistant":
            yield _assistant(message, place, names)
        elif role == "user":
            yield from _user(message, place, names)
        elif role in ("system", "developer"):
            yield from _system(message.get("content"))
        else:
            raise ApiError(400, f"{place} has no role; it is user or assistant", "messages")


def _assistant(message: Mapping[str, Any], place: str, names: dict[str, str]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for where, block in _blocks(message.get("content"), place):
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block, where))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            name, given = block.get("name"), block.get("input")
            if not isinstance(name, str) or not isinstance(given, dict):
                raise ApiError(400, f"{where} is a tool_use without name and input", "messages")
            id_ = str(block.get("id") or "")
            names[id_] = name
            function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
            calls.append({"id": id_, "type": "function", "function": function})
        elif kind != "redacted_thinking" and not is_left_out(kind):
            raise _absent(where, kind, "text, thinking, tool_use")
    chat: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        chat["reasoning_content"] = "".join(thoughts)
    if calls:
        chat["tool_calls"] = calls
    return chat


def _user(
    message: Mapping[str, Any], place: str, names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Messages with results of tools, and then one with what else the user says."""
    parts: list[dict[str, Any]] = []
    for where, block in _blocks(message.get("content"), place):
        if block.get("type") == "tool_result":
            id_ = str(block.get("tool_use_id") or "")
            content = [
                part
                for inner, one in _blocks(block.get("content") or "", where)
                for part in _parts(one, inner)
            ]
            chat = {"role": "tool", "tool_call_id": id_, "content": _plain(content)}
            yield chat | ({"name": names[id_]} if id_ in names else {})
        else:
            parts += _parts(block, where, " or tool_result")
    if parts:
        yield {"role": "user", "content": _plain(parts)}


def _parts(block: Mapping[str, Any], where: str, more: str = "") -> list[dict[str, Any]]:
    """The parts of a chat message that a block becomes."""
    kind, source = block.get("type"), block.get("source")
    if is_left_out(kind):
        return []
    if kind == "search_result":
        said = [str(block.get("title") or ""), str(source or "")]
        inner = _blocks(block.get("content"), where)
        texts = [*filter(None, said), *(_text(one, place) for place, one in inner)]
        return [{"type": "text", "text": "\n".join(texts)}]
    if kind == "text":
        return [{"type": "text", "text": _text(block, where)}]
    if kind == "image" and isinstance(source, Mapping):
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        elif source.get("type") == "url":
            url = str(source.get("url"))
        else:
            raise _absent(f"{where}.source", source.get("type"), "base64")
        return [{"type": "image_url", "image_url": {"url": url}}]
    if kind == "document" and isinstance(source, Mapping):
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return [{"type": "text", "text": source["data"]}]
        if source.get("type") == "content":
            inner = _blocks(source.get("content"), f"{where}.source")
            return [part for place, one in inner for part in _parts(one, place)]
        raise _absent(f"{where}.source", source.get("type"), "text")
    raise _absent(where, kind, ", ".join(_TEXT_BLOCKS) + more)


def _plain(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Parts as a text if they are texts, with an empty line between them."""
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _blocks(content: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each block of a content with its place; a text is one block."""
    if isinstance(content, str):
        yield place, {"type": "text", "text": content}
        return
    if not isinstance(content, list):
        raise ApiError(400, f"{place} has no content; it is a text or a list of blocks", "messages")
    for number, block in enumerate(content):
        where = place if place == "system" else f"{place}.content"
        if not isinstance(block, Mapping):
            raise ApiError(400, f"{where}.{number} is no block, an object with a type", "messages")
        if block.get("type") == "compaction":  # a summary of what was said before
            block = {"type": "text", "text": block.get("content") or ""}
        yield f"{where}.{number}", block


def _text(block: Mapping[str, Any], where: str) -> str:
    text = block.get("text")
    if block.get("type", "text") != "text" or not isinstance(text, str):
        raise ApiError(400, f'{where} is no {{"type": "text", "text": ...}}', "messages")
    return text


def _absent(where: str, kind: Any, there: str) -> ApiError:
    return ApiError(
        400, f"{where} is of type {str(kind)[:40]!r}, which is not here; known: {there}",
        "messages",
    )  # fmt: skip


def _merged(messages: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins messages of the same role in a row, as Anthropic does: many templates refuse them."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        last = merged[-1] if merged else {}
        same = last.get("role") == message["role"] in ("user", "assistant")
        if not same or last.get("tool_calls"):
            merged.append(message)
            continue
        joined = _as_parts(last["content"]) + _as_parts(message["content"])
        assistant = message["role"] == "assistant"
        content = "".join(p["text"] for p in joined) if assistant else _plain(joined)
        thought = last.get("reasoning_content", "") + message.get("reasoning_content", "")
        more = {"reasoning_content": thought} if thought else {}
        merged[-1] = message | {"content": content} | more
    return merged


def _as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    fields: dict[str, Any] = {}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        function = {"name": choice.name}
        return fields | {"tool_choice": {"type": "function", "function": function}}
    return fields | {"tool_choice": _CHOICES[choice.type]}
