"""A folder of Kimi, whose vocabulary is a file of ranks: its texts get the ids of the ranks."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from math import isqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm import hf_folders as folders
from weft import bounds
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.llm.tokenizers.tokenizer import Tokenizer

ONES = [bytes([(7 * i + 3) % 256]) for i in range(256)]
LONG = ["th", "in", "the", "he", "ing", " t", " the", "thing", "aa", "aaaa", "中", "aaa"]
TOKENS = [*ONES, b"\xe4\xb8", *(text.encode() for text in LONG), b"xyz"]
NAMED = {len(TOKENS): "[BOS]", len(TOKENS) + 2: "<|im_end|>"}
RANKS = {token: rank for rank, token in enumerate(TOKENS)}


def write_ranks(folder: Path, tokens: list[bytes] = TOKENS) -> None:
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kimi")
    folders.make_folder("kimi", path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    named = {str(i): {"content": text, "special": True} for i, text in NAMED.items()}
    settings = {"added_tokens_decoder": named, "bos_token": "[BOS]"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads((path / "config.json").read_text())
    config |= {"bos_token_id": len(TOKENS), "eos_token_id": len(TOKENS) + 2}
    (path / "config.json").write_text(json.dumps(config))
    write_ranks(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    convert_folder(folder, folder / "m.gguf", "f32")
    return Tokenizer.from_gguf(open_gguf(folder / "m.gguf"))


def test_keys(folder: Path, tokenizer: Tokenizer) -> None:
    meta = open_gguf(folder / "m.gguf").metadata
    assert meta["tokenizer.ggml.pre"] == "kimi-k2"
    n = len(TOKENS)
    reserved = [f"<|reserved_token_{n + i}|>" for i in (1, 3)]
    special = meta["tokenizer.ggml.tokens"][n : n + 4]
    assert special == ["[BOS]", reserved[0], "<|im_end|>", reserved[1]]
    kinds = np.array(meta["tokenizer.ggml.token_type"])
    assert set(kinds[:n]) == {1} and set(kinds[n:]) == {3}
    assert meta["tokenizer.ggml.eos_token_id"] == n + 2
    merges = list(meta["tokenizer.ggml.merges"])
    assert merges[:2] == ["ä ¸", "t h"]
    assert "Ġ the" in merges and "Ġt he" not in merges  # "the" is made before " t"
    assert "aa aa" in merges and "aa a" in merges and len(merges) == len(LONG) + 1


def by_rank(word: bytes) -> list[int]:
    """Merges the neighbours that make the token of the lowest rank, while some make one."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        pairs = [(RANKS.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(pairwise(parts))]
        rank, i = min(pairs, default=(1 << 30, 0))
        if rank == 1 << 30:
            return [RANKS[part] for part in parts]
        parts[i : i + 2] = [TOKENS[rank]]


@given(word=st.text("thinga", min_size=1, max_size=12) | st.text("中丸", min_size=1))
def test_ids(tokenizer: Tokenizer, word: str) -> None:
    assert tokenizer.encode(word, add_special=False) == by_rank(word.encode())


def test_wrong_files(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(folder / name)
    for text, said in (("YQ== 0\nYg==\n", "not a token and its rank"), ("YQ== 5\n", "from 0"),
                       ("?? 0\n", "not a token"), ("", "from 0")):  # fmt: skip
        (tmp_path / "tiktoken.model").write_text(text)
        with pytest.raises(FormatError, match=said):
            convert_folder(tmp_path, tmp_path / "m.gguf")
    write_ranks(tmp_path, [*TOKENS, b"a" * (1 + isqrt(bounds.RANK_UNITS))])
    with pytest.raises(FormatError, match="too long"):
        convert_folder(tmp_path, tmp_path / "m.gguf")


def test_qwen(folder: Path, tmp_path: Path) -> None:
    """Special tokens stand behind the ranks, and a context beyond the trained one is refused."""
    from weft.frontends.models import open_model

    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    write_ranks(tmp_path)
    (tmp_path / "tiktoken.model").rename(tmp_path / "qwen.tiktoken")
    config = {
        "architectures": ["QWenLMHeadModel"], "hidden_size": 32, "num_attention_heads": 4,
        "num_hidden_layers": 1, "intermediate_size": 48, "layer_norm_epsilon": 1e-6,
        "vocab_size": len(TOKENS) + 5, "max_position_embeddings": 128, "seq_length": 64,
        "use_dynamic_ntk": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "model.safetensors"
    path.unlink()
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"transformer.ln_f.weight": np.ones(32, np.float32)}, path)
    meta, n = open_model(tmp_path).metadata, len(TOKENS)
    assert meta["tokenizer.ggml.pre"] == "qwen2" and meta["qwen.context_length"] == 64
    assert list(meta["tokenizer.ggml.tokens"][n:]) == [
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_0|>", "<|extra_1|>",
    ]  # fmt: skip
    for kind in ("bos", "eos", "unknown"):
        assert meta[f"tokenizer.ggml.{kind}_token_id"] == n
    got = Tokenizer.from_gguf(open_model(tmp_path)).encode("the", add_special=False)
    assert got == by_rank(b"the")


def test_hunyuan(tmp_path: Path) -> None:
    """Special tokens end at the size of the vocabulary, and a text begins with <|bos|>."""
    from weft.frontends.models import open_model

    folders.make_folder("hunyuan moe", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    write_ranks(tmp_path, ONES)
    (tmp_path / "tiktoken.model").rename(tmp_path / "hy.tiktoken")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config |= {"bos_token_id": 1, "rope_theta": 1e4, "max_position_embeddings": 1 << 15,
               "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}  # fmt: skip
    path.write_text(json.dumps(config | {"vocab_size": 400}))
    meta = open_model(tmp_path).metadata
    assert meta["tokenizer.ggml.pre"] == "hunyuan"
    tokens = list(meta["tokenizer.ggml.tokens"])
    assert tokens[256:260] == ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>"]
    assert meta["tokenizer.ggml.bos_token_id"] == 258
    assert meta["hunyuan-moe.context_length"] == 1 << 18
    d = config["head_dim"]
    assert meta["hunyuan-moe.rope.freq_base"] == pytest.approx(1e4 * 1000 ** (d / (d - 2)))
    assert "hunyuan-moe.rope.scaling.dynamic" not in meta
    for alpha in (-5, "x", 1e300):
        scaling = {"rope_scaling": {"type": "dynamic", "alpha": alpha}}
        path.write_text(json.dumps(config | {"vocab_size": 400} | scaling))
        with pytest.raises(FormatError, match="'alpha' of the rotary embedding is"):
            open_model(tmp_path)
    path.write_text(json.dumps(config | {"vocab_size": 500}))
    tokens = list(open_model(tmp_path).metadata["tokenizer.ggml.tokens"])
    assert tokens[289] == "[PAD289]" and tokens[290] == "<|endoftext|>"
    assert tokens[-1] == "<|extra_204|>"
