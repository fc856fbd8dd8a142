"""Byte-level byte-pair encoding from GGUF metadata."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.vocabularies import BYTES, byte_level, make, spell
from tests.profiles import examples
from tests.vectors import vocab
from tests.vectors.result import Options
from weft.errors import TokenizerError
from weft.llm.tokenizers.bpe import merge
from weft.llm.tokenizers.tokenizer import Tokenizer

SPACE = spell(" ")
MERGES = ["h e", "l l", "he ll", f"{SPACE} w", "o r", f"{SPACE}w or", "l d", "hell o"]
SMILE = "🙂".encode()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_level(
        tmp_path_factory.mktemp("bpe"),
        MERGES,
        ["<|end|>", "<tool>"],
        pre="gpt-2",
        types={256 + len(MERGES): 3, 257 + len(MERGES): 4},
        eos_token_id=256 + len(MERGES),
    )


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocab.tokens[i].decode() for i in ids]


def test_merges_by_rank(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello world")
    assert names(tokenizer, ids) == ["hello", f"{SPACE}wor", "ld"]
    assert tokenizer.decode(ids) == "hello world"
    assert tokenizer.encode("hello world") == ids  # now from the words seen before
    # "l l" comes before "l d": the lower rank wins although it is not the first from the left
    assert names(tokenizer, tokenizer.encode("lld")) == ["ll", "d"]


def test_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("é🙂") == [*"é".encode(), *SMILE]
    assert tokenizer.encode("\0\x7f\xad") == [0, 0x7F, *"\xad".encode()]
    assert [tokenizer.piece(i) for i in range(256)] == [bytes((i,)) for i in range(256)]
    assert tokenizer.piece(256 + 5) == b" wor"


def test_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("h<|end|><tool>")
    assert names(tokenizer, ids)[-1] == "<tool>"
    assert tokenizer.decode(ids) == "h<|end|><tool>"
    ids = tokenizer.encode("h<|end|><tool>", parse_special=True)
    assert names(tokenizer, ids) == ["h", "<|end|>", "<tool>"]
    assert tokenizer.decode(ids) == "h<tool>"
    assert tokenizer.decode(ids, special=True) == "h<|end|><tool>"


def test_half_a_character_is_held_back(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    assert [stream.push(b) for b in SMILE] == ["", "", "", "🙂"]
    assert stream.push(SMILE[0]) + stream.flush() == "\ufffd"


def test_clean_spaces(tokenizer: Tokenizer) -> None:
    text = "a . b , it 's we 've don 't x ' y ' z ?"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    cleaned = "a. b, it's we've don 't x'y'z?"
    assert tokenizer.decode(ids, clean_spaces=True) == cleaned


def test_whole_words_without_merges(tmp_path: Path) -> None:
    for pre, expected in (("llama-bpe", ["lord"]), ("gpt-2", ["l", "or", "d"])):
        tokenizer = byte_level(tmp_path, MERGES, ["lord"], pre=pre)
        assert names(tokenizer, tokenizer.encode("lord", add_special=False)) == expected


@pytest.mark.parametrize(
    ("pre", "stored", "added"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("gpt-2", None, False),
        ("gpt-2", True, True),
        (None, None, False),
    ],
)
def test_bos(tmp_path: Path, pre: str | None, stored: bool | None, added: bool) -> None:
    tokenizer = byte_level(
        tmp_path, [], ["<s>"], types={256: 3}, pre=pre, bos_token_id=256, add_bos_token=stored
    )
    assert tokenizer.encode("a") == ([256] if added else []) + [ord("a")]


def test_a_bos_that_the_file_lacks_is_not_added(tmp_path: Path) -> None:
    assert byte_level(tmp_path, [], pre="llama-bpe").encode("a") == [ord("a")]


def test_text_tokens_instead_of_bytes(tmp_path: Path) -> None:
    """Gemma 4: spaces are U+2581, unknown characters become byte tokens, lines are not cut."""
    text = ["\u2581", "a", "b", "\u2581a", "a\u2581a", "\n", "\n\n\n"]
    tokens = [f"<0x{b:02X}>" for b in range(256)] + text + ["<bos>"]
    merges = ["\u2581 a", "a \u2581a"]
    types = {b: 6 for b in range(256)} | {263: 3}
    tokenizer = make(tmp_path, "gemma4", tokens, types, merges=merges, bos_token_id=263)
    ids = tokenizer.encode("a a é\n\n\n\n\nb")
    assert names(tokenizer, ids[:2]) == ["<bos>", "a\u2581a"]
    assert ids[2:5] == [256, *"é".encode()]
    assert names(tokenizer, ids[5:]) == ["\n"] * 5 + ["b"]  # no merge makes runs of new lines
    assert names(tokenizer, tokenizer.encode("\n\n\nb"))[1:] == ["\n\n\n", "b"]
    assert tokenizer.decode(ids) == "a a é\n\n\n\n\nb"


def test_special_tokens_that_take_white_space(tmp_path: Path) -> None:
    more, types = ["<|user|>", "<s>", "[MASK]"], {256: 3, 257: 3, 258: 3}
    for name, expected in (
        ("Phi-3 mini", ["<|user|>", "a", SPACE, "<s>", SPACE, "b", SPACE, "[MASK]", "c"]),
        (
            "modern-bert",
            ["<|user|>", SPACE, "a", SPACE, "<s>", SPACE, "b", "[MASK]", SPACE, "c"],
        ),
    ):
        tokenizer = byte_level(tmp_path, [], more, types=types, general={"general.name": name})
        ids = tokenizer.encode("<|user|> a <s> b [MASK] c", parse_special=True)
        assert names(tokenizer, ids) == expected


def test_a_vocabulary_without_merges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no key tokenizer\.ggml\.merges"):
        make(tmp_path, "gpt2", BYTES)


def test_an_unknown_pretokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"unknown pre-tokenizer 'new'.*llama-bpe"):
        byte_level(tmp_path, MERGES, pre="new")


def test_a_merge_of_one_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="the merge b'nospace' is not two tokens"):
        byte_level(tmp_path, ["a b", "nospace"]).encode("a")


def test_merges_into_nothing(tmp_path: Path) -> None:
    """A merge may lead to what is no token; its bytes stand in then."""
    tokens = [*BYTES, "ab"]
    tokenizer = make(tmp_path, "gpt2", tokens, merges=["a b", "ab c", f"{SPACE} x", "q unheard"])
    assert tokenizer.encode("ab") == [256]
    assert tokenizer.encode("abc") == [*b"abc"]
    assert tokenizer.encode(" x") == [*b" x"]


def test_the_first_of_equal_merges_counts(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, "gpt2", [*BYTES, "ab", "bc"], merges=["a b", "b c", "a b"])
    assert tokenizer.encode("abc") == [256, ord("c")]


def test_poor_vocabularies(tmp_path: Path) -> None:
    # without the byte 0x17, as Falcon's; a nameless token; a token twice
    tokens = [*BYTES[:0x17], *BYTES[0x18:], "", "a"]
    tokenizer = make(tmp_path, "gpt2", tokens, merges=["a b"])
    assert tokenizer.decode(tokenizer.encode("a\x17b")) == "ab"
    assert tokenizer.piece(255) == b"[EMPTY_255]"
    assert tokenizer.encode("a") == [tokens.index("a")]
    # a token in no alphabet of bytes, and one in no encoding
    tokenizer = make(tmp_path, "gpt2", [*BYTES, "中", b"\xff"], merges=["a b"])
    assert tokenizer.piece(256) == "中".encode()
    assert tokenizer.piece(257) == b"\xff"
    assert tokenizer.decode([257]) == "\ufffd"


@settings(max_examples=examples(4.0))
@given(text=st.text(st.sampled_from("helo wrd<tl>|n \n\t1é🙂") | st.characters(codec="utf-8")))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    for parse_special in (False, True):
        ids = tokenizer.encode(text, parse_special=parse_special)
        assert tokenizer.decode(ids, special=True) == text
        stream = tokenizer.stream(special=True)
        pieces = [stream.push(i) for i in ids]
        assert "".join(pieces) == text
        assert stream.flush() == ""


@settings(max_examples=examples(4.0))
@given(
    symbols=st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=24),
    pairs=st.lists(
        st.tuples(*[st.text("abc", min_size=1, max_size=4).map(str.encode)] * 2), max_size=12
    ),
)
def test_merge_equals_its_definition(
    symbols: list[bytes], pairs: list[tuple[bytes, bytes]]
) -> None:
    ranks = {a + b" " + b: rank for rank, (a, b) in reversed(list(enumerate(pairs)))}
    slow = list(symbols)
    while True:
        rank, at = (
            min((ranks.get(slow[i] + b" " + slow[i + 1], 99), i) for i in range(len(slow) - 1))
            if len(slow) > 1
            else (99, 0)
        )
        if rank == 99:
            break
        slow[at : at + 2] = [slow[at] + slow[at + 1]]
    assert merge(list(symbols), ranks) == slow


def test_a_long_word(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, ["a a", "aa aa", "aaaa aaaa"], pre="gpt-2")
    assert tokenizer.encode("a" * 100_003) == [258] * 12_500 + [256, ord("a")]


@pytest.mark.parametrize("name", ["llama-bpe", "gpt-2", "qwen2"])
def test_golden_vocabularies(vectors: Path, name: str) -> None:
    results = list(vocab.run(vectors / "models/vocab", Options(filter=f"{name}/*")))
    assert len(results) > 500
    assert [r for r in results if r.status != "passed"] == []
