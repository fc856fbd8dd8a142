"""Small models that hear, of transformers, with random weights, and what their towers compute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.llm.vision_models import TEXT, randomised
from weft.compiler import lower_plan, resolve_devices
from weft.execute import Session
from weft.llm import SoundTower

N_MEL = 16
SIZES: list[dict[str, int]] = [
    {"d": 16, "ff": 24, "layers": 2, "heads": 2},
    {"d": 24, "ff": 40, "layers": 1, "heads": 4},
]
"""Width, width of feed-forward layers, number of layers and heads of encoders."""
_TEXT = TEXT | {"vocab_size": 400, "hidden_size": 32, "max_position_embeddings": 256, "head_dim": 8}


class Kind(NamedTuple):
    """A kind of model."""

    make: Callable[[dict[str, int]], Any]
    """The model of transformers with an encoder of these sizes."""
    rows: Callable[[Any, NDArray[np.float32]], Any]
    """The rows of a sound in transformers, [n, n_embd]."""
    lengths: tuple[int, ...]
    """Numbers of samples of sounds."""
    seen: Callable[[NDArray[np.float32]], Any] = lambda samples: {}
    """What the feature extractor of transformers makes of a sound."""
    tower: str = ""
    """The tower's `clip.projector_type`, if it is not the name of the kind."""


def heard(tower: SoundTower, samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows that a tower of weft makes of a sound."""
    session = Session(lower_plan(tower.planned(resolve_devices(("cpu",)))))
    parts = tower.family.parts(tower.config, samples)
    rows = np.concatenate([np.array(session.run(values)["rows"])[:n] for values, n in parts])
    assert len(rows) == tower.family.n_rows(tower.config, len(samples))
    return rows


def whisper_config(size: dict[str, int], **more: int) -> dict[str, Any]:
    """The sizes of an encoder like Whisper's."""
    return {
        "d_model": size["d"], "encoder_ffn_dim": size["ff"], "encoder_layers": size["layers"],
        "encoder_attention_heads": size["heads"], "num_mel_bins": N_MEL, **more,
    }  # fmt: skip


def _qwen3_asr(size: dict[str, int]) -> Any:
    import transformers

    config = transformers.Qwen3ASRConfig(
        audio_config=transformers.Qwen3ASREncoderConfig(
            **whisper_config(size, downsample_hidden_size=6, output_dim=32)
        ),
        text_config=transformers.Qwen3Config(**_TEXT),
        pad_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )
    return randomised(transformers.Qwen3ASRForConditionalGeneration(config))


def _qwen3_asr_seen(samples: NDArray[np.float32]) -> Any:
    import transformers

    extractor = transformers.Qwen3ASRFeatureExtractor(feature_size=N_MEL)
    seen = extractor(samples, sampling_rate=16000, padding=True, return_attention_mask=True)
    return {
        "input_features": seen["input_features"],
        "input_features_mask": seen["attention_mask"],
    }


def _qwen3_asr_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    return model.model.get_audio_features(**_qwen3_asr_seen(samples)).pooler_output


def _qwen3_omni(size: dict[str, int]) -> Any:
    import transformers

    config = transformers.Qwen3OmniMoeThinkerConfig(
        audio_config=whisper_config(
            size, downsample_hidden_size=6, output_dim=32, n_window=50, n_window_infer=800
        ),
        vision_config={
            "hidden_size": 16, "intermediate_size": 24, "depth": 2, "num_heads": 2,
            "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": 32, "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        text_config=_TEXT | {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]},
        },
        attn_implementation="eager",
    )  # fmt: skip
    return randomised(transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config))


def _qwen3_omni_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    import transformers

    extractor = transformers.WhisperFeatureExtractor(feature_size=N_MEL)
    seen = extractor(
        samples, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True,
        return_tensors="pt",
    )  # fmt: skip
    mask = seen["attention_mask"]
    return model.get_audio_features(seen["input_features"], mask).last_hidden_state


def _gemma4(size: dict[str, int]) -> Any:
    import transformers

    from tests.llm.hf_folders import MODELS

    config = transformers.Gemma4Config(
        audio_config={
            "hidden_size": size["d"], "num_hidden_layers": size["layers"],
            "num_attention_heads": size["heads"], "subsampling_conv_channels": [128, 6],
            "output_proj_dims": 20,
        },
        vision_config={
            "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1,
            "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8, "patch_size": 4,
            "position_embedding_size": 64,
        },
        text_config=MODELS["gemma4"][1] | {"pad_token_id": 0}, attn_implementation="eager",
    )  # fmt: skip
    model = randomised(transformers.Gemma4ForConditionalGeneration(config))
    for key, value in model.named_buffers():
        if "audio" in key and key.endswith(("_min", "_max")):
            value.fill_(2.5 if key.endswith("max") else -2.2)
    return model


def _gemma4_seen(samples: NDArray[np.float32]) -> Any:
    import transformers

    return transformers.Gemma4AudioFeatureExtractor()([samples], return_tensors="pt")


def _gemma4_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    import torch

    with torch.no_grad():
        out = model.model.get_audio_features(**_gemma4_seen(samples))
    return out.pooler_output[out.attention_mask]


def _gemma4_unified(size: dict[str, int]) -> Any:
    import transformers

    from tests.llm.hf_folders import MODELS

    config = transformers.Gemma4UnifiedConfig(
        audio_config={"audio_embed_dim": 40 * size["heads"]},
        vision_config={
            "patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 24, "mm_posemb_size": 16,
            "output_proj_dims": 24,
        },
        text_config=MODELS["gemma4"][1] | {"pad_token_id": 0}, attn_implementation="eager",
    )  # fmt: skip
    return randomised(transformers.Gemma4UnifiedForConditionalGeneration(config))


def _gemma4_unified_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    import torch

    n = model.config.audio_config.audio_embed_dim
    seen = np.pad(samples, (0, -len(samples) % n)).reshape(1, -1, n)
    return model.model.get_audio_features(torch.tensor(seen)).pooler_output[0]


class Lfm2Audio:
    """LFM2-Audio's tower, which transformers lacks: Parakeet's encoder, and an adapter."""

    def __init__(self, size: dict[str, int]) -> None:
        import torch
        import transformers

        self.size = size
        config = transformers.ParakeetEncoderConfig(
            hidden_size=size["d"], intermediate_size=size["ff"], conv_kernel_size=9,
            num_hidden_layers=size["layers"], num_attention_heads=size["heads"],
            subsampling_conv_channels=6, num_mel_bins=N_MEL, scale_input=False,
        )  # fmt: skip
        self.encoder = randomised(transformers.ParakeetEncoder(config))
        for name, value in self.encoder.named_buffers():
            if name.endswith("running_var"):
                value.copy_(torch.rand_like(value) + 0.5)
            elif name.endswith("running_mean"):
                value.copy_(torch.randn_like(value))
        nn = torch.nn
        self.adapter = randomised(nn.Sequential(
            nn.LayerNorm(size["d"]), nn.Linear(size["d"], 20), nn.GELU(), nn.Linear(20, 32)
        ))  # fmt: skip

    def save_pretrained(self, folder: Path) -> None:
        """Saves the folder as it is published, with a tensor of each part that is not the tower."""
        import torch
        from safetensors.torch import save_file

        size = self.size
        encoder = {"d_model": size["d"], "n_layers": size["layers"], "n_heads": size["heads"],
                   "feat_in": N_MEL, "subsampling_factor": 8}  # fmt: skip
        text = {"architectures": ["Lfm2ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 4}  # fmt: skip
        config = {"architectures": ["Lfm2AudioForConditionalGeneration"], "lfm": text,
                  "encoder": encoder}  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {"lfm.embed_tokens.weight": torch.zeros(4, 32),
                   "depthformer.layers.0.operator.weight": torch.zeros(4),
                   "audio_embedding.embedding.weight": torch.zeros(12, 32),
                   "audio_embedding.embedding_norm.weight": torch.zeros(32),
                   "audio_embedding.to_logits.weight": torch.zeros(12, 32)}  # fmt: skip
        renamed = {
            "subsampling.layers.": "pre_encode.conv.", "subsampling.linear.": "pre_encode.out.",
            "relative_k_proj": "linear_pos", "bias_u": "pos_bias_u", "bias_v": "pos_bias_v",
            "o_proj": "linear_out", "q_proj": "linear_q", "k_proj": "linear_k",
            "v_proj": "linear_v", ".conv.norm.": ".conv.batch_norm.",
        }  # fmt: skip
        for name, value in self.encoder.state_dict().items():
            for old, new in renamed.items():
                name = name.replace(old, new)
            tensors[f"conformer.{name}"] = value.clone()
        for name, value in self.adapter.state_dict().items():
            tensors[f"audio_adapter.model.{name}"] = value.clone()
        save_file(tensors, folder / "model.safetensors")


def _lfm2_rows(model: Lfm2Audio, samples: NDArray[np.float32]) -> Any:
    import transformers

    extractor = transformers.ParakeetFeatureExtractor(feature_size=N_MEL)
    seen = extractor(samples, sampling_rate=16000, return_tensors="pt")
    out = model.encoder(**seen)
    return model.adapter(out.last_hidden_state[0, : int(out.attention_mask.sum())])


POSITIONS = 1500


def _flamingo(size: dict[str, int]) -> Any:
    import transformers

    config = transformers.AudioFlamingo3Config(
        audio_config=transformers.AudioFlamingo3EncoderConfig(
            hidden_size=size["d"], intermediate_size=size["ff"], num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"], num_mel_bins=N_MEL, max_source_positions=POSITIONS,
        ),
        text_config=transformers.Qwen2Config(**_TEXT), attn_implementation="eager",
    )  # fmt: skip
    return randomised(transformers.AudioFlamingo3ForConditionalGeneration(config))


def _whisper_seen(samples: NDArray[np.float32], seconds: int = 30) -> Any:
    import transformers

    extractor = transformers.WhisperFeatureExtractor(feature_size=N_MEL, chunk_length=seconds)
    return extractor(samples, sampling_rate=16000, return_attention_mask=True, return_tensors="pt")


def _flamingo_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    import torch

    parts = [samples[at : at + 480000] for at in range(0, len(samples), 480000)]
    rows = []
    for part in parts:
        seen = _whisper_seen(part)
        out = model.model.get_audio_features(seen["input_features"], seen["attention_mask"])
        rows.append(out.pooler_output)
    return torch.cat(rows)


def _qwen25_omni(size: dict[str, int]) -> Any:
    import transformers

    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config=whisper_config(size, output_dim=32, n_window=100),
        vision_config={
            "hidden_size": 16, "intermediate_size": 24, "depth": 2, "num_heads": 2,
            "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 16,
        },
        text_config=_TEXT | {
            "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]},
        },
        attn_implementation="eager",
    )  # fmt: skip
    return randomised(transformers.Qwen2_5OmniThinkerForConditionalGeneration(config))


def _qwen25_omni_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    seen = _whisper_seen(samples, 300)
    out = model.get_audio_features(seen["input_features"], seen["attention_mask"])
    return out.last_hidden_state


def _granite(size: dict[str, int]) -> Any:
    import torch
    import transformers

    config = transformers.GraniteSpeechConfig(
        encoder_config={
            "hidden_dim": size["d"], "num_layers": 2 * size["layers"], "num_heads": size["heads"],
            "input_dim": 2 * N_MEL, "context_size": 12, "max_pos_emb": 14,
            "conv_kernel_size": 5 if size["layers"] == 2 else 3, "feedforward_mult": 2,
        },
        projector_config={
            "model_type": "blip_2_qformer", "hidden_size": size["d"], "num_hidden_layers": 2,
            "num_attention_heads": size["heads"], "intermediate_size": size["ff"],
            "encoder_hidden_size": size["d"], "cross_attention_frequency": 1,
        },
        text_config={"model_type": "granite", **_TEXT}, downsample_rate=3, window_size=9,
        has_lora_adapter=False, attn_implementation="eager",
    )  # fmt: skip
    model = randomised(transformers.GraniteSpeechForConditionalGeneration(config))
    for name, value in model.named_buffers():
        if name.endswith("running_var"):
            value.copy_(torch.rand_like(value) + 0.5)
        elif name.endswith("running_mean"):
            value.copy_(torch.randn_like(value))
    return model


def _granite_seen(samples: NDArray[np.float32]) -> Any:
    import torch

    from weft.llm.audio.granite import log_mel

    return {"input_features": torch.tensor(log_mel(samples, N_MEL))[None]}


def _granite_rows(model: Any, samples: NDArray[np.float32]) -> Any:
    import torch

    with torch.no_grad():
        return model.get_audio_features(**_granite_seen(samples)).pooler_output[0]


class Ultravox:
    """Ultravox, which transformers lacks: Whisper's encoder, a projector, and a model of text.

    One of a single layer is as most are published: only the tower, with the names of others."""

    def __init__(self, size: dict[str, int]) -> None:
        import torch
        import transformers

        self.alone = size["layers"] == 1
        self.stack, wide = (3, 128) if self.alone else (8, size["d"])
        heads = 2 if self.alone else size["heads"]
        self.config = transformers.WhisperConfig(
            **whisper_config(size | {"d": wide, "heads": heads}), attn_implementation="eager",
            max_source_positions=50 if self.alone else 20,
        )  # fmt: skip
        self.encoder = randomised(transformers.models.whisper.modeling_whisper.WhisperEncoder(
            self.config
        ))  # fmt: skip
        nn = torch.nn
        self.projector = randomised(nn.ModuleDict({
            "ln_pre": nn.RMSNorm(wide * self.stack, eps=1e-6),
            "linear_1": nn.Linear(wide * self.stack, 44, bias=False),
            "ln_mid": nn.RMSNorm(22, eps=1e-6), "linear_2": nn.Linear(22, 32, bias=False),
        }))  # fmt: skip
        self.model = randomised(transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**_TEXT, attn_implementation="eager")
        ))  # fmt: skip

    def save_pretrained(self, folder: Path) -> None:
        """Saves the folder."""
        from safetensors.torch import save_file

        config: dict[str, Any] = {
            "architectures": ["UltravoxModel"], "model_type": "ultravox", "hidden_size": 44,
            "projector_act": "swiglu", "projector_ln_mid": True, "stack_factor": self.stack,
        }  # fmt: skip
        parts = {"audio_tower.": self.encoder, "multi_modal_projector.": self.projector}
        if self.alone:
            config |= {"audio_model_id": "openai/whisper-tiny", "text_model_id": "a text"}
        else:
            config["audio_config"] = self.config.to_dict()
            config["text_config"] = self.model.config.to_dict()
            parts["language_model."] = self.model
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {start + name: value.clone() for start, part in parts.items()
                   for name, value in part.state_dict().items()}  # fmt: skip
        save_file(tensors, folder / "model.safetensors")

    def encoded(self, mel: Any, n: int) -> Any:
        """The rows of frames [n_mel, n_frames], of which the first n are heard."""
        import torch

        gelu = torch.nn.functional.gelu
        x = gelu(self.encoder.conv2(gelu(self.encoder.conv1(mel[None])))).transpose(1, 2)
        x = x + self.encoder.embed_positions.weight[: x.shape[1]]
        mask = torch.zeros(1, 1, 1, x.shape[1])
        mask[..., (n - 1) // 2 + 1 :] = -torch.inf
        for layer in self.encoder.layers:
            x = layer(x, mask)
            x = x[0] if isinstance(x, tuple) else x
        return self.encoder.layer_norm(x)[0]

    def rows(self, samples: NDArray[np.float32]) -> Any:
        """The rows of a sound."""
        import torch
        import transformers

        pad, p = torch.nn.functional.pad, self.projector
        extractor = transformers.WhisperFeatureExtractor(feature_size=N_MEL)
        seen = extractor(
            np.pad(samples, (0, max(320 - len(samples), 0))), sampling_rate=16000,
            padding="longest", pad_to_multiple_of=160, truncation=False, return_tensors="pt",
        )  # fmt: skip
        mel, context = seen["input_features"][0], 2 * self.config.max_source_positions
        out = []
        for at in range(0, mel.shape[1], context):
            part = mel[:, at : at + context]
            n = part.shape[1]
            x = self.encoded(pad(part, (0, context - n)) if at else part, n)
            x = pad(x, (0, 0, 0, -len(x) % self.stack)).reshape(-1, self.stack * x.shape[1])
            first, gate = p["linear_1"](p["ln_pre"](x)).chunk(2, dim=-1)
            x = p["linear_2"](p["ln_mid"](torch.nn.functional.silu(gate) * first))
            out.append(x[: -(-n // (2 * self.stack))])
        return torch.cat(out)

    def __call__(self, input_ids: Any, samples: NDArray[np.float32]) -> Any:
        x = self.model.get_input_embeddings()(input_ids)
        x[input_ids == self.config.audio_token_id] = self.rows(samples)
        return self.model(inputs_embeds=x)


KINDS = {
    "qwen3a": Kind(_qwen3_asr, _qwen3_asr_rows, (7000, 16000, 33333, 150001), _qwen3_asr_seen),
    "qwen3-omni": Kind(_qwen3_omni, _qwen3_omni_rows, (33333,), tower="qwen3a"),
    "musicflamingo": Kind(_flamingo, _flamingo_rows, (16161, 490000)),
    "qwen2.5o": Kind(_qwen25_omni, _qwen25_omni_rows, (16161, 33333, 480700)),
    "granite_speech": Kind(_granite, _granite_rows, (2000, 11520, 33333), _granite_seen),
    "ultravox": Kind(
        Ultravox,
        lambda model, samples: model.rows(samples),
        (100, 3000, 6400, 7200, 12640, 17777),
        lambda samples: {"samples": samples},
    ),
    "lfm2a": Kind(Lfm2Audio, _lfm2_rows, (2560, 8000, 33333)),
    "gemma4a": Kind(_gemma4, _gemma4_rows, (1600, 8000, 16161, 33333), _gemma4_seen),
    "gemma4ua": Kind(_gemma4_unified, _gemma4_unified_rows, (100, 33333)),
}
