"""Special tokens and defaults, from metadata and from the texts of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.tiny import metadata, tokens, write_model
from tests.llm.vocabularies import byte_level, make
from weft.errors import ContextError, TokenizerError
from weft.frontends.gguf import open_gguf
from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.tokenizers.vocab import TokenType, Vocab


def byte_vocab(path: Path, more: list[str], **keys: object) -> Vocab:
    return byte_level(path, [], more, **keys).vocab


def test_a_byte_token_says_which_byte(tmp_path: Path) -> None:
    names, _, _ = tokens()
    names[5] = "<0xZ2>"
    path = write_model(tmp_path / "m.gguf", metadata(**{"tokenizer.ggml.tokens": names}))
    with pytest.raises(TokenizerError, match="token 5 is of type byte, but its text is"):
        Vocab.from_gguf(open_gguf(path))


def test_end_tokens_by_text(tmp_path: Path) -> None:
    """Whatever their stored type is, they end generation and are not shown."""
    vocab = byte_vocab(tmp_path, ["<|im_end|>", "</s>", "<|other|>"], eos_token_id=7)
    assert vocab.eog == {7, 256, 257}
    assert vocab.types[256:].tolist() == [TokenType.CONTROL, TokenType.CONTROL, TokenType.NORMAL]
    assert vocab.piece(256) == b"" and vocab.piece(256, special=True) == b"<|im_end|>"


def test_end_tokens_by_key(tmp_path: Path) -> None:
    keys = {"eos_token_id": 3, "eot_token_id": 4, "eom_token_id": 5, "fim_pad_token_id": 6}
    vocab = byte_vocab(tmp_path, [], **keys)
    assert vocab.eog == {3, 4, 5, 6}
    assert (vocab.eos, vocab.bos, vocab.unknown) == (3, None, None)
    assert vocab.special == {"eos": 3, "eot": 4, "eom": 5, "fim_pad": 6}


def test_fill_in_the_middle_tokens(tmp_path: Path) -> None:
    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"]
    vocab = byte_vocab(tmp_path, names)
    assert vocab.special == {
        **{"fim_pre": 256, "fim_suf": 257, "fim_mid": 258, "fim_pad": 259, "fim_sep": 260}
    }
    assert vocab.eog == {259, 260}
    assert set(vocab.types[256:].tolist()) == {TokenType.CONTROL}
    # a key counts more than a text, and the older keys still do
    vocab = byte_vocab(tmp_path, names, fim_pre_token_id=1, suffix_token_id=2)
    assert (vocab.special["fim_pre"], vocab.special["fim_suf"]) == (1, 2)


def test_channels_are_shown(tmp_path: Path) -> None:
    """gpt-oss: <|end|> ends a message only, and the channel tokens are text."""
    names = ["<|end|>", "<|return|>", "<|call|>", "<|channel|>"]
    types = dict.fromkeys(range(256, 260), 3)
    vocab = byte_vocab(tmp_path, names, types=types)
    assert vocab.eog == {257, 258}
    assert vocab.piece(256) == b"<|end|>" and vocab.piece(259) == b"<|channel|>"
    assert byte_vocab(tmp_path, names[:2], types={256: 3, 257: 3}).eog == {256, 257}


def test_a_leftover_end_token(tmp_path: Path) -> None:
    vocab = byte_vocab(tmp_path, ["</s>", "<|tool_response>"])
    assert vocab.eog == {257}
    assert vocab.types[256] == TokenType.NORMAL


def test_defaults_by_kind(tmp_path: Path) -> None:
    spm = make(tmp_path, "llama", ["<unk>", "<s>", "</s>", "a"]).vocab
    assert (spm.unknown, spm.bos, spm.eos, spm.prefix, spm.suffix) == (0, 1, 2, (1,), ())
    assert spm.add_space_prefix and not spm.clean_spaces
    tokens = ["<pad>", "</s>", "<unk>", "a"]
    t5 = make(tmp_path, "t5", tokens).vocab
    assert (t5.unknown, t5.eos, t5.prefix, t5.suffix) == (2, 1, (), (1,))
    # defaults beyond a small vocabulary are no tokens
    assert make(tmp_path, "llama", ["<unk>"]).vocab.special == {"unknown": 0}
    assert byte_vocab(tmp_path, [], pre="qwen2").clean_spaces is False
    assert byte_vocab(tmp_path, [], pre="llama-bpe").clean_spaces is True


@pytest.mark.parametrize("id_", [256, -2, 1 << 31])
def test_an_id_out_of_range_is_refused(tmp_path: Path, id_: int) -> None:
    with pytest.raises(TokenizerError, match=r"eos_token_id is .*the tokens are 0\.\.255"):
        byte_vocab(tmp_path, [], eos_token_id=id_)


@pytest.mark.parametrize("id_", [-1, 0xFFFFFFFF])
def test_no_id(tmp_path: Path, id_: int) -> None:
    assert byte_vocab(tmp_path, [], eos_token_id=id_).eos is None


def test_nameless_and_equal_tokens(tmp_path: Path) -> None:
    vocab = make(tmp_path, "llama", ["<unk>", "<s>", "</s>", "", "a", "a"]).vocab
    assert vocab.tokens[3] == b"[EMPTY_3]"
    assert vocab.index[b"a"] == 4


@pytest.mark.parametrize(
    "settings",
    [
        "[" * 200_000, "[]", '{"lstrip": 5}', '{"rstrip": ["a"]}', '{"lstrip": [true]}',
        '{"normalizers": ["X"]}', '{"normalizers": "NFC"}', '{"letters": "a"}', '{"letters": -1}',
        '{"spaces": 1}', '{"space_prefix": []}',
    ],
)  # fmt: skip
def test_damaged_settings_are_refused(tmp_path: Path, settings: str) -> None:
    keys = metadata(**{"tokenizer.weft.settings": settings})
    path = write_model(tmp_path / "m.gguf", keys)
    with pytest.raises(TokenizerError, match=r"tokenizer\.weft\.settings"):
        Vocab.from_gguf(open_gguf(path))


def test_settings_that_are_held(tmp_path: Path) -> None:
    settings = (
        '{"normalizers": ["NFC"], "lstrip": [1], "letters": 100, "spaces": "all", '
        '"space_prefix": "first"}'
    )
    path = write_model(tmp_path / "m.gguf", metadata(**{"tokenizer.weft.settings": settings}))
    assert Vocab.from_gguf(open_gguf(path)).lstrip == {1}


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 0, "logit_bias": {7: 9.0}}])
def test_suppressed_tokens_are_never_drawn(tmp_path: Path, options: dict[str, Any]) -> None:
    """Ids beyond the vocabulary count for nothing."""
    ids = np.array([7, 9, -1, 9999], np.int32)
    tokenizer = byte_level(tmp_path, [], suppress_tokens=ids)
    assert tokenizer.vocab.suppressed == (7, 9)
    logits = np.zeros(256, np.float32)
    logits[[7, 9, 11]] = 90, 80, 60
    assert Sampler(SamplingParams(**options)).sample(logits) in (7, 9)
    sampler = Sampler(SamplingParams(**options), tokenizer)
    assert sampler.sample(logits) == 11
    assert not {7, 9} & set(sampler.distribution(np.zeros(256, np.float32))[0][:-2].tolist())
    tokenizer = byte_level(tmp_path, [], suppress_tokens=np.arange(256, dtype=np.int32))
    with pytest.raises(ContextError, match=r"forbidden by the model \(suppress_tokens\)"):
        Sampler(SamplingParams(**options), tokenizer).sample(logits)
    with pytest.raises(TokenizerError, match=r"suppress_tokens must be ids of tokens"):
        byte_level(tmp_path, [], suppress_tokens=np.array([0.5, 2.0], np.float32))
