"""The towers of dots.3 Note beside transformers', from a folder as it is published and from the
file that it converts to: rows of images and of sounds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.compiler import lower_plan, resolve_devices
from weft.errors import FormatError
from weft.execute import Session
from weft.frontends.hf.convert import convert_folder
from weft.llm import SoundTower, Tower
from weft.llm.vision import dotsocr

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm.heard_models import heard
from tests.llm.sounds import sound
from tests.llm.vision_models import MEAN, STD, close, picture, randomised

N_OUT, N_MEL = 20, 20
SIZES: list[dict[str, Any]] = [
    {"width": 16, "heads": 2, "experts": [-1, 4, 3], "used": 2, "patch": 4, "layers": 2, "ff": 24},
    {"width": 24, "heads": 2, "experts": [2, 0], "used": 1, "patch": 3, "layers": 1, "ff": 40},
]
PUBLISHED = [
    (r"^v(.*)blocks\.(\d+)\.norm(\d)", r"v\1blocks.\2.norm_\3"),
    (r"^v(.*)encoder\.norm", r"v\1encoder.post_trunk_norm"),
    (r"\.merger\.", ".adapter."),
    (r"gate_proj", "fc1"),
    (r"mlp\.down_proj", "mlp.fc2"),
    (r"up_proj", "fc3"),
    (r"mlp\.gate\.weight", "mlp.gate_weight"),
    (r"e_score_correction_bias", "router_bias"),
    (r"^audio_encoder\.adapter\.norm", "audio_encoder.audio_adapter.proj.0"),
    (r"^audio_encoder\.adapter\.fc1", "audio_encoder.audio_adapter.proj.1"),
    (r"^audio_encoder\.adapter\.fc2", "audio_encoder.audio_adapter.proj.3"),
    (
        r"^audio_encoder\.(conv_stem|layers|layer_norm)",
        r"audio_encoder.dots_encoder.speech_encoder.\1",
    ),
    (r"conv_stem\.convs\.0", "conv2d1"),
    (r"conv_stem\.convs\.1", "conv2d2"),
    (r"conv_stem\.convs\.2", "conv2d3"),
    (r"conv_stem\.", ""),
    (r"self_attn\.o_proj", "self_attn.out_proj"),
    (r"input_layernorm", "self_attn_layer_norm"),
    (r"post_attention_layernorm", "final_layer_norm"),
    (r"mlp\.gate_fc3", "fc1"),
    (r"(speech_encoder.*)mlp\.fc2", r"\1fc2"),
]
"""Names of tensors in transformers and in published folders, changed one after another."""


def published(name: str, values: Any) -> dict[str, Any]:
    """The tensors of a folder for one of transformers."""
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        at = name.rpartition(".")[0]
        out = {}
        for i, matrix in enumerate(values):
            parts = matrix.chunk(2) if "gate_up" in name else (matrix,)
            names = ("fc1", "fc3") if len(parts) == 2 else ("fc2",)
            for part, new in zip(parts, names, strict=True):
                out[f"{at}.{i}.{new}.weight"] = part.clone()
        return out
    for old, new in PUBLISHED:
        name = re.sub(old, new, name)
    return {name: values.clone()}


def make(folder: Path, size: dict[str, Any]) -> tuple[Any, Any]:
    """The towers of transformers for images and sound, saved in the folder."""
    import torch
    import transformers
    from safetensors.torch import save_file

    seen = {
        "embed_dim": size["width"], "hidden_size": N_OUT, "intermediate_size": size["ff"],
        "num_hidden_layers": len(size["experts"]), "num_attention_heads": size["heads"],
        "patch_size": size["patch"], "moe_intermediate_size": 12, "spatial_merge_size": 2,
        "rms_norm_eps": 1e-5, "pyramid_num_routed": size["experts"],
        "capacity_factor": size["used"], "adapter_type": "patch_merger", "pre_pixel_shuffle": True,
        "use_qk_norm": True,
    }  # fmt: skip
    whisper = {
        "d_model": size["width"], "encoder_attention_heads": size["heads"],
        "encoder_layers": size["layers"], "encoder_ffn_dim": size["ff"], "num_mel_bins": N_MEL,
        "activation_function": "swiglu",
    }  # fmt: skip
    rope = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 10000.0}
    both = {"adapter_out_dim": N_OUT, "attn_implementation": "eager"}
    vision = randomised(transformers.models.dots3_note.modeling_dots3_note.Dots3NoteVisionModel(
        transformers.models.dots3_note.Dots3NoteVisionConfig(
            **seen, **both, adapter_in_dim=size["width"]
        )
    ))  # fmt: skip
    for name, buffer in vision.named_buffers():
        if name.endswith("correction_bias"):
            buffer.copy_(torch.randn_like(buffer) / 4)
    audio = randomised(transformers.models.dots3_note.modeling_dots3_note.Dots3NoteAudioModel(
        transformers.models.dots3_note.Dots3NoteAudioConfig(
            whisper_config=whisper, downsample_hidden_size=6, adapter_input_size=size["width"],
            rope_parameters=rope, **both,
        )
    ))  # fmt: skip
    tensors: dict[str, Any] = {}
    for start, model in (("vision_encoder.", vision), ("audio_encoder.", audio)):
        for name, values in model.state_dict().items():
            tensors |= published(start + name, values)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["Dots3NoteForConditionalGeneration"], "hidden_size": N_OUT,
        "num_hidden_layers": 1, "num_attention_heads": 2, "vision_config": seen,
        "audio_config": {
            "whisper_config": whisper, "use_conv2d_stem": True, "use_rope": True,
            "use_rms_norm": True, "chunk_seconds": 60, "rope_parameters": rope,
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    pixels = {"image_mean": MEAN, "image_std": STD, "min_pixels": 64, "max_pixels": 4096}
    (folder / "preprocessor_config.json").write_text(json.dumps({"vision_config": pixels}))
    return vision, audio


@pytest.fixture(scope="module", params=range(len(SIZES)))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The towers of transformers, the folder, and the file that it converts to."""
    folder = tmp_path_factory.mktemp("dots3")
    towers = make(folder, SIZES[request.param])
    convert_folder(folder, folder / "f32.gguf", "f32", mmproj=True)
    return *towers, folder, folder / "f32.gguf"


@pytest.mark.parametrize("shape", [(2, 5), (4, 1)])
def test_rows_of_images(made: Any, shape: tuple[int, int]) -> None:
    """Layers with experts, more and fewer, and without; queries and keys are normed."""
    import torch

    model, _, folder, file = made
    for tower in (Tower(folder), Tower(file)):
        p = tower.config.patch_size
        pixels = picture(1, *(side * 2 * p for side in shape))
        values = tower.family.values(tower.config, pixels)
        session = Session(lower_plan(tower.planned(resolve_devices(("cpu",)))))
        rows = session.run(values)["rows"]
        grid = torch.tensor([[1, 2 * shape[0], 2 * shape[1]]])
        patches = torch.tensor(np.asarray(values["patches"]))
        close(rows, model(patches, grid).pooler_output)


@pytest.mark.parametrize("n", [100, 1281, 5000, 33333, 960000 + 1400])
def test_rows_of_sounds(made: Any, n: int) -> None:
    """A last row without a frame, and more than a minute."""
    import transformers

    _, model, folder, file = made
    extractor = transformers.models.dots3_note.Dots3NoteFeatureExtractor(feature_size=N_MEL)
    samples = sound(n, n)
    seen = extractor(samples, sampling_rate=16000)
    want = model(seen["input_features"], seen["chunk_sample_lengths"]).pooler_output
    for tower in (SoundTower(folder), SoundTower(file)):
        close(heard(tower, samples), want)
        if n > 33333:
            break


def test_a_file_that_does_not_say_how_many_experts_are_used(made: Any) -> None:
    with pytest.raises(FormatError, match=r"no clip\.vision\.expert_used_count"):
        list(dotsocr.rows(replace(Tower(made[3]).config, n_used=0)))


def test_what_is_refused(tmp_path: Path) -> None:
    """Settings that files cannot state, and experts that are missing."""
    make(tmp_path, SIZES[1])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for part, key, value in (
        ("vision_config", "router_scale", 2.0), ("vision_config", "use_qk_norm", False),
        ("audio_config", "use_causal", True), ("audio_config", "chunk_seconds", 30),
    ):  # fmt: skip
        path.write_text(json.dumps(config | {part: config[part] | {key: value}}))
        with pytest.raises(FormatError, match=f"{part}.{key}' is {value}"):
            Tower(tmp_path)
    path.write_text(json.dumps(config))
    from safetensors.numpy import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: values for name, values in tensors.items() if ".experts.0.fc2" not in name},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(FormatError, match=r"experts\.fc2\.weight are not all there"):
        Tower(tmp_path)
