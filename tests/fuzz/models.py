"""GGUF files with changed metadata, vocabularies and sizes: each is read, or is a WeftError."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.llm.tiny import metadata, write_model
from weft.errors import WeftError
from weft.frontends.gguf import open_gguf
from weft.llm import ChatTemplate, Context, Model, Tokenizer

NATIVE = True

NUMBERS = [0, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
TEXT = "the abc é<s> \t\n 12345 <tool> \x00"
KINDS = ["llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "none"]
PRES = ["default", "llama-bpe", "qwen2", "gpt-4o", "tekken", "deepseek-v3", "chatglm-bpe", "x"]


@cache
def _good() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_model(Path(folder) / "m.gguf").read_bytes()


def changed(rng: random.Random, folder: Path) -> Path:
    """A file with changed bytes in front of the weights, or with other metadata."""
    path = folder / "m.gguf"
    if rng.random() < 0.5:
        data = bytearray(_good())
        end = data.index(b"blk.1.ffn_down") + 100
        for _ in range(rng.randrange(1, 5)):
            at, width = rng.randrange(4, end), rng.choice([1, 4, 8])
            data[at : at + width] = (rng.choice(NUMBERS) % (1 << 8 * width)).to_bytes(
                width, "little"
            )
        path.write_bytes(data)
        return path
    meta: dict[str, Any] = metadata()
    for _ in range(rng.randrange(1, 4)):
        key = rng.choice(sorted(meta))
        meta[key] = other(rng, meta[key])
    meta["tokenizer.ggml.model"] = rng.choice([meta["tokenizer.ggml.model"], rng.choice(KINDS)])
    meta["tokenizer.ggml.pre"] = rng.choice(PRES)
    if rng.random() < 0.3:
        meta["tokenizer.ggml.merges"] = rng.choice([["a b"], ["ab"], [""], ["a b c"], []])
    try:
        return write_model(path, meta, {"x": np.zeros(1, np.float32)})
    except WeftError:
        path.write_bytes(_good())
        return path


def other(rng: random.Random, value: Any) -> Any:
    """Another value of the kind, or of another kind."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value[rng.randrange(len(value))] = rng.choice([-1, 0, 1, 2, 3, 4, 5, 6, 7, 1 << 30])
        return value
    if isinstance(value, list):
        value = list(value)
        for _ in range(rng.choice([1, 1, 30])):
            value[rng.randrange(len(value))] = rng.choice(
                ["", "a", "<0x4>", "<0xZZ>", "\u2581" * 9, "a" * 5000, value[0], "\ufffd"]
            )
        return value
    return rng.choice([value, *NUMBERS[:7], -1, "x", "", 1.5, float("nan"), True, [1], ["x"]])


def check(path: Path) -> bool:
    """Whether all of it was read."""
    good = True
    try:
        file = open_gguf(path)
        tokenizer = Tokenizer.from_gguf(file)
        ids = tokenizer.encode(TEXT, parse_special=True)
        tokenizer.decode(ids)
        for id_ in range(tokenizer.n_vocab):
            tokenizer.piece(id_, special=True)
        ChatTemplate.from_gguf(file, tokenizer).render([{"role": "user", "content": TEXT}])
    except WeftError:
        good = False
    try:
        context = Context(Model.open(path), 8, devices=["reference"])
        context.decode([1, 2, 3])
    except WeftError:
        return False
    return good


def run(seed: int, n: int) -> int:
    """Tries `n` files; returns how many were read."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        return sum(check(changed(rng, Path(folder))) for _ in range(n))
