"""Makes a grammar of tool calls, for answers that must be calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.errors import ChatError
from weft.llm.answers.markers import CallMarkers
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.vocab import TokenType

__all__ = ["call_grammar"]

_NO_SPACE = {"whitespace_pattern": r" |\n[ \t]{0,20}"}


def call_grammar(
    markers: CallMarkers,
    tokenizer: Tokenizer,
    tools: Mapping[str, Mapping[str, Any]],
    name: str | None,
    parallel: bool,
    thought: str | None,
    opened: bool = False,
) -> str | None:
    """A Lark grammar for llguidance; see `AnswerFormat.grammar`.

    `tools` has the schemas of arguments by name; `thought` is the text that ends the reasoning, if
    the prompt has begun one."""
    if name is not None and name not in tools:
        raise ChatError(f"tool_choice names the tool {name!r}; there are {', '.join(tools)}")
    if markers.kind == "tagged":
        return None
    callable_tools = {name: tools[name]} if name is not None else tools

    def text(marker: str) -> str:
        return _terminals(marker, tokenizer)

    call = f"{text(markers.open)} space one {text(markers.close) and 'space'} {text(markers.close)}"
    more = f"(space {text(markers.separator)} {call})*" if parallel else ""
    rules = [
        f"start: {'thought space space ' if thought else ''}{text(markers.section)} {call} {more} "
        f"{text(markers.end)}",
        r"space: /[ \n]?/",  # models write either or nothing
    ]
    if thought:
        rules.append(f"thought[suffix={json.dumps(thought)}]: /(?s:.*)/")
    return "\n".join([*rules, *_calls(markers, callable_tools, text)])


def _calls(markers: CallMarkers, tools: Mapping[str, Mapping[str, Any]], text: Any) -> list[str]:
    names = list(tools)
    rules = [f"one: {' | '.join(f'call{i}' for i in range(len(names)))}"]
    for i, name in enumerate(names):
        if markers.kind == "object":
            schema = {
                "type": "object",
                "properties": {markers.name: {"const": name}, markers.arguments: tools[name]},
                "required": [markers.name, markers.arguments],
                "additionalProperties": False,
            }
            rules.append(f"call{i}: %json {_json(schema)}")
        else:
            start = json.dumps(name, ensure_ascii=False)
            rules.append(f"call{i}: {start} {text(markers.after_name)} %json {_json(tools[name])}")
    return rules


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _NO_SPACE}, ensure_ascii=False)


def _terminals(marker: str, tokenizer: Tokenizer) -> str:
    """Writes `marker` as terminals: control tokens in it as tokens, everything else as strings."""
    if not marker:
        return ""
    hidden = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)
    vocab = tokenizer.vocab
    parts: list[str] = []
    for id_ in tokenizer.encode(marker, add_special=False, parse_special=True):
        name = vocab.tokens[id_].decode(errors="replace")
        if vocab.types[id_] in hidden and name in marker:
            before, _, marker = marker.partition(name)
            parts += [_quoted(before), f"<[{id_}]>"]
    return " ".join(part for part in [*parts, _quoted(marker)] if part)


def _quoted(text: str) -> str:
    return json.dumps(text.strip(), ensure_ascii=False) if text.strip() else ""
