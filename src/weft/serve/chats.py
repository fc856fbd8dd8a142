"""What a request for a chat asks of the chat template and of the answer's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.llm.chat.template import NO_REASONING, OWN_VARIABLES
from weft.serve.errors import ApiError
from weft.serve.schema import ChatBody, ResponseFormat

__all__ = ["begun_of", "reasons", "schema_of", "thinks", "tools_of", "variables_of"]

_REASONING = {*NO_REASONING, "reasoning_effort"}


def variables_of(body: ChatBody, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that the template gets besides its own. `usual` are those of the server, which
    a request changes by name; what it says of reasoning replaces all that they say of it."""
    own = dict(body.chat_template_kwargs or {})
    for name in own:
        if name in OWN_VARIABLES or not name.isidentifier():
            raise ApiError(
                400, f"chat_template_kwargs has {name!r:.60}, which is not for requests to set",
                "chat_template_kwargs",
            )  # fmt: skip
    if body.reasoning_effort is not None:
        own.setdefault("reasoning_effort", body.reasoning_effort)
    if body.reasoning_budget == 0:
        own = NO_REASONING | own
    elif (body.reasoning_budget or -1) > 0:
        raise ApiError(
            400, f"reasoning_budget is {body.reasoning_budget}; it is 0 for no reasoning or -1 for "
            "any; limit the answer with max_tokens", "reasoning_budget",
        )  # fmt: skip
    if not _REASONING.isdisjoint(own):
        usual = {name: value for name, value in usual.items() if name not in _REASONING}
    return {**usual, **own}


def reasons(body: ChatBody, usual: Mapping[str, Any]) -> bool:
    """False if a request or the server leaves out reasoning, also where a template begins it."""
    if body.reasoning_budget is not None:
        return body.reasoning_budget != 0
    off = NO_REASONING.items() <= usual.items()
    return not (off and NO_REASONING.items() <= variables_of(body, usual).items())


def thinks(variables: Mapping[str, Any]) -> bool:
    """True if a request asks for reasoning, by the variables of its template."""
    effort = variables.get("reasoning_effort")
    return variables.get("enable_thinking", effort not in (None, "none", "minimal")) is True


def begun_of(body: ChatBody) -> str:
    """What the answer goes on from; empty: it begins. Raises ApiError if there is no such
    message."""
    if not body.continue_final_message:
        return ""
    if body.add_generation_prompt:
        raise ApiError(
            400, "continue_final_message and add_generation_prompt exclude each other; leave out "
            "add_generation_prompt", "continue_final_message",
        )  # fmt: skip
    last = body.messages[-1] if body.messages else {}
    content = last.get("content") if isinstance(last, Mapping) else None
    if last.get("role") != "assistant" or not isinstance(content, str) or not content:
        raise ApiError(
            400, "continue_final_message needs a last message of role assistant whose content is "
            "text", "continue_final_message",
        )  # fmt: skip
    return content


def tools_of(body: ChatBody) -> list[dict[str, Any]] | None:
    """The tools that the template is to write; None: none."""
    choice = body.tool_choice
    if choice == "none" or not body.tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice needs tools", "tool_choice")
        return None
    return body.tools


def schema_of(form: ResponseFormat | None) -> dict[str, Any]:
    """The constraint of an answer; empty: any text is allowed."""
    if form is None or form.type == "text":
        return {}
    if form.type == "json_object":
        return {"json_schema": {"type": "object"}}
    schema = (form.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        raise ApiError(400, "response_format.json_schema has no schema", "response_format")
    return {"json_schema": schema}
