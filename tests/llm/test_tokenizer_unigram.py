"""SentencePiece unigram from GGUF metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.chars_map import chars_map
from tests.llm.vocabularies import make
from tests.profiles import examples
from weft.errors import TokenizerError
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.unigram import CharsMap

TOKENS = [
    "<pad>",
    "</s>",
    "<unk>",
    "\u2581",
    "a",
    "b",
    "ab",
    "\u2581ab",
    "ba",
    "bb",
    "\u2581b",
    "#",
]
SCORES = [0, 0, 0, -2.0, -2.5, -3.0, -3.5, -4.0, -5.75, -7.0, -4.0, -1.0]
TYPES = {0: 3, 1: 3, 2: 2, 11: 4}
UNKNOWN = -17.0
"""Ten below the least likely token."""
RULES = {
    "Ａ": "a",
    "ﬀ": "bb",
    "e\u0301": "é",
    "\t": " ",
    "\u200b": "",
    "ａ\u0301b": "ab",
    "\x01": "",
}


def unigram(path: Path, **keys: object) -> Tokenizer:
    return make(path, "t5", TOKENS, TYPES, SCORES, **keys)


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, add_special=False)
    return [TOKENS[i].replace("\u2581", "_") for i in ids]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return unigram(tmp_path_factory.mktemp("t5"), precompiled_charsmap=chars_map(RULES))


def test_the_likeliest_tokens(tokenizer: Tokenizer) -> None:
    # a+b is -5.5, ab -3.5; ab+bb (-10.5) loses to ab+b+b (-9.5), ba (-5.75) to b+a (-5.5)
    assert names(tokenizer, "abbb") == ["ab", "b", "b"]
    assert names(tokenizer, "ba") == ["b", "a"]
    assert names(tokenizer, "abab") == ["ab", "ab"]
    assert tokenizer.encode("ab") == [6, 1]  # </s> by default


def test_runs_of_unknown_characters_are_one_token(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "axyb z") == ["a", "<unk>", "b", "_", "<unk>"]


def test_an_unknown_character_is_ten_below_the_least_likely_token(tmp_path: Path) -> None:
    # tokens of the type unused do not count as the least likely, and text may have them
    more = {"cd": (-30.0, 5), "ca": (UNKNOWN - 2.4, 5), "cb": (UNKNOWN - 3.1, 5)}
    types = TYPES | {len(TOKENS) + i: kind for i, (_, kind) in enumerate(more.values())}
    scores = [*SCORES, *(score for score, _ in more.values())]
    tokens = [*TOKENS, *more]
    tokenizer = make(tmp_path, "t5", tokens, types, scores)

    def of(text: str) -> list[str]:
        return [tokens[i] for i in tokenizer.encode(text, add_special=False)]

    assert of("cd") == ["cd"]  # two unknown characters would be less likely
    assert of("ca") == ["ca"] and of("cb") == ["<unk>", "b"]


def test_user_defined_tokens(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "a#b") == ["a", "#", "b"]


def test_replaced_characters(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "Ａb") == ["ab"]
    assert names(tokenizer, "aﬀ") == ["ab", "b"]
    assert names(tokenizer, "a\u200bb\x01") == ["ab"]
    assert names(tokenizer, "b\tb") == ["b", "_b"]
    # the longest key counts, and a key that only begins changes nothing
    assert names(tokenizer, "ａ\u0301b") == ["ab"]
    assert names(tokenizer, "ａ\u0301a") == ["<unk>", "a"]


def test_spaces(tmp_path: Path) -> None:
    text = "  ab  b "
    for remove, prefix, expected in (
        (False, False, ["_", "_ab", "_", "_b", "_"]),
        (False, True, ["_", "_", "_ab", "_", "_b", "_"]),
        (True, True, ["_ab", "_b"]),
        (True, False, ["_ab", "_b"]),
    ):
        tokenizer = unigram(tmp_path, remove_extra_whitespaces=remove, add_space_prefix=prefix)
        assert names(tokenizer, text) == expected
        assert names(tokenizer, "") == []
    assert tokenizer.decode(tokenizer.encode(text)) == " ab b"


def segmentations(text: str) -> Iterator[list[int]]:
    """All ways to make `text` of tokens, with unknown characters where no token has one."""
    if not text:
        yield []
    for end in range(1, len(text) + 1):
        ids = [i for i, t in enumerate(TOKENS) if t == text[:end] and TYPES.get(i, 1) in (1, 4)]
        for id_ in ids or ([2] if end == 1 else []):
            yield from ([id_, *rest] for rest in segmentations(text[end:]))


@settings(max_examples=examples(2.0))
@given(text=st.text("ab #x", max_size=9), apart=st.booleans())
def test_equals_trying_everything(tokenizer: Tokenizer, text: str, apart: bool) -> None:
    model = tokenizer._model
    score = [UNKNOWN if i == 2 else 0.0 if i == 11 else SCORES[i] for i in range(len(TOKENS))]
    best = max(sum(score[i] for i in ids) for ids in segmentations(text.replace(" ", "\u2581")))
    as_is = model._words_apart  # type: ignore[attr-defined]
    assert as_is
    try:
        model._words_apart = apart  # type: ignore[attr-defined]
        ids = model.encode(text)
    finally:
        model._words_apart = as_is  # type: ignore[attr-defined]
    runs = len(text.split("x")) - 1 - ids.count(2)  # unknown ones that were merged into others
    assert sum(score[i] for i in ids) + runs * UNKNOWN == pytest.approx(best)
    assert model.encode(text) == ids


@settings(max_examples=examples(4.0))
@given(
    text=st.text(st.sampled_from("aeＡﬀ\u0301\t\x01\u200bａb") | st.characters(codec="utf-8")),
    kept=st.sampled_from([(), ("a", "ae"), ("ﬀ",)]),
)
def test_chars_map_equals_its_definition(text: str, kept: tuple[str, ...]) -> None:
    expected, at = "", 0
    while at < len(text):
        rest = text[at:]
        for key in sorted(kept, key=len, reverse=True):
            if rest.startswith(key):
                expected, at = expected + key, at + len(key)
                break
        else:
            keys = [key for key in RULES if rest.startswith(key)]
            longest = max(keys, key=len, default="")
            expected += RULES[longest] if longest else rest[0]
            at += len(longest) or 1
    assert "".join(CharsMap(chars_map(RULES), kept).apply(text)) == expected


def test_a_damaged_chars_map_is_refused(tmp_path: Path) -> None:
    whole = chars_map(RULES)
    for broken in (whole[:3], whole[:100], whole[1:], np.zeros(4, np.uint8)):
        with pytest.raises(TokenizerError, match="precompiled_charsmap"):
            unigram(tmp_path, precompiled_charsmap=broken)
    # replacements cut short, and a trie that leads out of itself
    for damaged in (whole[:-4], whole | np.where(np.arange(len(whole)) % 7, 0, 128).astype("u1")):
        try:
            unigram(tmp_path, precompiled_charsmap=damaged).encode("".join(RULES))
        except TokenizerError as error:
            assert "precompiled_charsmap" in str(error)


def test_a_vocabulary_needs_an_unknown_token_and_scores(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="unknown_token_id"):
        unigram(tmp_path, unknown_token_id=-1)
    with pytest.raises(TokenizerError, match="not finite"):
        make(tmp_path, "t5", TOKENS, TYPES, [*SCORES[:-1], float("nan")])
    with pytest.raises(TokenizerError, match="token of length 1025"):
        make(tmp_path, "t5", [*TOKENS[:-1], "a" * 1025], TYPES, SCORES)
