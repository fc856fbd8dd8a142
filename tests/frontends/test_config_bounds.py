"""Counts of a config.json that would make more than its folder has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.errors import FormatError
from weft.frontends.hf import unigrams, vocab
from weft.frontends.hf.config import Config
from weft.frontends.hf.keys import llama3_factors

HUGE = 2**31 - 1
PIECES = [("a", -1.0, 1), ("b", -2.0, 1)]


def config(folder: Path, n_vocab: int) -> Config:
    values: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": n_vocab}
    tokenizer = {"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return Config(folder, values)


@pytest.mark.parametrize("n_vocab", [HUGE, 1 << 20])
def test_a_vocabulary_out_of_proportion(tmp_path: Path, n_vocab: int) -> None:
    c = config(tmp_path, n_vocab)
    said = f"its vocabulary has {n_vocab} ids, but the tokenizer has 2 tokens"
    with pytest.raises(FormatError, match=said):
        vocab._padded(c, list(PIECES), 0)
    with pytest.raises(FormatError, match=said):
        vocab._padded(c, list(PIECES), n_vocab)
    with pytest.raises(FormatError, match=said):
        vocab._listed(c)
    with pytest.raises(FormatError, match=said):
        unigrams._of_json(c)


def test_a_padded_vocabulary(tmp_path: Path) -> None:
    c = config(tmp_path, 300)
    assert len(vocab._padded(c, list(PIECES), 0)) == len(vocab._listed(c)[0]) == 300
    assert len(unigrams._of_json(c)[0]) == 300


def test_layers(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"'num_hidden_layers' is {HUGE}; a model has at most"):
        Config(tmp_path, {"num_hidden_layers": HUGE})


def test_the_width_of_a_head(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}
    values = {"num_hidden_layers": 1, "rope_parameters": rope, "num_attention_heads": 1}
    with pytest.raises(FormatError, match=f"'head_dim' is {HUGE}; a head has at most"):
        list(llama3_factors(Config(tmp_path, values | {"hidden_size": HUGE})))
    assert list(llama3_factors(Config(tmp_path, values | {"hidden_size": 64})))


def test_a_count_that_is_missing_or_none(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"'n_layers' or 'num_hidden_layers' or .* is missing; it is a number"
    ):
        Config(tmp_path, {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(FormatError, match="'num_hidden_layers' is '2', and must be an integer"):
        Config(tmp_path, {"num_hidden_layers": "2"})
