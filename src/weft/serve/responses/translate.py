"""Turns items of the Responses API into messages of chats, which templates take.

Content that a chat cannot have is a 400 that names it, such as `input.2.content.0`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.serve.errors import ApiError
from weft.serve.responses.schema import LEFT_OUT, CountBody, Format, ResponsesBody, full_name
from weft.serve.schema import ChatBody

Item = Mapping[str, Any]
_SEAL = "weft:"
"""The beginning of the `encrypted_content` of reasoning, which is not secret here."""
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_OUTPUTS = frozenset(
    f"{tool}_call_output" for tool in ("custom_tool", "local_shell", "shell", "apply_patch")
)
_TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")


def items_of(
    given: str | Sequence[Item], find: Callable[[str], Item | None]
) -> list[dict[str, Any]]:
    """The items of `input`, each with its type; `find` gives the item that a reference names.
    Raises ApiError for an item that cannot be of a conversation."""
    if isinstance(given, str):
        return [_message("user", given)] if given else []
    items = []
    for number, item in enumerate(given):
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "item_reference" or (kind is None and set(item) == {"id"}):
            found = find(str(item.get("id")))
            if found is None:
                raise ApiError(
                    404, f"input.{number} refers to {str(item.get('id'))[:80]!r}, which is not "
                    "kept; give the item itself", "input",
                )  # fmt: skip
            items.append(dict(found))
            continue
        items.append({**item, "type": kind})
    return items


def chat_of(body: CountBody, items: Sequence[Item]) -> ChatBody:
    """The body of a chat that asks for the same, with the conversation `items`. Raises ApiError
    for what is not there."""
    for name in ("background", "conversation", "prompt"):
        if getattr(body, name, None):
            raise ApiError(400, f"{name} is not here; leave it out", name, "unsupported")
    fields: dict[str, Any] = {"model": body.model, "messages": _messages(body.instructions, items)}
    choice = body.tool_choice
    tools = [{**tool, "name": name} for name, tool, _ in body.functions()]
    if isinstance(choice, dict) and choice.get("type") != "allowed_tools":
        if choice.get("type") != "function":
            raise ApiError(
                400, f"tool_choice of type {str(choice.get('type'))[:40]!r} is not here; it may "
                'be {"type": "function", "name": NAME}', "tool_choice",
            )  # fmt: skip
        choice = {"type": "function", "function": {"name": full_name(choice)}}
    if tools:
        fields["tools"] = [_tool(tool) for tool in tools]
    fields |= {"tool_choice": choice, "parallel_tool_calls": body.parallel_tool_calls}
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _format(body.text.format)
    if body.reasoning is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if isinstance(body, ResponsesBody):
        fields |= body.sampling
        fields |= {"max_completion_tokens": body.max_output_tokens, "top_p": body.top_p}
        fields |= {"temperature": body.temperature, "stream": body.stream}
        fields |= {"ignore_eos": body.ignore_eos}
        if body.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return ChatBody.model_validate({k: v for k, v in fields.items() if v is not None})


def seal(reasoning: str) -> str:
    """Reasoning as `encrypted_content`, for clients that keep nothing else of it. It is not
    encrypted, since it is the client's own."""
    return _SEAL + base64.b64encode(reasoning.encode(errors="replace")).decode()


def _messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}
    for number, item in enumerate(items):
        if item.get("type") in LEFT_OUT:
            continue
        item = _as_function(item)
        where, kind = f"input.{number}", item.get("type")
        if kind == "message":
            _add_message(messages, item, where)
        elif kind == "function_call":
            name, id_ = item.get("name"), str(item.get("call_id") or "")
            arguments = item.get("arguments")
            if isinstance(arguments, dict):
                arguments = json.dumps(arguments, ensure_ascii=False)
            if not isinstance(name, str) or not isinstance(arguments, str):
                raise ApiError(
                    400, f"{where} is a function_call without name and arguments, both texts",
                    "input",
                )  # fmt: skip
            names[id_] = name = full_name(item)
            function = {"name": name, "arguments": arguments}
            call = {"id": id_, "type": "function", "function": function}
            _turn(messages).setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            id_ = str(item.get("call_id") or "")
            output = item.get("output")
            plain = isinstance(output, list) and not any(map(_has_type, output))
            if plain or output is None or isinstance(output, dict | int | float):
                output = "" if output is None else json.dumps(output, ensure_ascii=False)
            content = _content(output, f"{where}.output")
            more = {"name": names[id_]} if id_ in names else {}
            messages.append({"role": "tool", "tool_call_id": id_, "content": content} | more)
        elif kind == "reasoning":
            thought = _thought(item, where)
            if thought:
                turn = _turn(messages, begins=True)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        else:
            raise ApiError(
                400, f"{where} is of type {str(kind)[:40]!r}, which is not here; known: message, "
                "function_call, function_call_output, reasoning, item_reference", "input",
            )  # fmt: skip
    return messages


def _as_function(item: Item) -> Item:
    """Calls of tools that take a text or a command as calls of functions, and their results."""
    kind = item.get("type")
    if kind == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input")}, ensure_ascii=False)
        return {**item, "type": "function_call", "arguments": arguments}
    if kind in ("local_shell_call", "shell_call", "apply_patch_call"):
        what = item.get("action") or item.get("operation") or {}
        arguments = json.dumps(what, ensure_ascii=False)
        return {**item, "type": "function_call", "name": kind[:-5], "arguments": arguments}
    if kind in _OUTPUTS:
        id_ = item.get("call_id") or item.get("id")
        return {**item, "type": "function_call_output", "call_id": id_}
    return item


def _has_type(part: Any) -> bool:
    return isinstance(part, Mapping) and "type" in part


def _add_message(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise ApiError(
            400, f"{where} has the role {str(item.get('role'))[:40]!r}; it may be "
            f"{', '.join(_ROLES)}", "input",
        )  # fmt: skip
    content = _content(item.get("content"), f"{where}.content")
    first = not messages or all(message["role"] == "system" for message in messages)
    one = messages[0]["content"] if messages and first and role == "system" else None
    if isinstance(one, str) and isinstance(content, str):
        messages[0]["content"] = f"{one}\n\n{content}"  # templates take one system message
    elif role == "assistant":
        turn = _turn(messages, begins=True)
        turn["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _turn(messages: list[dict[str, Any]], *, begins: bool = False) -> dict[str, Any]:
    """The message of the assistant that an item belongs to. One that `begins` an answer belongs to
    a message that has no text and no calls yet."""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and not (
        begins and (last["content"] or last.get("tool_calls"))
    ):
        return last
    messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """The content of a chat message: a text if there are only texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where} is neither a text nor a list of parts", "input")
    parts = [_part(part, f"{where}.{number}") for number, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str):
            return {"type": "text", "text": text}
    elif kind == "input_image":
        url = part.get("image_url")
        if isinstance(url, str):
            return {"type": "image_url", "image_url": {"url": url}}
        raise ApiError(
            400, f"{where} has no image_url; images come as data:image/png;base64,...", "input"
        )
    elif kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    raise ApiError(
        400, f"{where} is of type {str(kind)[:40]!r}, which is not here or lacks its text; known: "
        "input_text, output_text, input_image, input_audio", "input",
    )  # fmt: skip


def _thought(item: Item, where: str) -> str:
    """The text of a reasoning item: its content, or what `seal` made of it."""
    parts = item.get("content") or ()
    if not isinstance(parts, list | tuple):
        raise ApiError(400, f"{where}.content is no list of parts", "input")
    texts = [p["text"] for p in parts if isinstance(p, Mapping) and isinstance(p.get("text"), str)]
    sealed = item.get("encrypted_content")
    if texts or not isinstance(sealed, str) or not sealed.startswith(_SEAL):
        return "".join(texts)
    try:
        return base64.b64decode(sealed[len(_SEAL) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _format(form: Format) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    if form.schema_ is None:
        raise ApiError(400, "text.format is a json_schema without schema", "text")
    schema = {"name": form.name or "output", "schema": form.schema_}
    return {"type": "json_schema", "json_schema": schema}


def _message(role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": role, "content": content}
