"""Small models with towers for sound: of transformers, with random weights, and as two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.llm.llava_models import paired
from tests.llm.made_models import keys_of
from tests.llm.tiny import tokens, write_model
from tests.llm.vision_models import F32, LAYER, TEXT, Tensors, randomised, text_tensors

N_VOCAB = len(tokens()[0])
SOUND = N_VOCAB - 1
"""The token that stands for a row of a sound in transformers."""
BEGIN, END = N_VOCAB - 2, N_VOCAB - 3
N_MEL, POSITIONS = 16, 20
PART = POSITIONS * 320
"""Samples of a part of a sound."""
LONG: dict[str, Any] = F32 | {"n_ctx": 128, "n_outputs": 128}
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


def tower_tensors(model: Any, n_layer: int) -> Tensors:
    """The parameters of tower and projector by the names that the package gguf has for them."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(n_layer, 3))
    out: Tensors = {}
    for full, p in model.state_dict().items():
        name = full.removeprefix("model.")
        if not name.startswith(("audio_tower.", "multi_modal_projector.")):
            continue
        name = name.replace("multi_modal_projector", "audio.multi_modal_projector")
        array = p.detach().numpy().astype(np.float32)
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        out[known] = array[:, None] if ".conv" in known and name.endswith("bias") else array
    return out


def make(kind: str) -> Any:
    """Voxtral or Qwen2-Audio ("qwen2a")."""
    import transformers

    text = TEXT | {"hidden_size": 32, "max_position_embeddings": 256}
    if kind == "voxtral":
        config = transformers.VoxtralConfig(
            text_config=transformers.LlamaConfig(**text, head_dim=8),
            audio_config=transformers.VoxtralEncoderConfig(
                hidden_size=16, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                num_mel_bins=N_MEL, max_source_positions=POSITIONS,
            ),
            audio_token_id=SOUND, attn_implementation="eager",
        )  # fmt: skip
        return randomised(transformers.VoxtralForConditionalGeneration(config))
    config = transformers.Qwen2AudioConfig(
        text_config=transformers.Qwen2Config(**text),
        audio_config=transformers.Qwen2AudioEncoderConfig(
            d_model=16, encoder_ffn_dim=24, encoder_layers=2, encoder_attention_heads=2,
            num_mel_bins=N_MEL, max_source_positions=POSITIONS,
        ),
        audio_token_index=SOUND, attn_implementation="eager",
    )  # fmt: skip
    return randomised(transformers.Qwen2AudioForConditionalGeneration(config))


def write(model: Any, kind: str, folder: Path) -> tuple[Path, Path]:
    """The files of the text model and the tower."""
    arch = "llama" if kind == "voxtral" else "qwen2"
    keys = keys_of(arch, {
        "context_length": 256, "block_count": 3, "embedding_length": 32,
        "rope.freq_base": 10000.0, "rope.dimension_count": 8,
    })  # fmt: skip
    names, _, types = tokens()
    marks = ("[BEGIN_AUDIO]", "[END]") if kind == "voxtral" else ("<|audio_bos|>", "<|audio_eos|>")
    names[BEGIN], names[END] = marks
    types[[BEGIN, END]] = 3
    keys |= {"tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": types}
    keys["tokenizer.chat_template"] = TEMPLATE
    tensors = text_tensors(model, LAYER)
    for name, array in tensors.items():
        if kind == "voxtral" and ("attn_q." in name or "attn_k." in name):
            tensors[name] = paired(array, 8)
    text = write_model(folder / "text.gguf", keys, tensors)
    meta: dict[str, object] = {
        "general.architecture": "clip", "general.type": "mmproj", "clip.has_audio_encoder": True,
        "clip.projector_type": kind, "clip.audio.projection_dim": 32,
        "clip.audio.embedding_length": 16,
        "clip.audio.feed_forward_length": 64 if kind == "voxtral" else 24,
        "clip.audio.block_count": 2, "clip.audio.attention.head_count": 2,
        "clip.audio.num_mel_bins": N_MEL, "clip.audio.attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    if kind == "voxtral":
        meta["clip.audio.projector.stack_factor"] = 4
    return text, write_model(folder / "mmproj.gguf", meta, tower_tensors(model, 2))


def files(kind: str, folder: Path) -> tuple[Any, Path, Path]:
    """The model of transformers, and the files of text model and tower."""
    model = make(kind)
    return model, *write(model, kind, folder)
