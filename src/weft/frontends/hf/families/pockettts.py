"""Pocket TTS in folders of transformers, and as its makers publish it: the text model. What makes
sound of its states is in `towers/spoken.py`.

Two learned vectors are rows of the embedding in files: the one in front of a voice, and the one
from which speech begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.unigrams import unigrams
from weft.frontends.hf.values import Floats, Values, stored_values
from weft.frontends.hf.vocab import Vocabulary, has

BEFORE_VOICE, FIRST = "<|bos_before_voice|>", "<|audio_bos|>"
"""The names of both vectors among the tokens of a file."""
_CONTROL = 3
_HEADS = ("flow_head.", "eos_head.", "latent_mean", "latent_std", "loss_weighting.", "bos_latent",
          "latent_stats_num_updates", "model.bos_latent")  # fmt: skip
_LAYER = re.compile(r"flow_lm\.transformer\.layers\.(\d+)\.(.+)\.(weight|bias)")
_NAMES = {
    "norm1": "attn_norm", "norm2": "ffn_norm", "self_attn.out_proj": "attn_output",
    "linear1": "ffn_up", "linear2": "ffn_down",
}  # fmt: skip


def _keys(c: Config) -> Pairs:
    """How frames are drawn, where generation_config.json says otherwise than usual."""
    written = c.json("generation_config.json")
    for key, name, usual in (
        ("speech.flow_steps", "num_flow_steps", 1),
        ("speech.frames_before_end", "min_frames_before_eos", 6),
    ):
        value = written.get(name)
        if value not in (None, usual):
            if type(value) is not int or not 0 <= value < 1 << 10:
                raise c.bad(name, f"of generation_config.json is {value!r}; it is a small count")
            yield key, value
    threshold = written.get("eos_threshold")
    if threshold not in (None, -4.0):
        yield "speech.end_threshold", float(threshold)
    temperature = written.get("temperature", 0.7)
    if written.get("do_sample") is False:
        temperature = 0.0
    if temperature != 0.7:
        yield "speech.temperature", float(temperature)


def _vocabulary(c: Config) -> Vocabulary:
    """The unigrams of the folder, with the names of the learned vectors behind."""
    model = "tokenizer.model" if has(c, "tokenizer.model") else ""
    keys = dict(unigrams(c, model=model, types=False))
    tokens, kinds = _listed(keys["tokenizer.ggml.tokens"]), keys["tokenizer.ggml.token_type"]
    scores = keys["tokenizer.ggml.scores"]
    assert isinstance(kinds, np.ndarray) and isinstance(scores, np.ndarray)
    for name, id_ in _learned(c, len(tokens)).items():
        tokens[id_], kinds[id_], scores[id_] = name, _CONTROL, -1000.0
    keys["tokenizer.ggml.tokens"] = tokens
    yield from keys.items()
    yield "tokenizer.ggml.add_bos_token", False
    yield "tokenizer.ggml.add_eos_token", False


def _listed(tokens: object) -> list[str]:
    assert isinstance(tokens, list)
    return tokens


def _learned(c: Config, n_vocab: int) -> Mapping[str, int]:
    """The ids of tokens beside those for text, by their names in files."""
    if c.cls == "PocketTTSModel":
        voiced = "flow_lm.bos_before_voice" in open_shards(c.folder)
        names = ("<|pad|>", BEFORE_VOICE, FIRST) if voiced else ("<|pad|>", FIRST)
        return {name: n_vocab - len(names) + i for i, name in enumerate(names)}
    ids = {
        BEFORE_VOICE: _id_of(c, "audio_prompt_bos_token_id", 4002),
        FIRST: _id_of(c, "audio_bos_token_id", 4003),
    }
    return {name: id_ for name, id_ in ids.items() if id_ < n_vocab}


def _id_of(c: Config, key: str, usual: int) -> int:
    id_ = c.get(key, usual)
    if type(id_) is not int or not 0 <= id_ < 1 << 31:
        raise c.bad(key, f"is {id_!r}; it is the id of a token")
    return id_


def adjacent_rows_of(n_rows: int, d: int) -> NDArray[np.intp]:
    """For each row of queries or keys with heads of `d`, in the order in which adjacent pairs
    rotate, its number in the order in which halves do."""
    order = np.arange(d).reshape(2, d // 2).T.reshape(-1)
    rows: NDArray[np.intp] = (np.arange(n_rows // d)[:, None] * d + order).reshape(-1)
    return rows


def _first_row(c: Config, latent: str, matrix: str) -> Floats:
    """The row from which speech begins: a learned latent, multiplied with the matrix of latents."""
    stored = open_shards(c.folder)
    for name in (latent, matrix):
        if name not in stored:
            raise FormatError(f"{c.folder}: tensor {name} is missing; download the folder again")
    x, w = (stored_values(stored[name]).load() for name in (latent, matrix))
    return np.asarray(w.astype(np.float32) @ x.astype(np.float32).reshape(-1), np.float32)


def _change(c: Config, name: str, values: Values) -> Named:
    if name.startswith(_HEADS):
        return
    if name.endswith("embed_tokens.weight"):
        id_ = _id_of(c, "audio_bos_token_id", 4003)
        if id_ >= values.shape[0]:
            raise c.bad("audio_bos_token_id", f"is {id_}, beyond the {values.shape[0]} embeddings")

        def with_first(x: Floats) -> Floats:
            x = np.array(x)
            x[id_] = _first_row(c, "model.bos_latent", "model.audio_latent_proj.weight")
            return x

        values = values.through(with_first)
    yield name, values


def _original(c: Config, name: str, values: Values) -> Named:
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        il, part, kind = layer.groups()
        if part == "self_attn.in_proj":
            n = values.shape[0] // 3
            for letter, third in zip(
                "qkv", values.split(n, n, values.shape[0] - 2 * n), strict=True
            ):
                yield f"=blk.{il}.attn_{letter}.{kind}", third
        elif part in _NAMES:
            yield f"=blk.{il}.{_NAMES[part]}.{kind}", values
    elif name.startswith("flow_lm.out_norm."):
        yield f"=output_norm.{name.rpartition('.')[2]}", values
    elif name == "flow_lm.conditioner.embed.weight":
        yield (
            "=token_embd.weight",
            values.through(partial(_with_learned, c), (c.count("vocab_size"), values.shape[1])),
        )


def _with_learned(c: Config, x: Floats) -> Floats:
    stored, rows = open_shards(c.folder), [x]
    if "flow_lm.bos_before_voice" in stored:
        rows.append(stored_values(stored["flow_lm.bos_before_voice"]).load().reshape(1, -1))
    rows.append(_first_row(c, "flow_lm.bos_emb", "flow_lm.input_linear.weight").reshape(1, -1))
    return np.concatenate(rows)


FAMILIES = {
    "pockettts": Family(
        "pockettts", _keys, change=_change, vocab=_vocabulary, adjacent=True,
        activation="gelu_pytorch_tanh", names={"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
        defaults={
            **ROTARY, "vocab_size": 4004, "hidden_size": 1024, "num_hidden_layers": 6,
            "num_attention_heads": 16, "intermediate_size": 4096, "layer_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
        },
    ),
    "pockettts original": Family(
        "pockettts", change=_original, vocab=_vocabulary, activation="",
    ),
}  # fmt: skip
