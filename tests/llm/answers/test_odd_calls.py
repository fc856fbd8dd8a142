"""Calls with schemas and names as programs have them: references, alternatives, odd characters."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tests.llm.answers.grammars import answer
from tests.llm.answers.parsed import FAMILIES, format_of, joined
from weft.errors import ContextError
from weft.llm import Tokenizer
from weft.llm.answers.harmony import HarmonyParser
from weft.llm.answers.values import typed_value
from weft.serve.chats import call_schema

PERSON = {"type": "object", "properties": {"name": {"enum": ["Al"]}}, "required": ["name"]}
WHO = {"type": "object", "required": ["who"]}
NESTED: list[dict[str, Any]] = [
    {**WHO, "properties": {"who": {"$ref": "#/$defs/P"}}, "$defs": {"P": PERSON}},
    {**WHO, "properties": {"who": {"$ref": "#/definitions/P"}}, "definitions": {"P": PERSON}},
    {**WHO, "properties": {"who": {"$ref": "#/properties/other"}, "other": PERSON}},
    {**WHO, "properties": {"who": {"$ref": "#P"}}, "$defs": {"P": {**PERSON, "$anchor": "P"}}},
    {**WHO, "properties": {"who": {"allOf": [{"$ref": "#/$defs/P"}]}}, "$defs": {"P": PERSON}},
    {"$ref": "#/$defs/A", "$defs": {"P": PERSON, "A": {
        **WHO, "properties": {"who": {"$ref": "#/$defs/P"}}}}},
    {"$ref": "#/$defs/A", "type": "object", "$defs": {"P": PERSON, "A": {
        **WHO, "properties": {"who": {"$ref": "#/$defs/P"}}}}},
    {"$id": "https://e.org/tool", **WHO, "properties": {"who": {"$ref": "p.json#/$defs/a%20b"}},
     "$defs": {"P": {"$id": "p.json", "$defs": {"a b": PERSON}}}},
]  # fmt: skip


def called(tokenizer: Tokenizer, family: str, name: str, schema: dict[str, Any]) -> Any:
    """The arguments of a call that a model makes which knows nothing."""
    form, tools = format_of(family), [{"name": name, "parameters": schema}]
    grammar = form.grammar(tokenizer, tools, parallel=False)
    assert grammar is not None
    text = answer(tokenizer, grammar, 3)
    parser = form.parser(tools)
    content, _, calls = joined([*parser.push(text), *parser.finish()])
    assert content == "" and len(calls) == 1, text
    assert calls[0][0] == name
    return json.loads(calls[0][1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("schema", NESTED[:2], ids=["$defs", "definitions"])
def test_references(tokenizer: Tokenizer, family: str, schema: dict[str, Any]) -> None:
    assert called(tokenizer, family, "f", schema)["who"] == {"name": "Al"}


@pytest.mark.parametrize("family", ["hermes", "coder", "functionary"])
@pytest.mark.parametrize(
    "schema", NESTED[2:], ids=["properties", "anchor", "allOf", "root", "typed root", "addresses"]
)
def test_other_references(tokenizer: Tokenizer, family: str, schema: dict[str, Any]) -> None:
    assert called(tokenizer, family, "f", schema)["who"] == {"name": "Al"}


NAMES = ["$f", "has space", "@type", "a[]", "é.x/y:z"]


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_any_characters(tokenizer: Tokenizer, family: str) -> None:
    properties = {name: {"enum": ["x"]} for name in ("$filter", "@type", "a[]", "first name")}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    assert called(tokenizer, family, "f", schema) == dict.fromkeys(properties, "x")


@pytest.mark.parametrize("family", ["hermes", "coder", "functionary", "mistral-args", "llama"])
@pytest.mark.parametrize("name", NAMES)
def test_tools_of_any_name(tokenizer: Tokenizer, family: str, name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    assert called(tokenizer, family, name, schema) == {"a": "x"}


TEXT, NULL = {"type": "string"}, {"type": "null"}
DEFS = {"$defs": {"T": {"anyOf": [TEXT, NULL]}}}


@pytest.mark.parametrize("text", ["123", "true", "1.10", "1e5", '{"a": 1}', "[1]"])
@pytest.mark.parametrize(
    "schema",
    [
        TEXT,
        {"anyOf": [TEXT, NULL]},
        {"oneOf": [{"type": "integer"}, TEXT]},
        {"type": ["string", "null"]},
        {"$ref": "#/$defs/T"},
        {"allOf": [{"$ref": "#/$defs/T"}]},
        {"allOf": [TEXT, {"minLength": 1}]},
        {**TEXT, "nullable": True},
        {"pattern": "."},
        {"minLength": 1},
    ],
)
def test_where_text_is_allowed_it_is_text(text: str, schema: dict[str, Any]) -> None:
    assert typed_value(text, schema, DEFS) == text


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("1", {"const": "1"}, "1"),
        ("1", {"const": 1}, 1),
        ("1", {"type": ["string", "null"], "enum": ["1"]}, "1"),
        ("2", {"enum": ["a", 2]}, 2),
        ('"a"', {"enum": ["a", None]}, "a"),
        ("null", {"anyOf": [TEXT, NULL]}, None),
        ("5", {"anyOf": [{"type": "integer"}, NULL]}, 5),
        ("[1]", {"type": "array"}, [1]),
        ("5", {"$ref": "#/$defs/N"}, 5),
    ],
)
def test_values_that_a_schema_lists(text: str, schema: dict[str, Any], value: Any) -> None:
    assert typed_value(text, schema, {"$defs": {"N": {"type": "integer"}}}) == value


@pytest.mark.parametrize("family", ["coder", "hermes"])
@pytest.mark.parametrize(
    "schema", [{"const": "1"}, {"anyOf": [{"const": "12"}, NULL]}, {"enum": ["1", "true"]}]
)
def test_calls_keep_to_their_schema(tokenizer: Tokenizer, family: str, schema: Any) -> None:
    root = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert called(tokenizer, family, "f", root)["a"] in ("1", "12", "true", None)


def test_a_keyword_that_cannot_be_held_names_its_tool(tokenizer: Tokenizer) -> None:
    part = {"type": "array", "uniqueItems": True}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"tags": part}}}]
    match = "the parameters of the tool 'f': properties.tags has uniqueItems"
    with pytest.raises(ContextError, match=match):
        format_of("hermes").grammar(tokenizer, tools)
    with pytest.raises(ContextError, match=match):
        call_schema([{"type": "function", "function": tools[0]}], None)


CALL = "<tool_call>\n<function=f>\n<parameter=a>\nx"
OBJECT = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}'


@pytest.mark.parametrize(
    ("family", "text", "whole"),
    [
        ("coder", f"{CALL}\n</parameter>\n</function>", True),
        ("coder", f"{CALL}\n</parameter>\n</tool_call>", True),
        ("coder", f"{CALL}\n</function>\n</tool_call>\n", True),
        ("hermes", f"{OBJECT}\n</tool_call>", True),
        ("hermes", f"{OBJECT}}}", True),
        # these are cut
        ("coder", CALL, False),
        ("coder", f"{CALL}\n</parameter>\n", False),
        ("coder", f"{CALL}\n</parameter>\n<parameter=b>\n", False),
        ("hermes", OBJECT, False),
        ("hermes", f"{OBJECT[:-5]}\n</tool_call>", False),
    ],
)
def test_calls_that_lack_marks(family: str, text: str, whole: bool) -> None:
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": TEXT}}}]
    for cut in (1, len(text)):
        parser = format_of(family).parser(tools)
        events = [e for at in range(0, len(text), cut) for e in parser.push(text[at : at + cut])]
        content, _, calls = joined([*events, *parser.finish()])
        found = [(name, json.loads(arguments)) for name, arguments in calls]
        assert (content, found) == (("", [("f", {"a": "x"})]) if whole else (text, []))


CODER = "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>"
FIRST, SECOND = ("f", {"a": "x"}), ("f", {})
LIST = f'[{OBJECT[12:]}}}, {{"name": "f", "arguments": {{}}}}]'
BROKEN = [
    # a mark that is missing in front, and perhaps behind
    ("coder", CODER, "", [FIRST]),
    ("coder", f"Well.\n{CODER}\n</tool_call>", "Well.", [FIRST]),
    ("coder", f"{CODER}\n{CODER}\n</tool_call>\nDone", "\nDone", [FIRST, FIRST]),
    ("coder", f"{CALL}\n</parameter>\n</function>\n</tool_call>\n{CODER}", "", [FIRST] * 2),
    ("coder", f"{CODER[:-12]}\n</tool_call>", "", [FIRST]),
    ("coder", f"<tool_call>\nnow {CODER}", "<tool_call>\nnow", [FIRST]),
    ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```"
     "<｜tool▁call▁end｜>", "", [SECOND]),
    # control characters within strings
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty\r\x01"}}</tool_call>', "",
     [("f", {"a": "x\n\ty\r\x01"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\\\ny"}}</tool_call>', "",
     [("f", {"a": "x\ny"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"x\\ny\\"}"}</tool_call>', "",
     [("f", {"a": "x\ny"})]),
    ("functionary", '<function=f>{"a": "x\ny"}</function>', "", [("f", {"a": "x\ny"})]),
    ("keyed", '<|tools|>[{"f": {"a": "x\ty"}}]<|/tools|>', "", [("f", {"a": "x\ty"})]),
    # several calls between a pair of marks
    ("hermes", f"<tool_call>\n{LIST}\n</tool_call> end", " end", [FIRST, SECOND]),
    ("hermes", f"<tool_call>{LIST}", "", [FIRST, SECOND]),
    ("hermes", f"<tool_call>{LIST}, and", ", and", [FIRST, SECOND]),
    ("hermes", f"<tool_call>{LIST}</tool_call>, [] <tool_call>{LIST}</tool_call>], 1",
     ", []], 1", [FIRST, SECOND] * 2),
    # these are text
    ("coder", "Write <function=f> and <parameter=a>.", None, []),
    ("coder", CODER.replace("=f>", "=g>"), None, []),
    ("coder", CODER[:-11], None, []),
    ("coder", CODER[:-30], None, []),
    ("coder", "<function=f>", None, []),
    ("hermes", "<tool_call>[1, 2]</tool_call>", None, []),
    ("hermes", "<tool_call>[]</tool_call>", None, []),
    ("hermes", '[{"name": "f", "arguments": {}}]', None, []),
    ("hermes", '{"a": "x\ny"}', None, []),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "said", "expected"), BROKEN)
def test_broken_calls(
    family: str, text: str, said: str | None, expected: list[tuple[str, dict[str, str]]]
) -> None:
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": TEXT}}}]
    random = Random(text)
    for most in (1, 2, 7, 30, len(text)):
        parser, at, events = format_of(family).parser(tools), 0, []
        while at < len(text):
            n = random.randint(1, most) if most < len(text) else most
            events += parser.push(text[at : at + n])
            at += n
        content, _, calls = joined([*events, *parser.finish()])
        assert content == (text if said is None else said)
        assert [(name, json.loads(arguments)) for name, arguments in calls] == expected


def test_a_line_end_within_the_arguments_of_a_message() -> None:
    parser = HarmonyParser(tools=True)
    text = '<|channel|>commentary to=functions.f<|message|>{"a": "x\ny"}<|call|>'
    calls = joined([*parser.push(text), *parser.finish()])[2]
    assert calls == [("f", '{"a": "x\\ny"}')]


def test_a_call_with_null_for_arguments() -> None:
    parser = format_of("hermes").parser([{"name": "f"}])
    text = '<tool_call>\n{"name": "f", "arguments": null}\n</tool_call>'
    assert joined([*parser.push(text), *parser.finish()])[2] == [("f", "{}")]


def test_two_calls_between_one_pair_of_marks() -> None:
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": TEXT}}}]
    text = f'{OBJECT}}}\n{{"name": "f", "arguments": {{}}}}\n</tool_call>{{"name": "f"}}'
    for cut in (1, 7, len(text)):
        parser = format_of("hermes").parser(tools)
        events = [e for at in range(0, len(text), cut) for e in parser.push(text[at : at + cut])]
        content, _, calls = joined([*events, *parser.finish()])
        assert (content, calls) == ('{"name": "f"}', [("f", '{"a": "x"}'), ("f", "{}")])
