"""Folders of models that cut images into LLaVA 1.6's tiles, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from tests.llm import hf_folders
from tests.llm.vision_folders import IMAGE, saved

SIDE = 24
"""Pixels of a side of a tile."""
SHAPES = [[24, 48], [48, 24], [48, 48], [72, 24], [24, 72]]
TEXT = hf_folders.SHAPE | {"max_position_embeddings": 256}
_TOWER = {"image_size": SIDE, "num_hidden_layers": 3}
_SIGLIP = _TOWER | {"model_type": "siglip_vision_model", "intermediate_size": 56}
_GRANITE = TEXT | {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}
NEXT: dict[str, dict[str, Any]] = {
    "clip": {
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": _TOWER | {
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 40,
            "num_attention_heads": 2, "patch_size": 6, "projection_dim": 32,
        },
    },
    "siglip": {
        "text_config": _GRANITE | {"model_type": "granite"},
        "vision_config": _SIGLIP | {
            "hidden_size": 48, "num_attention_heads": 3, "patch_size": 8,
        },
        "vision_feature_layer": [-1, 1, -3, 0], "vision_feature_select_strategy": "full",
    },
}  # fmt: skip
"""Settings of LLaVA-NeXT by the kind of tower: LLaVA 1.6's, and Granite Vision 3's with layers out
of order."""


def llava_next(kind: str, folder: Path) -> Any:
    """LLaVA-NeXT, whose tiles are 24 pixels each side."""
    config = transformers.LlavaNextConfig(
        **NEXT[kind], image_grid_pinpoints=SHAPES, image_token_index=IMAGE,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlavaNextForConditionalGeneration(config)
    size = {"height": SIDE, "width": SIDE}
    return saved(
        model, folder, "llama3" if kind == "clip" else "gpt2", size=size, crop_size=size,
        image_grid_pinpoints=SHAPES,
    )  # fmt: skip


GRANITE4: dict[str, dict[str, Any]] = {
    "halves": {
        "vision_config": _SIGLIP | {"hidden_size": 64, "num_attention_heads": 2, "patch_size": 3},
        "text_config": _GRANITE | {"num_hidden_layers": 7},
        "downsample_rate": "2/4", "deepstack_layer_map": [[-2, 2], [-1, 0]],
        "spatial_vision_layer": 1, "spatial_target_layers": [1, 4, 3, 6],
    },
    "thirds": {
        "vision_config": _SIGLIP | {"hidden_size": 128, "num_attention_heads": 4, "patch_size": 6},
        "text_config": _GRANITE | {"num_hidden_layers": 3}, "downsample_rate": "3/4",
        "deepstack_layer_map": [[1, 2], [-1, 0]], "spatial_target_layers": [],
    },
}  # fmt: skip
"""Settings of Granite 4 Vision: windows of 4 patches with 2 or 3 queries each side."""


def granite4(kind: str, folder: Path) -> Any:
    """Granite 4 Vision, whose tiles are 24 pixels each side."""
    config = transformers.Granite4VisionConfig(
        **GRANITE4[kind], image_grid_pinpoints=SHAPES, image_token_index=IMAGE,
        vision_feature_select_strategy="full",
        qformer_config={"model_type": "blip_2_qformer", "intermediate_size": 72,
                        "num_hidden_layers": 1, "cross_attention_frequency": 1,
                        "use_qformer_text_input": False},
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Granite4VisionForConditionalGeneration(config)
    size = {"height": SIDE, "width": SIDE}
    return saved(model, folder, "gpt2", size=size, crop_size=size, image_grid_pinpoints=SHAPES)
