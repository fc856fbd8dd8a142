"""Tokenizers of the package `tokenizers` take no more than their process may, whatever they ask."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from weft.errors import TokenizerError
from weft.frontends.hf import package_tokenizer
from weft.frontends.hf.package_tokenizer import PackageTokenizers

pytest.importorskip("tokenizers")


def tokenizer(**steps: Any) -> str:
    """A tokenizer.json of two letters with these steps."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [], "unk_token": "b"}
    empty = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model} | empty | steps)


def replaces(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
GROWING = {"type": "Sequence", "normalizers": [replaces({"String": "a"}, "a" * 999)] * 9}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> PackageTokenizers:
    monkeypatch.setattr(package_tokenizer, "ENCODING_SECONDS", 1)
    monkeypatch.setattr(package_tokenizer, "ENCODING_MEMORY", 1 << 29)
    made = PackageTokenizers()
    made.add("plain", tokenizer())
    return made


@pytest.mark.parametrize(
    ("steps", "text", "message"),
    [
        ({"pre_tokenizer": SLOW}, ("a" * 20 + "b") * 999, "more than 1 s of a processor"),
        ({"normalizer": GROWING}, "aaa", "of a processor or"),
        ({"normalizer": replaces({"Regex": "(a+)+$"}, "")}, "a" * 99 + "b", "retry-limit"),
    ],
)
def test_hostile_steps_end_in_errors(
    made: PackageTokenizers, steps: dict[str, Any], text: str, message: str
) -> None:
    """The other tokenizers go on, in a new process if the first has ended."""
    made.add("hostile", tokenizer(**steps))
    with pytest.raises(TokenizerError, match=message):
        made.encode("hostile", text)
    assert made.encode("plain", "abba") == [0, 1, 1, 0]
    assert made.named("plain", [1, 7]) == ["b", None]


def test_what_the_package_cannot_read(made: PackageTokenizers) -> None:
    for text in ("{", tokenizer(normalizer={"type": "Nothing"}), "[" * 99999):
        with pytest.raises(TokenizerError):
            made.add("other", text)
        assert "other" not in made
    assert made.encode("plain", "ab") == [0, 1]


def test_a_fork_has_a_process_of_its_own(made: PackageTokenizers) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if made.encode("plain", "ba") == [1, 0] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert made.encode("plain", "ab") == [0, 1]
