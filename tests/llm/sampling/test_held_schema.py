"""Schemas as programs write them: annotations, objects that say nothing of other properties, and
keywords that no grammar follows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.server import DEMO
from weft.bounds import SCHEMA_ADDRESS
from weft.errors import ContextError
from weft.frontends.gguf import GGUFFile
from weft.llm import SamplingParams, Tokenizer
from weft.llm.sampling.constraint import Constraint
from weft.llm.sampling.schema import held_schema


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(DEMO))


def takes(tokenizer: Tokenizer, schema: dict[str, Any], value: Any) -> bool:
    """True if a value of JSON is a whole answer of a schema."""
    constraint = Constraint(SamplingParams(json_schema=schema), tokenizer)
    try:
        text = json.dumps(value, ensure_ascii=False)
        for id_ in tokenizer.encode(text, add_special=False, continues=True):
            constraint.accept(id_)
    except ContextError:
        return False
    return constraint.done or bool(set(constraint.allowed()) & tokenizer.vocab.eog)


A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (A, {"a": 1}, {"a": 1, "c": 2}),
        ({"type": "object", "properties": {}}, {}, {"c": 2}),
        ({"properties": {"o": A}, "required": ["o"]}, {"o": {"a": 1}}, {"o": {"c": 1}}),
        ({"type": "array", "items": A}, [{"a": 1}], [{"c": 1}]),
        ({"anyOf": [A, B]}, {"b": 1}, {"a": 1, "b": 2}),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"a": 1}, {"c": 1}),
        ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}}, {"a": 1}, {"c": 1}),
        ({**A, "unevaluatedProperties": False}, {"a": 1}, {"c": 1}),
        ({**A, "anyOf": [{"required": ["a"]}]}, {"a": 1}, {"a": 1, "c": 1}),
        ({"type": "object", "additionalProperties": A}, {"x": {"a": 1}}, {"x": {"c": 1}}),
    ],
)
def test_an_object_that_lists_its_properties_is_closed(
    tokenizer: Tokenizer, schema: dict[str, Any], good: Any, bad: Any
) -> None:
    assert takes(tokenizer, schema, good)
    assert not takes(tokenizer, schema, bad)


@pytest.mark.parametrize(
    ("schema", "good"),
    [
        ({"type": "object"}, {"c": 1}),
        ({**A, "additionalProperties": True}, {"a": 1, "c": 1}),
        ({**A, "additionalProperties": {"type": "null"}}, {"a": 1, "c": None}),
        ({**A, "patternProperties": {"^c": {"type": "null"}}}, {"a": 1, "c": None}),
        ({**A, "required": ["a", "c"]}, {"a": 1, "c": 1}),
        ({"allOf": [A, B]}, {"a": 1, "b": 2}),
        ({**A, "allOf": [B]}, {"a": 1, "b": 2}),
        ({"$ref": "#/$defs/B", **A, "$defs": {"B": B}}, {"b": 2, "a": 1}),
        (
            {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}},
            {"a": 1, "b": 2},
        ),
    ],
)
def test_an_object_that_is_opened(tokenizer: Tokenizer, schema: dict[str, Any], good: Any) -> None:
    assert takes(tokenizer, schema, good)


TEXT: dict[str, Any] = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        *(({**TEXT, "format": form}, "x", 1) for form in ("password", "uri-reference", "")),
        ({"type": "integer", "format": "int32"}, 5, "x"),
        ({**TEXT, "$schema": "https://example.org/own", "$id": "https://example.org/a"}, "x", 1),
        ({**TEXT, "title": "t", "default": 1, "examples": [2], "x-own": {"a": 1}}, "x", 1),
        ({"type": "array", "items": TEXT, "uniqueItems": False}, ["x"], [1]),
        ({**TEXT, "if": {"const": "a"}}, "x", 1),
        ({**TEXT, "nullable": True}, None, 1),
        ({**TEXT, "enum": ["a"], "nullable": True}, None, "b"),
        ({"type": "object", "propertyNames": TEXT}, {"x": 1}, [1]),
        ({"type": "object", "propertyNames": {"pattern": "^[ab]$"}}, {"a": 1}, {"c": 1}),
        (
            {"propertyNames": {"enum": ["a"]}, "additionalProperties": TEXT, "type": "object"},
            {"a": "x"},
            {"b": "x"},
        ),
        ({**A, "minProperties": 0, "maxProperties": 5}, {"a": 1}, {"c": 1}),
        ({**TEXT, "pattern": "^{[a-z]*}$"}, "{ab}", "ab"),
        ({**TEXT, "pattern": "^[[a]{2}$"}, "[a", "[b"),
        ({**TEXT, "pattern": "^[a&&b]$"}, "&", "c"),
        ({**TEXT, "pattern": r"^\{\[a{1,2}$"}, "{[aa", "{[aaa"),
        ({**TEXT, "pattern": r"^\p{Lu}[\p{L}\d]*$"}, "Aé1", "é"),
        ({**TEXT, "pattern": r"^\u{1F600}\uD83D\uDE00\x41$"}, "😀😀A", "A"),
        ({**TEXT, "pattern": r"^\<\'\!\/[\_\@]$"}, "<'!/@", "a"),
        ({**TEXT, "pattern": r"^\cJ[\b]\0$"}, "\n\b\0", "J"),
        ({**TEXT, "pattern": r"^[a-\d][^]$"}, "-x", "bx"),
        ({**TEXT, "pattern": r"^[(?=a)]$"}, "=", "b"),
        ({"$ref": "https://e.org/a#/$defs/x", "$id": "https://e.org/a", "$defs": {"x": TEXT}},
         "x", 1),
        ({"$ref": "#own", "$defs": {"x": {**TEXT, "$anchor": "own"}}}, "x", 1),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": A}}}, {"a": 1},
         {"c": 1}),
        *(({"$ref": f"#/$defs/{ref}", "$defs": {name: TEXT}}, "x", 1) for ref, name in (
            ("a~1b", "a/b"), ("a~0b", "a~b"), ("a%25b", "a%b"), ("a b", "a b"), ("L[x]", "L[x]"),
        )),
        ({"$id": "https://e.org/r", "$ref": "x", "$defs": {"x": {"$id": "x", **TEXT}}}, "x", 1),
        ({"$ref": "https://e.org/x", "$defs": {"x": {"$id": "https://e.org/x", **TEXT}}}, "x", 1),
        ({"$ref": "urn:x#/$defs/y", "$defs": {"x": {"$id": "urn:x", "$defs": {"y": TEXT}}}},
         "x", 1),
        ({"$ref": "#x", "definitions": {"x": {"$id": "#x", **TEXT}}}, "x", 1),
        ({"anyOf": [TEXT], "nullable": True}, None, 1),
        ({"allOf": [TEXT], "nullable": True}, None, 1),
        ({"enum": ["a"], "nullable": True}, None, "b"),
        ({"const": "a", "nullable": True}, None, "b"),
        ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": TEXT}}, None, 1),
        ({**TEXT, "maxLength": 2.0, "minLength": None, "enum": None}, "xy", "xyz"),
        ({"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}, 5, "x"),
        ({"type": "number", "minimum": -1e308, "maximum": 1e308}, 5.5, "x"),
        ({"type": "object", "properties": {"$ref": TEXT, "pattern": TEXT}}, {"$ref": "x"},
         {"c": 1}),
    ],
)  # fmt: skip
def test_annotations_and_other_ways_to_say_it(
    tokenizer: Tokenizer, schema: dict[str, Any], good: Any, bad: Any
) -> None:
    assert takes(tokenizer, schema, good)
    assert not takes(tokenizer, schema, bad)


@pytest.mark.parametrize(
    ("part", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
        ({"contains": {"type": "string"}}, "contains"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"dependencies": {"a": ["b"]}}, "dependencies"),
        ({**A, "allOf": [B], "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({**A, "minProperties": 1}, "minProperties"),
        ({"type": "string", "pattern": "(?!a)"}, "pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
        ({"type": "string", "pattern": r"\bx"}, "pattern"),
        ({"$ref": "https://example.org/other"}, r"\$ref"),
        ({"$ref": "#/$defs/none"}, r"\$ref to '#/\$defs/none', which is not in the schema"),
        ({"enum": []}, "an empty enum"),
        ({"type": "int"}, "the type 'int'"),
        ({"properties": {}, "required": [[]]}, "a list required"),
        ({"format": [], "not": {}}, "not"),
        ({"type": "integer", "minimum": 1e30}, "minimum of 1e[+]30"),
    ],
)
def test_what_cannot_be_held_is_named(
    tokenizer: Tokenizer, part: dict[str, Any], keyword: str
) -> None:
    schema = {"type": "object", "properties": {"tags": part}}
    with pytest.raises(ContextError, match=f"json_schema: properties.tags has {keyword}"):
        takes(tokenizer, schema, {})


def test_alternatives_that_overlap(tokenizer: Tokenizer) -> None:
    with pytest.raises(ContextError, match="oneOf has alternatives that overlap"):
        takes(tokenizer, {"oneOf": [TEXT, {**TEXT, "minLength": 3}]}, "x")
    assert takes(tokenizer, {"oneOf": [TEXT, {"type": "integer"}]}, "x")


@pytest.mark.parametrize("name", ["$id", "id", "$anchor", "$dynamicAnchor"])
def test_long_addresses_are_refused(name: str) -> None:
    held_schema({name: "a" * SCHEMA_ADDRESS})
    with pytest.raises(ContextError, match="an address or anchor of 1025 characters"):
        held_schema({name: "a" * (SCHEMA_ADDRESS + 1)})


def test_addresses_that_grow_are_refused() -> None:
    schema: dict[str, Any] = {"$id": "last"}
    for _ in range(40):
        schema = {"$id": "a" * 40 + "/", "items": schema}
    with pytest.raises(ContextError, match="an address or anchor of 1045 characters"):
        held_schema({**schema, "$id": "https://example.org/"})


@pytest.mark.parametrize("deep", [False, True])
def test_many_parts_below_a_long_name_are_refused(deep: bool) -> None:
    parts: dict[str, Any] = {"a" * 400_000: {str(i): {} for i in range(20_000)}}
    schema = {"$ref": "#/x/b", "x": {"b": {}, "c": parts}} if deep else {"x": parts}
    with pytest.raises(ContextError, match="too many parts with long names"):
        held_schema(schema)


def test_escapes_of_twelve_characters() -> None:
    def pattern(text: str) -> str:
        return str(held_schema({"pattern": text})["pattern"])

    assert pattern(r"\u{0000000a}") == r"\u{0000000a}"
    assert pattern(r"\uD83D\uDE00") == r"\u{1f600}"
    assert pattern(r"\uD8zz\uDEzz") == r"\uD8zz\uDEzz"
    assert pattern(r"[^-&&\d-x]") == r"[^-\&&\d\-x]"


def test_what_cannot_be_held_beside_half_a_character(tokenizer: Tokenizer) -> None:
    """The name `\ud800` cannot be encoded, which does not make the refusals stop."""
    schema = {"properties": {"\ud800": {}, "a": {"not": {"type": "string"}}}}
    with pytest.raises(ContextError, match=r"json_schema: properties\.a has not"):
        takes(tokenizer, schema, {})


@pytest.mark.parametrize(
    "pattern", ["[" + "a" * 1_000_000 + "]", "[" + "&-" * 300_000, "[^]" * 300_000]
)
def test_long_classes_are_read_once(pattern: str) -> None:
    """Reading the rest of a class for each of its characters would take minutes."""
    assert held_schema({"pattern": pattern})["pattern"]
