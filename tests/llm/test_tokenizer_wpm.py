"""WordPiece from GGUF metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.vocabularies import make
from tests.profiles import examples
from tests.vectors import vocab
from tests.vectors.result import Options
from weft.errors import TokenizerError
from weft.frontends.gguf import open_gguf
from weft.llm.tokenizers.tokenizer import Tokenizer

WORDS = ["hello", "he", "un", "h", "cafe", "café", "\u1112", ",", "$", "中", "½", "a", "é", "Ünit"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *("\u2581" + w for w in WORDS), "llo", "aff", "able"]
KEYS = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}
SPECIAL = dict.fromkeys(range(4), 3)


def names(tokenizer: Tokenizer, text: str, parse_special: bool = False) -> list[str]:
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    return [TOKENS[i].replace("\u2581", "_") for i in ids]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make(tmp_path_factory.mktemp("wpm"), "bert", TOKENS, SPECIAL, **KEYS)


def test_the_longest_token_first(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "hello hellollo unaffable") == [
        *("_hello", "_hello", "llo", "_un", "aff", "able")
    ]


def test_what_no_tokens_make_is_unknown(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "hex he") == ["[UNK]", "_he"]
    assert names(tokenizer, "") == names(tokenizer, " \t\u3000") == []


def test_cls_and_sep(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("he") == [2, TOKENS.index("\u2581he"), 3]
    assert tokenizer.encode("") == [2, 3]
    assert names(tokenizer, "[CLS]he", parse_special=True) == ["[CLS]", "_he"]
    assert names(tokenizer, "[CLS]he") == ["[UNK]", "[UNK]", "[UNK]", "_he"]


def test_signs_are_words(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "he,he$中中") == ["_he", "_,", "_he", "_$", "_中", "_中"]
    assert names(tokenizer, "½\xa0he") == ["_½", "_he"]
    # control characters vanish, and end no word; an unassigned one is a letter like any other
    assert names(tokenizer, "h\x01e\u200d h\ufffde\0") == ["_he", "_he"]
    assert names(tokenizer, "he\u0378") == ["[UNK]"]


def test_case_and_accents(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert names(tokenizer, "HELLO Café cafe\u0301") == ["_hello", "_cafe", "_cafe"]
    # only the first letter of a syllable is left, as in the reference
    assert names(tokenizer, "\ud55c") == ["_\u1112"]
    cased = make(tmp_path, "bert", TOKENS, SPECIAL, **KEYS, **{"normalizer.lowercase": False})
    assert names(cased, "Ünit café Café") == ["_Ünit", "_café", "[UNK]"]
    accents = make(tmp_path, "bert", TOKENS, SPECIAL, **KEYS, **{"normalizer.strip_accents": False})
    assert names(accents, "CAFÉ É") == ["_café", "_é"]
    unaccented = {"normalizer.lowercase": False, "normalizer.strip_accents": True}
    plain = make(tmp_path, "bert", TOKENS, SPECIAL, **KEYS, **unaccented)
    assert names(plain, "café") == ["_cafe"]


def test_decoding(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello, unaffable $")
    assert tokenizer.decode(ids) == " hello , unaffable $"
    assert tokenizer.decode(ids, clean_spaces=True) == " hello, unaffable $"
    assert tokenizer.decode(ids, special=True) == "[CLS] hello , unaffable $[SEP]"


@pytest.mark.parametrize("missing", KEYS)
def test_a_vocabulary_needs_its_special_tokens(tmp_path: Path, missing: str) -> None:
    with pytest.raises(TokenizerError, match=missing):
        make(tmp_path, "bert", TOKENS, SPECIAL, **(KEYS | {missing: None}))
    with pytest.raises(TokenizerError, match="token of length 1025"):
        make(tmp_path, "bert", [*TOKENS, "a" * 1025], SPECIAL, **KEYS)


@settings(max_examples=examples(3.0))
@given(text=st.text(st.sampled_from("helo unafb,$中½É \n") | st.characters(codec="utf-8")))
def test_any_text_is_encoded(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert (ids[0], ids[-1]) == (2, 3)
    # words do not touch each other
    assert tokenizer.encode(text + " " + text) == ids[:-1] + ids[1:]
    tokenizer.decode(ids)


def test_golden_vocabulary(vectors: Path) -> None:
    results = list(vocab.run(vectors / "models/vocab", Options(filter="bert-bge/*")))
    assert len(results) > 500
    assert [r for r in results if r.status != "passed"] == []


@pytest.mark.parametrize("name", ["bert", "nomic_bert"])
def test_golden_tokens_of_models(vectors: Path, name: str) -> None:
    folder = vectors / "models" / "archs"
    entry = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))[name]
    tokenizer = Tokenizer.from_gguf(open_gguf(folder / entry["gguf"]))
    texts = {s["text"]: s["tokens"] for s in entry["sequences"] if s["text"] is not None}
    assert len(texts) >= 3
    assert {text: tokenizer.encode(text) for text in texts} == texts
