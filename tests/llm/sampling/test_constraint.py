"""Constraints: what comes out satisfies them, however little the model helps."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.tiny import metadata, tokens, write_model
from weft import LLM
from weft.errors import ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import Sampler, SamplingParams, Tokenizer

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "examples" / "weft-demo.gguf"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {
            "type": "array",
            "items": {"enum": ["red", "green"]},
            "minItems": 1,
            "maxItems": 3,
        },
        "when": {"type": ["null", "boolean"]},
    },
    "required": ["name", "age", "tags", "when"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(DEMO))


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(DEMO, n_threads=1, n_ctx=256)


def random_text(tokenizer: Tokenizer, seed: int, **options: Any) -> str:
    """Text of a model that knows nothing, to its end."""
    sampler = Sampler(SamplingParams(temperature=2.0, top_k=0, seed=seed, **options), tokenizer)
    rng, ids = np.random.default_rng(seed), []
    while not sampler.done:
        id_ = sampler.sample(rng.normal(0, 1, tokenizer.n_vocab).astype(np.float32))
        if id_ in tokenizer.vocab.eog:
            break
        sampler.accept(id_)
        ids.append(id_)
        assert len(ids) < 2000
    return b"".join(tokenizer.piece(id_) for id_ in ids).decode()


def check(value: Any) -> None:
    """Checks that `value` matches SCHEMA."""
    assert value.keys() == SCHEMA["properties"].keys()
    assert isinstance(value["name"], str) and len(value["name"]) <= 8
    assert type(value["age"]) is int and 0 <= value["age"] <= 150
    assert 1 <= len(value["tags"]) <= 3 and set(value["tags"]) <= {"red", "green"}
    assert value["when"] in (None, True, False)


@pytest.mark.parametrize("seed", range(5))
def test_json_of_random_logits(tokenizer: Tokenizer, seed: int) -> None:
    schema: str | Mapping[str, Any] = SCHEMA if seed % 2 else json.dumps(SCHEMA)
    check(json.loads(random_text(tokenizer, seed, json_schema=schema)))


def test_json_of_the_model(llm: LLM) -> None:
    texts = []
    for seed in (1, 2):
        texts.append(llm.generate("Name?", json_schema=SCHEMA, seed=seed, max_tokens=300))
        check(json.loads(texts[-1]))
        assert llm.stats.finish_reason == "stop"
    again = llm.generate("Name?", json_schema=SCHEMA, seed=1, max_tokens=300)
    assert texts[0] == again


@pytest.mark.parametrize("seed", range(3))
def test_a_regular_expression(tokenizer: Tokenizer, seed: int) -> None:
    pattern = r"[a-z]{2,5}-[0-9]{3}(é|ü)+"
    assert re.fullmatch(pattern, random_text(tokenizer, seed, regex=pattern))


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= item (", " item){2}\nitem ::= "yes" | "no" | [0-9]+ "%"',
        'start: item ", " item ", " item\nitem: "yes" | "no" | /[0-9]+/ "%"',
    ],
)
def test_grammars_of_both_notations(tokenizer: Tokenizer, grammar: str) -> None:
    item = "(yes|no|[0-9]+%)"
    assert re.fullmatch(f"{item}, {item}, {item}", random_text(tokenizer, 1, grammar=grammar))


def test_cuts_see_allowed_tokens_only(tokenizer: Tokenizer) -> None:
    logits = np.zeros(tokenizer.n_vocab, np.float32)
    logits[tokenizer.encode("z", add_special=False)] = 50
    sampler = Sampler(SamplingParams(top_k=1, regex="[ab]"), tokenizer)
    assert tokenizer.piece(sampler.sample(logits)) in (b"a", b"b")


def test_it_ends_where_end_tokens_are_ignored(llm: LLM) -> None:
    text = llm.generate("x", regex="[ab]{3}", ignore_eos=True, max_tokens=50)
    assert re.fullmatch("[ab]{3}", text)
    assert llm.stats.finish_reason == "stop"


def test_a_vocabulary_without_an_end_token(tmp_path: Path) -> None:
    names, *_ = tokens()
    names[2] = "<x>"
    keys = {"tokenizer.ggml.tokens": names, "tokenizer.ggml.eos_token_id": 0xFFFFFFFF}
    tokenizer = Tokenizer.from_gguf(open_gguf(write_model(tmp_path / "m.gguf", metadata(**keys))))
    assert not tokenizer.vocab.eog
    assert re.fullmatch("(ab|c)h", random_text(tokenizer, 1, regex="(ab|c)h"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "[ab"}, "regex: .*unclosed character class"),
        ({"regex": r"[^\x00-\x{10FFFF}]"}, "regex: no token of this vocabulary can go on"),
        ({"grammar": "root ::= nothing"}, "grammar: line 1: there is no rule 'nothing'"),
        ({"grammar": "start: ((("}, "grammar: "),
        ({"json_schema": "{"}, "json_schema: .*line 1 column 2"),
        ({"json_schema": {"type": "wurst"}}, "json_schema: it has the type 'wurst'"),
        ({"json_schema": "[1]"}, r"json_schema: a schema is an object, not \[1\]"),
        ({"json_schema": {"not": {}}}, "json_schema: "),
        ({"json_schema": {"type": "string", "minLength": 5, "maxLength": 3}}, "Unsatisfiable"),
        ({"json_schema": {"x": {1}}}, "json_schema: .*not JSON serializable"),
    ],
)
def test_bad_constraints(tokenizer: Tokenizer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ContextError, match=f"(?s){message}"):
        Sampler(SamplingParams(**options), tokenizer)


def test_a_vocabulary_that_cannot_write_it(tmp_path: Path) -> None:
    _, _, types = tokens()
    types[3:259] = 3  # no bytes any more
    path = write_model(tmp_path / "m.gguf", metadata(**{"tokenizer.ggml.token_type": types}))
    small = Tokenizer.from_gguf(open_gguf(path))
    sampler = Sampler(SamplingParams(regex="az"), small)
    logits = np.zeros(small.n_vocab, np.float32)
    with pytest.raises(ContextError, match="regex: no token of this vocabulary"):
        for _ in "az":
            sampler.accept(sampler.sample(logits))


@pytest.mark.parametrize("regex", ["((a{1000}){1000}){1000}", "a{100000000}"])
def test_a_constraint_that_is_too_large(tokenizer: Tokenizer, regex: str) -> None:
    with pytest.raises(ContextError, match=r"regex: it is too large to follow .* smaller"):
        Sampler(SamplingParams(regex=regex), tokenizer)


def test_a_token_that_does_not_fit(tokenizer: Tokenizer) -> None:
    sampler = Sampler(SamplingParams(regex="[ab]+"), tokenizer)
    (z,) = tokenizer.encode("z", add_special=False)[-1:]
    with pytest.raises(ContextError, match=f"regex: token {z} does not satisfy it here"):
        sampler.accept(z)
    with pytest.raises(ContextError, match="regex: token -1"):
        Sampler(SamplingParams(regex="[ab]+"), tokenizer).accept(-1)


def test_without_the_library(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ContextError, match=r"pip install 'weft\[grammar\]'"):
        Sampler(SamplingParams(regex="a"), tokenizer)
