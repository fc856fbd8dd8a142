"""Small models with towers for images: of transformers, with random weights, and as two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.llm.made_models import keys_of
from tests.llm.tiny import tokens, write_model

N_VOCAB = len(tokens()[0])
IMAGE = N_VOCAB - 1
"""The token that stands for a row of an image in transformers."""
TEXT: dict[str, Any] = {
    "vocab_size": N_VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "pad_token_id": None,
}  # fmt: skip
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
GEMMA3 = LAYER | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
GLM = {
    "visual.post_conv_layernorm.": "v.norm_embd.", "visual.post_layernorm.": "v.post_ln.",
    "visual.embeddings.position_embedding.": "v.position_embd.",
    "visual.downsample.": "mm.patch_merger.", "visual.merger.proj.": "mm.model.fc.",
    "visual.merger.post_projection_norm.": "mm.post_norm.", "visual.merger.gate_proj.": "mm.gate.",
    "visual.merger.up_proj.": "mm.up.", "visual.merger.down_proj.": "mm.down.",
}  # fmt: skip
MERGER = GLM | {
    "visual.merger.norm.": "v.post_ln.", "visual.merger.linear_fc1.": "mm.0.",
    "visual.merger.linear_fc2.": "mm.2.",
    "visual.deepstack_merger_list.0.linear_": "v.deepstack.0.",
    "visual.deepstack_merger_list.1.linear_": "v.deepstack.1.",
    "visual.deepstack_merger_list.": "v.deepstack.",
}  # fmt: skip
OUTER = {"embed_tokens": "token_embd", "norm": "output_norm"}
Tensors = dict[str, NDArray[np.float32]]
MEAN, STD = [0.5, 0.4, 0.6], [0.3, 0.2, 0.25]


def randomised(model: Any) -> Any:
    """The model with weights that make a difference."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            n_in = p.numel() // p.shape[0]
            scale = 1.2 / n_in**0.5 if p.dim() > 1 else 0.2
            p.copy_(torch.randn_like(p) * scale + (p.dim() == 1 and "bias" not in name))
    return model.eval()


def text_tensors(model: Any, table: dict[str, str], shift: float = 0.0) -> Tensors:
    """The text model's parameters by their names in a file; `shift` is added to norms."""
    out: Tensors = {}
    for full, p in model.state_dict().items():
        if "language_model." not in full and not full.startswith("lm_head."):
            continue
        stem, _, kind = full.rpartition("language_model.")[2].rpartition(".")
        name = OUTER.get(stem, "output" if stem == "lm_head" else "")
        if stem.startswith("layers."):
            _, number, inner = stem.split(".", 2)
            name = f"blk.{number}.{table[inner]}"
        array = p.detach().numpy().astype(np.float32)
        out[f"{name}.{kind}"] = array + np.float32(shift if "norm" in name else 0)
    return out


def tower_tensors(model: Any, n_layer: int, *, plain: bool = False) -> Tensors:
    """The parameters of tower and projector by the names that the package gguf has for them;
    `plain`, if published checkpoints say `vision_tower.` only."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(n_layer, 3))
    out: Tensors = {}
    for full, p in model.state_dict().items():
        name = full.removeprefix("model.")
        if not name.startswith(("vision_tower.", "multi_modal_projector.", "visual.")):
            continue
        if ".head." in name:  # of another task
            continue
        if ".vision_model." not in name and not plain:  # as published checkpoints say it
            name = name.replace("vision_tower.", "vision_tower.vision_model.")
        name = name.replace("projection_weight", "projection.weight")
        array = p.detach().numpy().astype(np.float32)
        if name.endswith("patch_embed.proj.weight"):  # two frames
            for i, kind in enumerate(("weight", "weight.1")):
                out[f"v.patch_embd.{kind}"] = np.ascontiguousarray(array[:, :, i])
            continue
        parts = {name: array}
        moved = next((old for old in MERGER if name.startswith(old)), None)
        if moved is not None:
            out[name.replace(moved, MERGER[moved])] = array
            continue
        if ".qkv." in name and not any(s in str(model) for s in ("linear_fc1", "Glm4v", "GlmOcr")):
            each = np.split(array, 3)
            parts = {name.replace("qkv", x): y for x, y in zip("qkv", each, strict=True)}
        for part, values in parts.items():
            known = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert known is not None, part
            out[known] = values
    return out


def write_tower(path: Path, kind: str, tensors: Tensors, **keys: object) -> Path:
    """Writes an mmproj file."""
    meta: dict[str, object] = {
        "general.architecture": "clip", "general.type": "mmproj", "clip.has_vision_encoder": True,
        "clip.projector_type": kind, "clip.vision.projection_dim": 16,
        "clip.vision.image_mean": np.array(MEAN, np.float32),
        "clip.vision.image_std": np.array(STD, np.float32),
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
    }  # fmt: skip
    return write_model(path, meta | keys, tensors)


def gemma3(folder: Path) -> tuple[Any, Path, Path]:
    """The model of transformers, and the files of text model and tower."""
    import transformers

    config = transformers.Gemma3Config(
        text_config=TEXT | {
            "head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        vision_config={
            "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 32, "patch_size": 4, "layer_norm_eps": 1e-6,
        },
        mm_tokens_per_image=16, image_token_index=IMAGE, attn_implementation="eager",
    )  # fmt: skip
    model = randomised(transformers.Gemma3ForConditionalGeneration(config))
    keys = keys_of("gemma3", {
        "context_length": 128, "block_count": 3,
        "attention.key_length": 8, "attention.value_length": 8,
        "rope.freq_base": 1000000.0, "rope.dimension_count": 8, "attention.sliding_window": 12,
        "attention.sliding_window_pattern": np.array([True, False, True]),
    })  # fmt: skip
    tensors = text_tensors(model, GEMMA3, shift=1.0)
    tensors.pop("output.weight")
    keys["tokenizer.chat_template"] = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    text = write_model(folder / "gemma3.gguf", keys, tensors)
    rows = tower_tensors(model, 2)
    rows["mm.soft_emb_norm.weight"] += 1
    tower = write_tower(
        folder / "mmproj.gguf", "gemma3", rows,
        **{"clip.use_gelu": True, "clip.vision.image_size": 32, "clip.vision.patch_size": 4,
           "clip.vision.embedding_length": 24, "clip.vision.feed_forward_length": 40,
           "clip.vision.block_count": 2, "clip.vision.attention.head_count": 2,
           "clip.vision.projector.scale_factor": 2},
    )  # fmt: skip
    return model, text, tower


def qwen(folder: Path, kind: str) -> tuple[Any, Path, Path]:
    """Qwen2-VL, Qwen2.5-VL, whose windows have 2 by 2 rows, or Qwen3-VL; as `gemma3`."""
    import transformers

    rope = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 1, 1]}
    text = TEXT | {"hidden_size": 32, "head_dim": 8, "rope_parameters": rope}
    ids = {"image_token_id": IMAGE, "video_token_id": IMAGE - 1, "vision_start_token_id": IMAGE - 2,
           "vision_end_token_id": IMAGE - 3, "attn_implementation": "eager"}  # fmt: skip
    shape = {"depth": 4, "num_heads": 2, "patch_size": 28}
    if kind == "qwen3vl":
        text["rope_parameters"] = rope | {"mrope_interleaved": True}
        config = transformers.Qwen3VLConfig(text_config=text, vision_config=shape | {
            "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24,
            "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 1],
        }, **ids)  # fmt: skip
        model = randomised(transformers.Qwen3VLForConditionalGeneration(config))
    elif kind == "qwen2.5vl":
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=shape | {
            "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24,
            "fullatt_block_indexes": [1, 3],
        }, **ids)  # fmt: skip
        model = randomised(transformers.Qwen2_5_VLForConditionalGeneration(config))
    else:
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=shape | {
            "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2,
        }, **ids)  # fmt: skip
        model = randomised(transformers.Qwen2VLForConditionalGeneration(config))
    third = kind == "qwen3vl"
    deep: dict[str, object] = {"n_deepstack_layers": 2} if third else {}
    keys = keys_of("qwen3vl" if third else "qwen2vl", deep | {
        "attention.key_length": 8, "attention.value_length": 8,
        "context_length": 128, "block_count": 3, "embedding_length": 32, "rope.freq_base": 1000.0,
        "rope.dimension_sections": np.array([2, 1, 1, 0], np.int32), "rope.dimension_count": 8,
    })  # fmt: skip
    norms = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
    path = write_model(folder / "text.gguf", keys, text_tensors(model, LAYER | norms))
    tower = write_tower(
        folder / "mmproj.gguf", f"{kind}_merger", tower_tensors(model, 4),
        **{"clip.use_silu": kind == "qwen2.5vl", "clip.use_gelu": third,
           "clip.vision.image_size": 5 * 28 if third else 560, "clip.vision.patch_size": 28,
           "clip.vision.embedding_length": 16, "clip.vision.feed_forward_length": 24,
           "clip.vision.block_count": 4, "clip.vision.attention.head_count": 2,
           "clip.vision.projection_dim": 32}
        | ({"clip.vision.n_wa_pattern": 2} if kind == "qwen2.5vl" else {})
        | ({"clip.vision.is_deepstack_layers": np.array([1, 1, 0, 0], np.bool_)} if third else {}),
    )  # fmt: skip
    return model, path, tower


F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "drafting": None, "n_ctx": 64}
BEFORE, BEHIND = [5, 90, 17, 201, 8], [33, 71, 2, 19]


def picture(seed: int = 0, height: int = 32, width: int = 32) -> NDArray[np.uint8]:
    """A random image."""
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def pixel_values(pixels: NDArray[np.uint8]) -> Any:
    """An image as transformers takes it."""
    import torch

    scaled = (pixels.astype(np.float32) / 255 - MEAN) / STD
    return torch.tensor(scaled.astype(np.float32)).permute(2, 0, 1)[None]


def close(got: NDArray[np.float32], want: Any) -> None:
    """Fails unless both are the same but for rounding."""
    want = want.detach().numpy()
    assert want.std() > 0.1
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
