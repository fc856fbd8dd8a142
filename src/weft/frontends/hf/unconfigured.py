"""The config.json of folders that have none, by the sizes of their tensors: Pocket TTS as its
makers publish it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from weft.errors import FormatError
from weft.frontends.hf.safetensors import Stored, open_shards

_HEAD = 64
"""Elements of a head, which no file says."""
_LAYER = re.compile(
    r"(flow_lm|mimi\.(?:en|de)coder_transformer)\.(?:transformer\.)+layers\.(\d+)\."
)


def made_config(folder: Path) -> dict[str, Any] | None:
    """The values that config.json would have for the folder; None: the folder is of another model
    than those that have none. Raises FormatError for a folder that lacks tensors."""
    if not (folder / "model.safetensors").is_file():
        return None
    stored = open_shards(folder)
    if "flow_lm.bos_emb" not in stored:
        return None
    n_vocab, n_embd = _sizes(folder, stored, "flow_lm.conditioner.embed.weight")
    n_ff, _ = _sizes(folder, stored, "flow_lm.transformer.layers.0.linear1.weight")
    codec = "mimi.decoder_transformer.transformer.layers.0.linear1.weight"
    codec_ff, codec_embd = _sizes(folder, stored, codec)
    counts = {"flow_lm": 0, "mimi.decoder_transformer": 0}
    for name in stored:
        layer = _LAYER.match(name)
        if layer is not None and layer[1] in counts:
            counts[layer[1]] = max(counts[layer[1]], int(layer[2]) + 1)
    return {
        "architectures": ["PocketTTSModel"],
        "model_type": "pockettts",
        "num_hidden_layers": counts["flow_lm"],
        "hidden_size": n_embd,
        "intermediate_size": n_ff,
        "max_position_embeddings": 4096,
        "num_attention_heads": max(n_embd // _HEAD, 1),
        # rows for learned vectors follow
        "vocab_size": n_vocab + 1 + ("flow_lm.bos_before_voice" in stored),
        "rope_theta": 10000.0,
        "layer_norm_eps": 1e-5,
        "codec": {
            "num_hidden_layers": counts["mimi.decoder_transformer"],
            "hidden_size": codec_embd,
            "intermediate_size": codec_ff,
            "num_attention_heads": max(codec_embd // _HEAD, 1),
        },
    }


def _sizes(folder: Path, stored: dict[str, Stored], name: str) -> tuple[int, int]:
    if name not in stored or len(stored[name].shape) != 2:
        raise FormatError(f"{folder}: the matrix {name} is missing; download the folder again")
    n_rows, n_columns = stored[name].shape
    return n_rows, n_columns
