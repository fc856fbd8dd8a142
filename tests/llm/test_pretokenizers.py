"""How text is cut into words, by name of the pre-tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.llm.tokenizers.characters import category, collapse, plain
from weft.llm.tokenizers.pretokenizers import PRETOKENIZERS

SAMPLE = "I'M we'll  go,\r\n\n to 12345½ é́ŁóDź 中文。\tHello_World"


def words(name: str, text: str) -> list[str]:
    how = PRETOKENIZERS[name]
    return [part for word in how.split(text) for part in how.split_word(word)]


# Each list is what llama.cpp cuts the same text into.
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I'M we'll  go", "I|'|M| we|'ll| | go"),
        ("gpt-2", "a\n\n b 12ab", "a|\n\n| b| 12|ab"),
        ("gpt-2", "x  ", "x|  "),
        ("llama-bpe", "I'M we'll  go", "I|'M| we|'ll| | go"),
        ("llama-bpe", "a\r\n\n b(12345", "a|\r\n\n| b|(|123|45"),
        ("llama-bpe", "!\n\n  \nx", "!\n\n|  \n|x"),
        ("llama-bpe", "e\u0301\u0301a", "e|\u0301\u0301|a"),
        ("qwen2", "12a", "1|2|a"),
        ("qwen35", "e\u0301\u0301a", "e\u0301\u0301a"),
        ("ufakzeka", "Ali'den", "Ali|'den"),
        ("starcoder", "a 12", "a| |1|2"),
        ("falcon", "x==y 1234", "x|==|y| |123|4"),
        ("default", "x==y 1234", "x|==|y| |123|4"),
        ("gpt-4o", "camelCase XMLHttp it's/\n", "camel|Case| XMLHttp| it's|/\n"),
        ("tekken", "camelCase it's 12", "camel|Case| it|'s| |1|2"),
        ("deepseek-llm", "Hi, 中文\n12 ", "Hi|,| |中文|\n|12| "),
        ("deepseek-coder", "Hi, 中文\n12", "Hi|,| |中文|\n|1|2"),
        ("deepseek-v3", ".size 中a 1234", ".size| |中|a| |123|4"),
        ("bloom", "a,b c.", "a|,|b| c|."),
        ("viking", "a12", "a|1|2"),
        ("chameleon", "<sentinel:1>IMGIMGABZa  b", "<|sentinel|:|1|>|IMGIMGABZ|a|  |b"),
        ("superbpe", "a 1234567 b", "a |1|234|567| b"),
        ("tiny_aya", "a1234567", "a|1|234|567"),
        ("afmoe", "a 12345", "a| |12|345"),
        ("kimi-k2", "a中b's", "a|中|b's"),
        ("exaone-moe", "a b  c", "a b| | c"),
        ("jais-2", "a" + " " * 7 + "b", "a|    |  | b"),
        ("seed-coder", "a!\n", "a|!|\n"),
        ("bailingmoe", "a\n\nb", "a|\n\n|b"),
        ("minicpm5", "a1234", "a|123|4"),
        ("spark2_5", "a!\n", "a|!|\n"),
        ("youtu", "가a，b", "가|a|，|b"),
        ("laguna", "a \n\n b", "a| |\n\n| b"),
        ("gemma4", "a b\n\nc", "a b|\n\n|c"),
    ],
)
def test_words(name: str, text: str, expected: str) -> None:
    assert words(name, text) == expected.split("|")


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_nothing_is_lost(name: str) -> None:
    assert "".join(words(name, SAMPLE)) == SAMPLE
    assert words(name, "") == []
    how = PRETOKENIZERS[name]
    assert len(words(name, SAMPLE)) > 1 and how.late < len(how.steps)


_TEXTS = st.text(st.sampled_from("aB1'½中é\u0301 \n\r\t\u3000.,!_") | st.characters(codec="utf-8"))


@given(text=_TEXTS, name=st.sampled_from(sorted(PRETOKENIZERS)))
def test_late_steps_change_nothing(text: str, name: str) -> None:
    """Cutting words when they are met is the same as cutting all of the text at once."""
    how = PRETOKENIZERS[name]
    at_once = type(how)(how.steps)
    assert words(name, text) == at_once.split(text)
    assert "".join(at_once.split(text)) == text


@pytest.mark.parametrize("name", {how: name for name, how in PRETOKENIZERS.items()}.values())
def test_long_runs_are_cut_in_linear_time(name: str) -> None:
    # A quadratic step would take minutes here.
    for run in ("a", "é", "1", " ", "\n", "!", "中", "\u0301", "A a", "a\u0301 "):
        for end in ("", "中", "x"):
            text = run * (30_000 // len(run)) + end
            assert "".join(words(name, text)) == text


def test_collapsed_text() -> None:
    assert collapse("plain text\n") == "plain text\n"
    text = "a½éЖ中\u0301。€\u3000\x85\U0001fae8\ue000"
    assert collapse(text) == "a\xd1\xd2\xd2\xd6\xd4\xd3\xd5\v\v\xd5\xd0"
    assert plain(text) == text.replace("\u3000", "\v").replace("\x85", "\v")


def test_categories_are_those_of_unicode_15_1() -> None:
    # 15.0: a sign, a letter, a mark and a number; 15.1: a symbol; 14.0, and never
    assert [category(c)[0] for c in "\U0001fae8\U00011f04\u0cf3\U0001d2c0"] == list("SLMN")
    assert category("\u2ffc")[0] == "S"
    assert category("\U00031350")[0] == category("\U000323af")[0] == "L"
    assert (category("é"), category("\u0378")) == ("Ll", "Cn")
