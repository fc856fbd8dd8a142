"""Tools and their results as words of a conversation, for templates that write neither."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = """\
You can call these functions. Each line describes one of them in JSON:
<tools>
{tools}
</tools>
To call a function, write its name and a JSON object of its arguments in exactly this form:
{form}
Write this once for each call and then stop: the next message brings the results. If no function \
helps, answer in words."""


def with_tools_in_words(
    messages: Sequence[Any], tools: Sequence[Mapping[str, Any]], form: str
) -> list[Any]:
    """The messages, with `tools` at the end of the system message, or in one of their own. `form`
    is an example of a call."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    words = _WORDS.format(tools=lines, form=form)
    if not messages or _role(messages[0]) not in ("system", "developer"):
        return [{"role": "system", "content": words}, *messages]
    said = messages[0]["content"]
    return [{**messages[0], "content": _joined(said, "\n\n" if said else "", words)}, *messages[1:]]


def with_results_of_users(messages: Sequence[Any]) -> list[Any]:
    """The messages, in which results that follow each other, and what the user says behind them,
    are one message of the user: many templates demand that user and assistant alternate."""
    made: list[Any] = []
    is_behind_result = False
    for message in messages:
        role = _role(message)
        is_result = role in ("tool", "function")
        if is_result:
            said = message.get("content") or ""
            content = _joined("<tool_response>\n", said, "\n</tool_response>")
            message = {"role": "user", "content": content}
        if is_behind_result and (is_result or role == "user"):
            between = "\n" if is_result else "\n\n"
            made[-1]["content"] = _joined(made[-1]["content"], between, message["content"])
        else:
            made.append(message)
        is_behind_result = is_result
    return made


def _role(message: Any) -> Any:
    """The role of a message; None: it is malformed, which the template tells."""
    if not isinstance(message, Mapping):
        return None
    return message.get("role") if isinstance(message.get("content", ""), _CONTENT) else None


_CONTENT = (str, list, tuple, type(None))


def _joined(*contents: Any) -> Any:
    """Contents, which are texts or lists of parts, as one text, or as parts if some are not
    texts."""
    parts = [
        part
        for content in contents
        for part in ([content] if isinstance(content, str) else content or ())
    ]
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else parts
