"""Settings of a chat for the chat template and for the form of the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from weft.bounds import CONSTRAINT_SECONDS
from weft.errors import ContextError
from weft.llm import SamplingParams
from weft.llm.chat.template import NO_REASONING, OWN_VARIABLES
from weft.llm.sampling.constraint import check_constraint
from weft.llm.sampling.schema import held_parameters, under
from weft.llm.sampling.trial import NoCompilerError
from weft.serve.errors import ApiError
from weft.serve.schema import ChatBody, ResponseFormat

_REASONING = {*NO_REASONING, "reasoning_effort"}
THINKS = dict.fromkeys(NO_REASONING, True)
"""Variables by which templates know that reasoning is wanted."""


def variables_of(body: ChatBody, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that the template gets besides its own. `usual` are the server's, which a
    request replaces by name; if it has any about reasoning, all of the server's about it go."""
    own = dict(body.chat_template_kwargs or {})
    for name in own:
        if name in OWN_VARIABLES or not name.isidentifier():
            raise ApiError(
                400, f"chat_template_kwargs has {name!r:.60}, which is not for requests to set",
                "chat_template_kwargs",
            )  # fmt: skip
    effort = body.reasoning_effort
    if effort:
        own.setdefault("reasoning_effort", effort)
    if _no_reasoning(body):
        own = NO_REASONING | own
    elif effort and effort != "minimal":
        own = THINKS | own
    if (body.reasoning_budget or -1) > 0:
        raise ApiError(
            400, f"reasoning_budget is {body.reasoning_budget}; it is 0 for no reasoning or -1 for "
            "any; limit the answer with max_tokens", "reasoning_budget",
        )  # fmt: skip
    if not _REASONING.isdisjoint(own):
        usual = {name: value for name, value in usual.items() if name not in _REASONING}
    return {**usual, **own}


def reasons(body: ChatBody, usual: Mapping[str, Any]) -> bool:
    """False if a request or the server leaves out reasoning, also where a template begins it."""
    if body.reasoning_budget is not None or body.reasoning_effort == "none":
        return not _no_reasoning(body)
    off = NO_REASONING.items() <= usual.items()
    return not (off and NO_REASONING.items() <= variables_of(body, usual).items())


def _no_reasoning(body: ChatBody) -> bool:
    """True if a request asks for an answer without reasoning."""
    return body.reasoning_budget == 0 or body.reasoning_effort == "none"


def thinks(variables: Mapping[str, Any]) -> bool:
    """True if a request asks for reasoning, by the variables of its template."""
    effort = variables.get("reasoning_effort")
    return variables.get("enable_thinking", effort not in (None, "none", "minimal")) is True


def is_begun(message: Any) -> bool:
    """True for a message of the assistant whose text an answer can continue."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return False
    return bool(message.get("content")) and not message.get("tool_calls")


def in_lines(message: Any, mark: str) -> Any:
    """A message with a line end between parts of text that follow one another, as llama-server
    and vLLM join them for templates that read no parts. `mark` is the text of an image."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    parts: list[Any] = []
    behind_text = False
    for part in content:
        of_part = part if isinstance(part, Mapping) else {"text": part}
        kind, text = of_part.get("type", "text"), of_part.get("text")
        is_text = isinstance(text, str) and text != mark and "text" in str(kind)
        if is_text and behind_text:
            parts.append({"type": "text", "text": "\n"})
        parts.append(part)
        behind_text = is_text
    return {**message, "content": parts}


def begun_of(body: ChatBody) -> str:
    """The text that the answer continues; empty: it starts anew. Raises ApiError if the last
    message has no such text."""
    if not body.continue_final_message:
        return ""
    if body.add_generation_prompt:
        raise ApiError(
            400, "continue_final_message and add_generation_prompt exclude each other; leave out "
            "add_generation_prompt", "continue_final_message",
        )  # fmt: skip
    last = body.messages[-1] if body.messages else {}
    content = last.get("content") if isinstance(last, Mapping) else None
    if isinstance(content, list):
        given = [
            part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
            for part in content
        ]
        texts = [text for text in given if isinstance(text, str)]
        content = "".join(texts) if len(texts) == len(given) else None
    if last.get("role") != "assistant" or not isinstance(content, str) or not content:
        raise ApiError(
            400, "continue_final_message needs a last message of role assistant whose content is "
            "text", "continue_final_message",
        )  # fmt: skip
    return content


def tools_of(body: ChatBody) -> list[dict[str, Any]] | None:
    """The tools that the template is to write; None: none. Raises ApiError for a choice without
    tools."""
    choice = choice_of(body)
    tools = [_whole(tool) for tool in body.tools or () if tool["type"] == "function"]
    if choice == "none" or not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(
                400, "tool_choice needs tools that are functions; there are none", "tool_choice"
            )
        return None
    if choice is body.tool_choice:
        return tools
    names = [_name(tool) for tool in _allowed(body)["tools"]]
    allowed = [tool for tool in tools if tool["function"]["name"] in names]
    if not allowed:
        raise ApiError(400, "tool_choice.allowed_tools names no function of tools", "tool_choice")
    return allowed


def choice_of(body: ChatBody) -> Any:
    """The tool_choice; for one of type allowed_tools, its mode."""
    choice = body.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return choice
    allowed = _allowed(body)
    if allowed.get("mode") not in ("auto", "required") or not isinstance(
        allowed.get("tools"), list
    ):
        raise ApiError(
            400, "tool_choice of type allowed_tools has a mode, auto or required, and tools",
            "tool_choice",
        )  # fmt: skip
    return allowed["mode"]


def _allowed(body: ChatBody) -> Mapping[str, Any]:
    choice = body.tool_choice
    assert isinstance(choice, dict)
    inner = choice.get("allowed_tools", choice)  # the Responses API has it without
    return inner if isinstance(inner, Mapping) else {}


def _name(tool: Any) -> Any:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _whole(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool whose function has parameters, which templates read."""
    function = tool["function"]
    if function.get("parameters", {}) is not None:
        return tool
    none = {"type": "object", "properties": {}}
    return {**tool, "function": {**function, "parameters": none}}


def schema_of(form: ResponseFormat | None) -> dict[str, Any]:
    """The constraint of an answer; empty: any text is allowed."""
    if form is None or form.type in (None, "text"):
        return {}
    if form.type in ("grammar", "regex"):
        given = form.grammar if form.type == "grammar" else form.regex or form.value
        if not isinstance(given, str) or not given:
            raise ApiError(400, f"response_format has no {form.type}", "response_format")
        return {form.type: given}
    # llama.cpp, Together and Fireworks have it beside the type, and some call it value
    own = form.json_schema or {}
    if "schema" not in own and ("type" in own or "properties" in own or "$ref" in own):
        own = {"schema": own}
    schemas = (own.get("schema"), form.schema_, form.value)
    schema = next((schema for schema in schemas if schema is not None), None)
    if schema is None and form.type == "json_object":
        return {"json_schema": {"type": "object"}}
    if not isinstance(schema, dict):
        raise ApiError(400, "response_format.json_schema has no schema", "response_format")
    return {"json_schema": schema or {"type": "object"}}


def named_tool(choice: object, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The function that `tool_choice` names; None: it names none. Raises ApiError if there is no
    such function."""
    if not isinstance(choice, Mapping):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise ApiError(
            400, f"tool_choice names no function of tools; there are {', '.join(names)[:200]}",
            "tool_choice",
        )  # fmt: skip
    return str(name)


def call_schema(tools: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any]:
    """A JSON schema of calls of any tool, or of the tool called `name`."""
    functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
    calls = []
    for number, function in enumerate(functions):
        place = "#" if len(functions) == 1 else f"#/anyOf/{number}"
        schema = function.get("parameters") or {"type": "object"}
        arguments = under(
            held_parameters(function["name"], schema), f"{place}/properties/arguments"
        )
        calls.append({
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        })  # fmt: skip
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def blamed(error: ContextError, tools: Sequence[Mapping[str, Any]]) -> Exception:
    """The error of a constraint that calls of `tools` must satisfy, with the tool to blame,
    if it is found within the seconds that a constraint may take."""
    end = time.monotonic() + CONSTRAINT_SECONDS
    for tool in tools:
        if time.monotonic() >= end:
            break
        function = tool["function"]
        schema = function.get("parameters") or {"type": "object"}
        try:
            check_constraint(SamplingParams(json_schema=schema))
        except NoCompilerError as why:
            return why
        except ContextError as why:
            about, text = f"the parameters of the tool {function['name'][:64]!r}", str(why.args[0])
            return ApiError(400, f"{about}: {text.removeprefix(': ')}", "tools")
    return error
