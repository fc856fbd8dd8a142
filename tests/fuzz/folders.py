"""Hugging Face folders with changed settings, tokenizers and tensors: each opens and computes, or
is refused with an error that names it."""

from __future__ import annotations

import io
import json
import random
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.mutate import as_json, mutate_bytes, mutate_json
from tests.fuzz.rounds import Round
from weft.errors import WeftError
from weft.frontends.models import open_model
from weft.llm import ChatTemplate, Context, Model, Tokenizer

NATIVE = True

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 264,
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "tie_word_embeddings": True, "bos_token_id": 256, "eos_token_id": 257,
    "rope_scaling": None, "torch_dtype": "float32",
}  # fmt: skip
WORDS = (*CONFIG, "rope_parameters", "sliding_window", "quantization_config", "head_dim",
         "layer_types", "text_config", "attention_bias", "factor", "rope_type")  # fmt: skip
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM", "Gemma2ForCausalLM",
                 "Phi3ForCausalLM", "BertModel", "x", "")  # fmt: skip
VALUES = (2**31 - 1, 2**31, 2**63, -1, 0, 1e308, "x", [], {}, None, True, 10**9)


def tokenizer() -> dict[str, Any]:
    """tokenizer.json of bytes and a few merges."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printing]
    chars = {b: chr(b) for b in printing} | {b: chr(256 + i) for i, b in enumerate(others)}
    vocab = {chars[b]: b for b in range(256)} | {"ab": 258, "abc": 259}
    added = [{"id": 256 + i, "content": f"<{i}>", "special": True, "single_word": False,
              "lstrip": False, "rstrip": False, "normalized": False} for i in range(2)]  # fmt: skip
    return {
        "version": "1.0", "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "ab c"]},
    }  # fmt: skip


def shapes_of_tensors() -> dict[str, tuple[int, ...]]:
    return {"embed_tokens": (264, 32), "norm": (32,)} | {
        f"layers.0.{name}": shape for name, shape in {
            "input_layernorm": (32,), "post_attention_layernorm": (32,),
            "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32),
            "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32), "mlp.gate_proj": (32, 32),
            "mlp.up_proj": (32, 32), "mlp.down_proj": (32, 32)}.items()}  # fmt: skip


def tensors() -> bytes:
    """model.safetensors."""
    header: dict[str, Any] = {}
    data = b""
    for name, shape in shapes_of_tensors().items():
        values = np.full(shape, 0.01, np.float32).tobytes()
        offsets = [len(data), len(data) + len(values)]
        header[f"model.{name}.weight"] = {
            "dtype": "F32", "shape": shape, "data_offsets": offsets,
        }  # fmt: skip
        data += values
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def pickled(rng: random.Random) -> bytes:
    """pytorch_model.bin, with a pickle that may be damaged."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + n.to_bytes(4, "little") for n in values) + b"t"

    program = b"\x80\x02}("
    storages: list[bytes] = []
    for name, shape in shapes_of_tensors().items():
        values = np.full(shape, 0.01, np.float32)
        strides = tuple(n // 4 for n in values.strides)
        storage = text("storage") + b"ctorch\nFloatStorage\n" + text(str(len(storages)))
        program += text(f"model.{name}.weight") + b"ctorch._utils\n_rebuild_tensor_v2\n(("
        program += storage + text("cpu") + b"K\x00tQK\x00" + numbers(shape) + numbers(strides)
        program += b"\x89ccollections\nOrderedDict\n)RtR"
        storages.append(values.tobytes())
    made = bytearray(program + b"u.")
    if rng.randrange(2):
        mutate_bytes(made, rng, [(0, len(made))])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/data.pkl", bytes(made))
        for i, data in enumerate(storages):
            archive.writestr(f"x/data/{i}", data)
    whole = bytearray(file.getvalue())
    if rng.randrange(3) == 0:
        mutate_bytes(whole, rng, [(len(whole) - 2000, len(whole))])
    return bytes(whole)


def damaged(rng: random.Random, place: Path) -> None:
    """Writes a folder."""
    files: dict[str, Any] = {
        "config.json": CONFIG, "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {"chat_template": "{{ messages[0].content }}"},
        "generation_config.json": {"temperature": 0.5, "repetition_penalty": 1.1},
    }  # fmt: skip
    wrong = rng.sample((*files, "model.safetensors"), rng.choice((0, 1, 1, 1, 2)))
    for name, value in files.items():
        text = json.dumps(value)
        if name in wrong:
            value = mutate_json(value, rng, WORDS)
            if name == "config.json" and isinstance(value, dict) and rng.randrange(2):
                value[rng.choice(WORDS)] = rng.choice(VALUES)
            if name == "config.json" and isinstance(value, dict) and rng.randrange(4) == 0:
                value["architectures"] = [rng.choice(ARCHITECTURES)]
            text = as_json(value)
            text = "[" * 100_000 if rng.randrange(30) == 0 else text
        (place / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    if rng.randrange(5) == 0:
        (place / "pytorch_model.bin").write_bytes(pickled(rng))
        return
    data = bytearray(tensors())
    if "model.safetensors" in wrong:
        length = int.from_bytes(data[:8], "little")
        if rng.randrange(2):
            header = as_json(mutate_json(json.loads(data[8 : 8 + length]), rng)).encode()
            data = bytearray(len(header).to_bytes(8, "little") + header + data[8 + length :])
        else:
            mutate_bytes(data, rng, [(0, 8 + length)])
        data = data[: rng.randrange(len(data))] if rng.randrange(8) == 0 else data
    (place / "model.safetensors").write_bytes(data)


def prepare(folder: Path) -> Round:
    """Folders within a folder."""

    def one(rng: random.Random) -> str:
        with tempfile.TemporaryDirectory(dir=folder) as name, np.errstate(all="ignore"):
            damaged(rng, Path(name))
            try:
                file = open_model(name)
                tokens = Tokenizer.from_gguf(file)
                tokens.decode(tokens.encode("the abc é<0> \n 123", parse_special=True))
                ChatTemplate.from_gguf(file, tokens).render([{"role": "user", "content": "a"}])
                Context(Model.open(name), 8, devices=["cpu"], n_threads=1).decode([1, 2, 3])
            except WeftError as error:
                assert str(error) and len(str(error)) < 4000, error
                return "refused"
        return "computed"

    return one
