"""SentencePiece tokens from GGUF metadata, streaming, and stop strings."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.tiny import metadata, tokens, write_model
from tests.profiles import examples
from tests.vectors import models, vocab
from tests.vectors.result import Options
from weft.errors import TokenizerError
from weft.frontends.gguf import open_gguf
from weft.llm.engine.growth import StopStrings
from weft.llm.tokenizers.spm import SpmModel, merge
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.vocab import Vocab

NAMES = tokens()[0]


def make(tmp_path: Path, **changes: object) -> Tokenizer:
    path = write_model(tmp_path / "v.gguf", metadata(**changes), {})
    return Tokenizer.from_gguf(open_gguf(path))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make(tmp_path_factory.mktemp("vocab"))


def names(ids: list[int]) -> list[str]:
    return [NAMES[i] for i in ids]


def lines_of(work: Callable[[], object]) -> int:
    """Lines of Python that `work` takes."""
    n = 0

    def count(frame: FrameType, event: str, arg: object) -> object:
        nonlocal n
        n += event == "line"
        return count

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # what it calls when something is gone would be counted
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return n


def test_merges_by_score(tokenizer: Tokenizer) -> None:
    # "ab" scores above "▁a" and takes the a from it
    assert names(tokenizer.encode("the abc a")) == ["<s>", "▁the", "▁", "abc", "▁a"]


def test_runs_of_spaces_stay(tokenizer: Tokenizer) -> None:
    assert names(tokenizer.encode("a   the ", add_special=False)) == ["▁a", "▁▁", "▁the", "▁"]
    assert tokenizer.encode("", add_special=False) == []
    assert tokenizer.encode("") == [1]


def test_unknown_characters_become_bytes(tokenizer: Tokenizer) -> None:
    assert names(tokenizer.encode("é", add_special=False)) == ["▁", "<0xC3>", "<0xA9>"]


def test_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<s>b", add_special=False)
    assert 1 not in ids
    assert tokenizer.decode(ids) == "a<s>b"
    ids = tokenizer.encode("a<s>b", add_special=False, parse_special=True)
    assert names(ids) == ["▁a", "<s>", "▁", "b"]
    assert tokenizer.decode(ids) == "a b"
    assert tokenizer.decode(ids, special=True) == "a<s> b"
    # a user-defined token is one whether special tokens are parsed or not, and is visible
    ids = tokenizer.encode("a<tool>", add_special=False)
    assert names(ids) == ["▁a", "<tool>"]
    assert tokenizer.decode(ids) == "a<tool>"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_special_tokens_inside_of_others(tmp_path: Path, order: tuple[int, ...]) -> None:
    special = ["<tool>", "<a><tool>", "<a><tool>b"]
    listed, _, types = tokens()
    listed = [name for name in listed if name != "<tool>"]
    kinds = np.append(types[:-1], [4] * 3).astype(np.int32)
    listed += [special[i] for i in order]
    keys = {"tokenizer.ggml.tokens": listed, "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": np.zeros(len(listed), np.float32)}  # fmt: skip
    tokenizer = make(tmp_path, **keys)
    for text in special:
        ids = tokenizer.encode(text + "<tool>", add_special=False)
        assert [listed[i] for i in ids] == [text, "<tool>"]


def test_text_that_continues_has_no_space_in_front(tokenizer: Tokenizer) -> None:
    for continues, first in ((False, "▁a"), (True, "a")):
        ids = tokenizer.encode("a<tool>b<tool>", add_special=False, continues=continues)
        assert names(ids) == [first, "<tool>", "▁", "b", "<tool>"]
        ids = tokenizer.encode("<tool>a", add_special=False, continues=continues)
        assert names(ids) == ["<tool>", "▁a"]


def test_rules_of_the_file(tmp_path: Path) -> None:
    plain = make(
        tmp_path,
        **{
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.add_eos_token": True,
            "tokenizer.ggml.add_space_prefix": False,
        },
    )
    assert names(plain.encode("a")) == ["a", "</s>"]
    assert plain.decode(plain.encode(" a")) == " a"


@pytest.mark.parametrize("change", ["duplicate", "no unknown", "empty piece", "null"])
def test_vocabularies_that_the_library_refuses(tmp_path: Path, change: str) -> None:
    broken = list(NAMES)
    keys: dict[str, object] = {}
    if change == "duplicate":
        broken[-2] = "a"
    elif change == "empty piece":
        broken[-2] = ""
    elif change == "null":
        broken[-2] = "a\0"
    else:
        keys["tokenizer.ggml.unknown_token_id"] = -1
    tokenizer = make(tmp_path, **keys, **{"tokenizer.ggml.tokens": broken})
    ids = tokenizer.encode("the abc é", add_special=False)
    assert [broken[i] for i in ids] == ["▁the", "▁", "abc", "▁", "<0xC3>", "<0xA9>"]


@settings(max_examples=examples(3.0))
@given(text=st.text(st.sampled_from("abcthe ▁é<s>🙂\n") | st.characters(codec="utf-8")))
def test_our_merge_equals_the_library(tokenizer: Tokenizer, text: str) -> None:
    ours = SpmModel(tokenizer.vocab)
    ours._processor = None
    assert ours.encode(text) == tokenizer._model.encode(text)


@settings(max_examples=examples(3.0))
@given(text=st.text(st.sampled_from("abcthe é🙂\n<") | st.characters(codec="utf-8")))
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    if "▁" in text:  # it means a space to SentencePiece
        return
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    # streaming gives the same text, and never a replacement character on the way
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids]
    assert ("\ufffd" in "".join(pieces)) == ("\ufffd" in text)
    assert "".join(pieces) + stream.flush() == (" " + text if text else "")


def test_half_a_character_is_held_back(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    smile = "🙂".encode()
    assert [stream.push(3 + b) for b in smile] == ["", "", "", "🙂"]
    assert [stream.push(3 + b) for b in smile[:2]] == ["", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(3 + ord("x")) == "x"
    # a byte that cannot follow: the broken one is replaced, the next one comes through
    assert stream.push(3 + smile[0]) + stream.push(3 + ord("y")) == "\ufffdy"


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate at character 1"):
        tokenizer.encode("a\ud800")


def test_a_token_out_of_range(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"token 9999 is not in 0\.\.273"):
        tokenizer.decode([9999])


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'plamo9'; supported: llama"):
        make(tmp_path, **{"tokenizer.ggml.model": "plamo9"})
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.model"):
        make(tmp_path, **{"tokenizer.ggml.model": None})


def test_a_lying_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="scores has 3 entries for 274 tokens"):
        make(tmp_path, **{"tokenizer.ggml.scores": np.zeros(3, np.float32)})
    with pytest.raises(TokenizerError, match="bos_token_id is 1000"):
        make(tmp_path, **{"tokenizer.ggml.bos_token_id": 1000})
    with pytest.raises(TokenizerError, match="token 3 is of type byte, but its text"):
        make(tmp_path, **{"tokenizer.ggml.tokens": [*NAMES[:3], "<0xZZ>", *NAMES[4:]]})


def test_end_tokens(tmp_path: Path) -> None:
    renamed = [*NAMES[:2], "<|im_end|>", *NAMES[3:]]
    file = write_model(
        tmp_path / "v.gguf",
        metadata(**{"tokenizer.ggml.tokens": renamed, "tokenizer.ggml.eos_token_id": 5}),
        {},
    )
    assert Vocab.from_gguf(open_gguf(file)).eog == {2, 5}


def test_merge_prefers_the_left_of_equals() -> None:
    ids = {"aa": 0, "a": 1, "aaa": 2}
    assert merge("aaaaa", ids, [0.0, 0.0, -5.0]) == ["aa", "aaa"]
    assert merge("", ids, [0.0] * 3) == []


@pytest.mark.parametrize(
    ("stop", "pieces", "given", "met"),
    [
        (["END"], ["abE", "N", "Dx"], "ab", True),
        (["END"], ["abE", "N", "Fx"], "abENFx", False),
        (["END"], ["E", "EN", "D"], "E", True),
        (["abc", "b"], ["a", "b", "c"], "a", True),  # "b" is complete before "abc"
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb", True),
        ([], ["a", "b"], "ab", False),
    ],
)
def test_stop_strings(stop: list[str], pieces: list[str], given: str, met: bool) -> None:
    stops = StopStrings(stop)
    out, stopped = "", False
    for piece in pieces:
        text, stopped = stops.push(piece)
        out += text
        assert given.startswith(out)
        if stopped:
            break
    assert (out if stopped else out + stops.flush(), stopped) == (given, met)


def searched(stop: list[str], pieces: list[str]) -> tuple[str, bool]:
    """What StopStrings gives, by searching each string in everything that is held back."""
    given, held = "", ""
    for piece in pieces:
        held += piece
        places = [held.index(s) for s in stop if s in held]
        if places:
            return given + held[: min(places)], True
        n = max((k for s in stop for k in range(len(s)) if held.endswith(s[:k])), default=0)
        given, held = given + held[: len(held) - n], held[len(held) - n :]
    return given + held, False


def test_stop_strings_as_a_search_finds_them() -> None:
    random = Random(7)
    texts = ["".join(random.choices("ab", k=random.randint(1, 6))) for _ in range(3000)]
    for _ in range(400):
        stop, pieces = random.sample(texts, random.randint(1, 4)), random.sample(texts, 8)
        stops, out, stopped = StopStrings(stop), "", False
        for piece in pieces:
            if not stopped:
                text, stopped = stops.push(piece)
                out += text
        assert (out + stops.flush(), stopped) == searched(stop, pieces)


def test_the_work_does_not_grow_with_the_number_of_stop_strings() -> None:
    def lines(n: int) -> int:
        stops = StopStrings([f"{i:05d}x" for i in range(n)])
        pieces = ("00012", "3x ", "ab", "00000") * 20
        return lines_of(lambda: [stops.push(piece) for piece in pieces])

    assert lines(200) == lines(5000)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(TokenizerError, match="stop string is empty"):
        StopStrings(["x", ""])


def test_golden_vocabularies(vectors: Path) -> None:
    results = list(vocab.run(vectors / "models/vocab", Options(filter="llama-spm/*")))
    assert len(results) > 500
    assert [r for r in results if r.status != "passed"] == []


def test_golden_tokens_of_models(vectors: Path) -> None:
    results = [
        r
        for folder in ("stories260K", "archs")
        for r in models.run(vectors / "models" / folder, Options(filter="*/tokens/*"))
    ]
    assert len(results) > 100
    assert [r for r in results if r.status != "passed"] == []


def test_the_fewest_tokens_of_a_text(vectors: Path) -> None:
    """Never more than there are, and near them where a text is one token again and again."""
    texts = ["", "a" * 3000, " " * 3000, "\u2581" * 3000, "The quick brown fox. " * 40, "\n" * 999]
    texts += ["<s>" * 200, "\u4e00\x00" * 300, "\ud800" * 9]
    for path in sorted((vectors / "models" / "vocab").glob("*.gguf")):
        tokenizer = Tokenizer.from_gguf(open_gguf(path))
        for text in texts:
            n = 0
            for special in (False, True):
                with suppress(TokenizerError):
                    n = len(tokenizer.encode(text, add_special=False, parse_special=special))
                assert tokenizer.fewest_tokens(text) <= n or "\ud800" in text
        if tokenizer.vocab.model != "bert":  # where an unknown word of any length is one token
            text = "!" * 4000
            n = len(tokenizer.encode(text, add_special=False))
            assert tokenizer.fewest_tokens(text) > n / 40
            assert tokenizer.fewest_tokens("ab" * 10**6) > 20_000


def test_special_tokens_without_number(tmp_path: Path) -> None:
    """Each is looked for in one string, however many have been cut out before it."""
    every, scores, types = tokens()
    first, more = len(every), [f"<{i}>" for i in range(100)]
    tokenizer_of_all = make(
        tmp_path,
        **{
            "tokenizer.ggml.tokens": [*every, *more],
            "tokenizer.ggml.scores": np.append(scores, np.zeros(100, np.float32)),
            "tokenizer.ggml.token_type": np.append(types, np.full(100, 3, np.int32)),
        },
    )
    ids = [first + i * 37 % 100 for i in range(2000)]
    text = "".join(more[i - first] for i in ids)
    numbers: list[int] = []

    def encode() -> None:
        numbers.extend(tokenizer_of_all.encode(text, add_special=False, parse_special=True))

    assert lines_of(encode) < 20 * len(ids)
    assert numbers == ids
