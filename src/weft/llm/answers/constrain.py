"""Makes a grammar of tool calls, for answers that must be calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.errors import ChatError
from weft.llm.answers.arguments import argument_rules
from weft.llm.answers.markers import CallMarkers
from weft.llm.answers.terminals import Terminals, json_rule
from weft.llm.sampling.schema import held_parameters, pointer, under
from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = ["call_grammar"]

MOST_CALLS = 16
"""Most calls of one answer: small models repeat calls without end if nothing stops them."""


def call_grammar(
    markers: CallMarkers,
    tokenizer: Tokenizer,
    tools: Mapping[str, Mapping[str, Any]],
    *,
    name: str | None = None,
    parallel: bool = True,
    thought: tuple[str, str] | None = None,
    thinking: bool = False,
    opened: bool = False,
    empty: str = "",
) -> str:
    """A Lark grammar for llguidance; see `AnswerFormat.grammar`.

    `tools` has the schemas of arguments by name; `thought` are the texts around reasoning that may
    come first, which has begun if `thinking`. `opened`: the prompt has the text that opens a call.
    `empty`: the text of an answer without content, which may come first."""
    if name is not None and name not in tools:
        raise ChatError(f"tool_choice names the tool {name!r}; there are {', '.join(tools)}")
    chosen = {name: tools[name]} if name is not None else tools
    callable_tools = {key: held_parameters(key, schema) for key, schema in chosen.items()}
    text = Terminals(tokenizer)
    first = "" if opened else text(markers.open)
    call = f"space one space {text(markers.close)}"
    separator = text(markers.separator)
    parallel = parallel and not text.ends(markers.separator + markers.close + markers.end)
    more = f"(space {separator} space {text(markers.open)} {call})" if parallel else ""
    if more:
        more += f"{{0,{MOST_CALLS - 1}}}"
    before = ""
    if thought is not None:
        inside = f"thought {text.behind(thought[1])} space space"
        over = text(thought[1])  # some templates write only the end if there is no reasoning
        before = inside if thinking else f"(space {text(thought[0])} {inside} | space {over})?"
    if empty:
        before += f" (space {text(empty)})?"
    rules = [
        f"start: {before} space {text(markers.section)} space {first} {call} {more} space "
        f"{text(markers.end)}",
        r"space: /[ \n]{0,6}/",  # models write one, a line break, an indent or nothing
        r"word: /[a-zA-Z0-9_.-]{1,40}/",  # ids and numbers
    ]
    if thought is not None:
        rules.append(text.until("thought", thought[1]))
    return "\n".join([*rules, *_calls(markers, callable_tools, text)])


def _calls(
    markers: CallMarkers, tools: Mapping[str, Mapping[str, Any]], text: Terminals
) -> list[str]:
    rules = [f"one: {' | '.join(f'call{i}' for i in range(len(tools)))}"]
    for i, (name, schema) in enumerate(tools.items()):
        if markers.kind in ("object", "keyed"):
            rules.append(f"call{i}: {json_rule(_object(markers, name, schema))}")
        elif markers.kind == "named":
            start = json.dumps(name, ensure_ascii=False)
            gap = "space" if markers.after_name.startswith("`") else ""
            after = f"{gap} {text(markers.after_name)}"
            rules.append(f"call{i}: {start} {after} space {json_rule(schema)}")
        else:
            rules += argument_rules(markers, text, i, name, schema)
    return rules


def _object(markers: CallMarkers, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a call that is an object."""
    if markers.kind == "keyed":
        parts: dict[str, Any] = {name: under(schema, f"#/properties{pointer(name)}")}
    else:
        own_place = f"#/properties{pointer(markers.arguments)}"
        parts = {markers.name: {"const": name}, markers.arguments: under(schema, own_place)}
        if markers.identity:
            own = {markers.identity: {"type": "string", "pattern": "^[a-zA-Z0-9]{1,9}$"}}
            parts = own | parts if markers.identity_first else parts | own
    return {
        "type": "object",
        "properties": parts,
        "required": list(parts),
        "additionalProperties": False,
    }
