"""Makes a grammar of tool calls, for answers that must be calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from weft.llm.answers.markers import HOLE, CallMarkers
from weft.llm.answers.values import listed_in, types_of
from weft.llm.sampling.schema import (
    has_references,
    held_parameters,
    held_schema,
    pointer,
    resolved,
    under,
)
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.vocab import TokenType

_NO_SPACE = {"whitespace_pattern": r" |\n[ \t]{0,20}"}
_WHOLE = "#/$defs/whole"
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


def json_rule(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> str:
    """A terminal for JSON of `schema`, whose references are to the schema `root` (None: to
    itself)."""
    if root is not None and has_references(schema):
        inner = {name: value for name, value in schema.items() if name != "$defs"}
        schema = {**under(inner, _WHOLE), "$defs": {"whole": under(root, _WHOLE)}}
    return "%json " + json.dumps({**schema, "x-guidance": _NO_SPACE}, ensure_ascii=False)


class Terminals:
    """Writes texts as terminals: control tokens in them as tokens, everything else as strings."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> str:
        """`text` up to a token that ends answers. White space with a line break may be missing,
        and a hole is the rule `word`."""
        return " ".join(_loose(part) for part in self._parts(text))

    def exact(self, text: str) -> str:
        """`text` as it is."""
        return " ".join(_exact(part) for part in self._parts(text))

    def ends(self, text: str) -> bool:
        """True if `text` has a token that ends answers."""
        eog = self._tokenizer.vocab.eog
        return any(part in eog for part in self._parts(text, stops=False) if isinstance(part, int))

    def until(self, rule: str, end: str, least: int = 0, most: int | None = None) -> str:
        """A rule for text of `least` to `most` characters up to `end`; `behind(end)` has to follow
        it."""
        first = next(iter(self._parts(end)), "")
        text = "/(?s:.*)/" if most is None and not least else f"/(?s:.{{{least},{most or ''}}})/"
        if isinstance(first, int) or not first:
            return f"{rule}: {text}"  # text has no control tokens
        return f"{rule}[suffix={json.dumps(first, ensure_ascii=False)}]: {text}"

    def behind(self, end: str) -> str:
        """The terminals that follow a rule of `until`."""
        parts = self._parts(end)
        if parts and isinstance(parts[0], str):
            parts = parts[1:]
        return " ".join(map(_exact, parts))

    def _parts(self, text: str, *, stops: bool = True) -> list[str | int]:
        """`text` as strings and the ids of control tokens."""
        vocab = self._tokenizer.vocab
        parts: list[str | int] = []
        for id_ in self._tokenizer.encode(text, add_special=False, parse_special=True):
            name = vocab.tokens[id_].decode(errors="replace")
            if vocab.types[id_] in _HIDDEN and name in text:
                before, _, text = text.partition(name)
                parts += [before, int(id_)]
                if stops and id_ in vocab.eog:
                    parts.pop()
                    text = ""
                    break
        return [part for part in [*parts, text] if part != ""]


def _exact(part: str | int) -> str:
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False)


def _loose(text: str | int) -> str:
    """Terminals of a part of a text."""
    if isinstance(text, int):
        return _exact(text)
    parts = re.split(rf"(\s*\n\s*|{HOLE})", text)
    written = []
    for part in parts:
        if part == HOLE:
            written.append("word")
        elif part and not part.strip():
            written.append("space")
        elif part:
            written.append(json.dumps(part, ensure_ascii=False))
    return " ".join(written)


_LONGEST = 4096
"""Maximum length of a text that is enforced where a schema demands one."""


def argument_rules(
    markers: CallMarkers, text: Terminals, number: int, name: str, schema: Mapping[str, Any]
) -> list[str]:
    """The rule `call{number}` of a call of the tool `name`, and the rules of its arguments. The
    required arguments come first, in the order of the schema, then others."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [key for key in schema.get("required") or () if key in properties]
    keys = [*required, *(key for key in properties if key not in required)]
    rules: list[str] = []
    for i, key in enumerate(keys):
        rules += _argument(markers, text, f"call{number}arg{i}", key, properties[key], schema)
    brackets = {"python": ('"("', '")"'), "loose": ('"{"', '"}"')}.get(markers.kind, ("", ""))
    start = f"{_quoted(name)} {text(markers.after_name)} {brackets[0]}"
    n = len(required)
    parts = [f"call{number}arg{i}" for i in range(len(keys))]
    if not brackets[0]:
        inner = " ".join(
            f"space {part}" if i < n else f"(space {part})?" for i, part in enumerate(parts)
        )
        return [f"call{number}: {start} {inner}", *rules]
    return [f"call{number}: {start} {_listed(parts, n)} {brackets[1]}", *rules]


def _listed(parts: list[str], n_required: int) -> str:
    """Parts with commas between them; those behind the first `n_required` may be missing."""
    if n_required:
        written = ' "," space '.join(parts[:n_required])
        return " ".join([written, *(f'("," space {part})?' for part in parts[n_required:])])
    # each may be the first: the alternatives differ in that
    ways = [
        " ".join([part, *(f'("," space {other})?' for other in parts[i + 1 :])])
        for i, part in enumerate(parts)
    ]
    return f"({' | '.join(ways)})?" if ways else ""


def _argument(
    markers: CallMarkers, text: Terminals, rule: str, key: str, schema: Any, root: Any
) -> list[str]:
    """The rule of one argument; `root` is the schema of all of them."""
    schema = resolved(schema, root)
    schema = schema if isinstance(schema, Mapping) else {}
    values = _texts(schema)
    is_text = bool(values) or schema.get("type") == "string"
    if markers.kind == "python":
        start = f'{rule}: {_quoted(key)} "="'
        if not is_text:
            return [f"{start} {json_rule(schema, root)}"]
        return [f"{start} {_either(list(map(_python, values))) if values else _PYTHON_TEXT}"]
    if markers.kind == "loose":
        start = f'{rule}: {_quoted(key)} ":"'
        if not is_text:
            return [f"{start} {json_rule(schema, root)}"]
        opening = f'{_quoted(key)} ":" {text(markers.quote)}'
        return _value(text, rule, opening, markers.quote, schema, root)
    if markers.kind == "elements":
        opening = text.exact(f"{markers.quote}<{key}>")
        closing = f"{markers.quote}</{key}>"
        return _value(text, rule, opening, closing, schema, root)
    value_open = markers.value_open.replace(HOLE, _mark(markers, schema, root))
    opening = (
        f"{text(markers.key_open)} {_quoted(key)} {text(value_open)} "
        f"{_quoted(markers.padding) if markers.padding else ''}"
    )
    return _value(text, rule, opening, markers.padding + markers.value_close, schema, root)


def _value(
    text: Terminals, rule: str, opening: str, closing: str, schema: Mapping[str, Any], root: Any
) -> list[str]:
    """A rule of a value between `opening`, which is terminals, and the text `closing`."""
    values = _texts(schema)
    if values:
        return [f"{rule}: {opening} {_either(values)} {text.exact(closing)}"]
    if _is_text(schema, root):
        return [
            f"{rule}: {opening} {rule}v {text.behind(closing)}",
            text.until(f"{rule}v", closing, *_lengths(schema)),
        ]
    return [f"{rule}: {opening} {json_rule(schema, root)} {text.exact(closing)}"]


def _lengths(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """The least and the most characters of a text; None: any number."""
    least, most = schema.get("minLength"), schema.get("maxLength")
    low = least if isinstance(least, int) and 0 <= least <= _LONGEST else 0
    high = most if isinstance(most, int) and low <= most <= _LONGEST else None
    return low, high


def _mark(markers: CallMarkers, schema: Mapping[str, Any], root: Any) -> str:
    """The word in front of a value that says whether it is text."""
    kind = schema.get("type")
    if _texts(schema) or _is_text(schema, root):
        return markers.text_mark
    if markers.text_mark == "true":
        return "false"
    return "number" if kind == "integer" else str(kind)


_OTHERS = ("enum", "const", "anyOf", "oneOf", "allOf", "$ref")
"""Keywords that restrict the values of a schema without a type."""


def _is_text(schema: Mapping[str, Any], root: Any) -> bool:
    """True if a value without quotes may be any text."""
    kinds = types_of(schema, root)
    if not kinds:
        return not any(name in schema for name in _OTHERS)
    return "string" in kinds and not listed_in(schema, root)


def _texts(schema: Mapping[str, Any]) -> list[str]:
    """The texts that a schema lists; empty: it lists none, or other values too."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(v, str) for v in values):
        return values
    return []


_PYTHON_TEXT = r"""/'([^'\\\n]|\\[\\'"nrt])*'/"""
"""A string in single quotes."""


def _python(text: str) -> str:
    """A text as a literal in single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _either(values: list[str]) -> str:
    return f"({' | '.join(map(_quoted, values))})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


MOST_CALLS = 16
"""Maximum number of calls of one answer: small models repeat calls without end if nothing stops
them."""


class BeforeCalls(NamedTuple):
    """The texts in front of the calls, in the prompt or in the answer."""

    thought: tuple[str, str] | None = None
    """The texts around reasoning that the answer may have; None: it has no reasoning."""
    thinking: bool = False
    """True if the prompt has begun the reasoning."""
    opened: bool = False
    """True if the prompt has the text that opens a call."""
    empty: str = ""
    """The text of an answer without content, which the answer may have."""


def call_grammar(
    markers: CallMarkers,
    tokenizer: Tokenizer,
    tools: Mapping[str, Mapping[str, Any]],
    before: BeforeCalls,
    *,
    parallel: bool = True,
    instead: Mapping[str, Any] | None = None,
) -> str:
    """A Lark grammar for llguidance; see `AnswerFormat.grammar`.

    `tools` has the schemas of arguments of the tools that may be called, by name."""
    callable_tools = {key: held_parameters(key, schema) for key, schema in tools.items()}
    text = Terminals(tokenizer)
    first = "" if before.opened else text(markers.open)
    call = f"space one space {text(markers.close)}"
    separator = text(markers.separator)
    parallel = parallel and not text.ends(markers.separator + markers.close + markers.end)
    more = f"(space {separator} space {text(markers.open)} {call})" if parallel else ""
    if more:
        more += f"{{0,{MOST_CALLS - 1}}}"
    opening = ""
    if before.thought is not None:
        begin, end = before.thought
        inside = f"thought {text.behind(end)} space space"
        over = text(end)  # some templates write only the end if there is no reasoning
        opening = inside if before.thinking else f"(space {text(begin)} {inside} | space {over})?"
    if before.empty:
        opening += f" (space {text(before.empty)})?"
    calls = f"space {text(markers.section)} space {first} {call} {more} space {text(markers.end)}"
    if instead is not None:
        calls = f"({calls} | instead)"
    rules = [
        f"start: {opening} {calls}",
        r"space: /[ \n]{0,6}/",  # models write one, a line break, an indent or nothing
        r"word: /[a-zA-Z0-9_.-]{1,40}/",  # ids and numbers
    ]
    if before.thought is not None:
        rules.append(text.until("thought", before.thought[1]))
    if instead is not None:
        rules.append(f"instead: {json_rule(held_schema(instead))}")
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
