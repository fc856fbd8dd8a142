"""The demo model's vocabulary: words are pieces, digits stay apart, anything round-trips."""

import random

import demo_questions as dq
import pytest
from demo_tokenizer import BYTE_0, FIRST_PIECE, SPACE, Tokenizer, train


@pytest.fixture(scope="module")
def tok() -> Tokenizer:
    rng = random.Random(0)
    return train(f"{p} {a}" for _ in range(100) for p, a in dq.page(rng))


def pieces(tok: Tokenizer, text: str) -> list[str]:
    return [tok.tokens[i] for i in tok.encode(text)]


def test_words_are_one_piece_and_digits_one_each(tok: Tokenizer) -> None:
    got = pieces(tok, "What is 17 + 25? 42.\n")
    s = SPACE
    want = f"What {s}is {s} 1 7 {s} + {s} 2 5 ? {s} 4 2 . <0x0A>"
    assert got == want.split(" ")


def test_every_word_of_a_page_is_one_piece(tok: Tokenizer) -> None:
    rng = random.Random(9)
    for _ in range(50):
        for prompt, answer in dq.page(rng):
            for word in f"{prompt} {answer}".split():
                letters = word.strip("?.,")
                if letters.isalpha():
                    at_start = prompt.startswith(letters)
                    assert len(tok.encode(letters if at_start else " " + letters)) == 1, word


def test_merges_prefer_the_higher_score_then_the_left() -> None:
    tok = Tokenizer(["bc", "ab", "aa", "a", "b", "c"])
    assert pieces(tok, "abc") == ["a", "bc"]
    assert pieces(tok, "aaa") == ["aa", "a"]


def test_training_merges_the_most_frequent_pair_first() -> None:
    tok = train(["xy xyz xy"])
    assert tok.tokens[FIRST_PIECE] == "xy"


@pytest.mark.parametrize(
    "text", ["", " ", "  two  spaces ", "\u00dcber \U0001f600\t\n\n", "aaaa", "99"]
)
def test_any_text_comes_back(tok: Tokenizer, text: str) -> None:
    assert tok.decode(tok.encode(text)) == text


def test_unknown_characters_become_bytes(tok: Tokenizer) -> None:
    assert tok.encode("\u00e9") == [BYTE_0 + 0xC3, BYTE_0 + 0xA9]


def test_layout_is_specials_bytes_pieces_with_falling_scores(tok: Tokenizer) -> None:
    assert tok.tokens[:4] == ["<unk>", "<s>", "</s>", "<0x00>"]
    assert tok.tokens[BYTE_0 + 255] == "<0xFF>"
    assert len(set(tok.tokens)) == len(tok.tokens) == len(tok.scores)
    ranks = tok.scores[FIRST_PIECE:]
    assert ranks == sorted(ranks, reverse=True)
