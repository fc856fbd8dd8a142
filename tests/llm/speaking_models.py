"""Tiny models of Pocket TTS with random weights, as folders of transformers and as their makers
publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.llm.vision_models import randomised

TEXT = "the quick brown fox jumps over the lazy dog. now, then; so it was!"
PIECES = (".", "!", "?", "...", ",", ";", ":")
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "small": (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 48, "latent_dim": 6},
        {"hidden_size": 16, "num_hidden_layers": 2, "frequency_embedding_size": 8},
        {"hidden_size": 32, "num_filters": 4, "upsampling_ratios": [3, 2], "latent_stride": 4,
         "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
         "intermediate_size": 40, "sliding_window": 10, "upsample_groups": 32},
    ),
    "large": (
        {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3,
         "intermediate_size": 64, "latent_dim": 8, "rope_parameters":
         {"rope_type": "default", "rope_theta": 5000.0}},
        {"hidden_size": 24, "num_hidden_layers": 1, "frequency_embedding_size": 16,
         "max_period": 1000.0},
        {"hidden_size": 48, "num_filters": 6, "upsampling_ratios": [4, 2, 3], "latent_stride": 2,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
         "intermediate_size": 56, "sliding_window": 250, "upsample_groups": 48, "kernel_size": 5},
    ),
    "published": (  # heads and strides are the ones that all published models have
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1,
         "intermediate_size": 48, "latent_dim": 4},
        {"hidden_size": 16, "num_hidden_layers": 1, "frequency_embedding_size": 8},
        {"hidden_size": 64, "num_filters": 2, "num_hidden_layers": 1, "num_attention_heads": 1,
         "num_key_value_heads": 1, "intermediate_size": 40, "upsample_groups": 64,
         "sampling_rate": 24000},
    ),
}  # fmt: skip
"""Sizes of the text model, the flow head and the codec."""


def save_tokenizer(folder: Path) -> int:
    """Unigrams of letters and a few words; returns their number."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [f"{chr(i)}" for i in range(33, 127) if chr(i) not in PIECES]
    words = ["\u2581the", "\u2581fox", "\u2581", "er", "ow"]
    scored = [("<unk>", 0.0)] + [(p, -3.0) for p in PIECES] + [(w, -2.0) for w in words]
    scored += [(letter, -5.0 - 0.01 * i) for i, letter in enumerate(letters)]
    made = Tokenizer(models.Unigram(scored, unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace()
    made.save(str(folder / "tokenizer.json"))
    settings = {"unk_token": "<unk>", "tokenizer_class": "TokenizersBackend"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(scored)


def make(folder: Path, kind: str = "small", *, flow: str = "lsd") -> tuple[Any, Any]:
    """The model and its codec; they are saved in the folder and beside it."""
    import torch
    import transformers

    own, head, codec = KINDS[kind]
    folder.mkdir(exist_ok=True)
    n = save_tokenizer(folder)
    ids = ("audio_prompt", "audio_latent", "audio_prompt_bos", "audio_bos")
    special = {f"{name}_token_id": n + i for i, name in enumerate(ids)}
    head = head | {"latent_dim": own["latent_dim"], "condition_dim": own["hidden_size"]}
    made = transformers.PocketTTSAudioTokenizerConfig(
        latent_dim=own["latent_dim"], **{"sampling_rate": 1000} | codec
    )
    config = transformers.PocketTTSConfig(
        vocab_size=n + len(ids), flow_head_config=head | {"flow_type": flow}, pad_token_id=0,
        frame_rate=made.frame_rate, **special, **own,
    )  # fmt: skip
    model = randomised(transformers.PocketTTSForConditionalGeneration(config))
    with torch.no_grad():
        model.latent_mean.copy_(torch.randn_like(model.latent_mean))
        model.latent_std.copy_(torch.rand_like(model.latent_std) + 0.5)
    voice = randomised(transformers.PocketTTSAudioTokenizerModel(made))
    model.save_pretrained(folder)
    at = folder.parent / f"{folder.name}-codec"
    voice.save_pretrained(at)
    told = {"audio_tokenizer": {"audio_tokenizer_name_or_path": f"someone/{at.name}"}}
    (folder / "processor_config.json").write_text(json.dumps(told))
    return model, voice


def _original(model: Any, codec: Any) -> dict[str, Any]:
    """The tensors as the makers call them, with queries, keys and values in one."""
    import torch

    def adjacent(w: Any, d: int) -> Any:
        return w.reshape(-1, 2, d // 2, w.shape[1]).transpose(1, 2).reshape(w.shape)

    out: dict[str, Any] = {}

    def block(state: dict[str, Any], start: str, new: str, d: int) -> None:
        q, k, v = (state[f"{start}self_attn.{name}_proj.weight"] for name in "qkv")
        out[f"{new}self_attn.in_proj.weight"] = torch.cat([adjacent(q, d), adjacent(k, d), v])
        out[f"{new}self_attn.out_proj.weight"] = state[f"{start}self_attn.o_proj.weight"]
        for i, (norm, fc) in enumerate(
            (("input_layernorm", "mlp.fc1"), ("post_attention_layernorm", "mlp.fc2")), 1
        ):
            out[f"{new}linear{i}.weight"] = state[f"{start}{fc}.weight"]
            for kind in ("weight", "bias"):
                out[f"{new}norm{i}.{kind}"] = state[f"{start}{norm}.{kind}"]
        for i, name in enumerate(("self_attn_layer_scale", "mlp_layer_scale"), 1):
            if f"{start}{name}.scale" in state:
                out[f"{new}layer_scale_{i}.scale"] = state[f"{start}{name}.scale"]

    own, c = model.state_dict(), model.config
    for il in range(c.num_hidden_layers):
        block(own, f"model.layers.{il}.", f"flow_lm.transformer.layers.{il}.", c.head_dim)
    n = c.audio_prompt_token_id
    rows = own["model.embed_tokens.weight"]
    out["flow_lm.conditioner.embed.weight"] = torch.cat([rows[:n], rows[:1]])  # and padding
    out["flow_lm.bos_before_voice"] = rows[c.audio_prompt_bos_token_id].reshape(1, 1, -1)
    for old, new in (
        ("model.bos_latent", "bos_emb"), ("model.norm.weight", "out_norm.weight"),
        ("model.norm.bias", "out_norm.bias"), ("latent_mean", "emb_mean"),
        ("model.audio_latent_proj.weight", "input_linear.weight"), ("latent_std", "emb_std"),
        ("model.audio_prompt_proj.weight", "speaker_proj_weight"),
        ("eos_head.weight", "out_eos.weight"), ("eos_head.bias", "out_eos.bias"),
    ):  # fmt: skip
        out[f"flow_lm.{new}"] = own[old]
    names = {
        "cond_proj": "cond_embed", "timestep_embeddings": "time_embed", "layers": "res_blocks",
        "adaln_proj": "adaLN_modulation.1", "final_layer.proj": "final_layer.linear",
        "fc1": "mlp.0", "fc2": "mlp.2",
    }  # fmt: skip
    for name, value in own.items():
        if name.startswith("flow_head."):
            for old, new in names.items():
                name = name.replace(old, new)
            if "res_blocks" in name:
                name = name.replace(".norm.", ".in_ln.")
            name = name.replace("time_embed.0.norm.weight", "time_embed.0.mlp.3.alpha")
            name = name.replace("time_embed.1.norm.weight", "time_embed.1.mlp.3.alpha")
            out[name.replace("flow_head.", "flow_lm.flow_net.")] = value
    sound, k = codec.state_dict(), codec.config
    for name, value in sound.items():
        side = name.partition(".")[0]
        if ".encoder_seanet." in name or ".decoder_seanet." in name:
            at = int(name.split(".layers.")[1].split(".")[0])
            spreads = side == "decoder" and at % 3 == 2 and ".block." not in name
            spreads = spreads and at != 3 * len(k.upsampling_ratios) + 2
            name = name.replace(f"{side}.{side}_seanet.layers.", f"mimi.{side}.model.")
            out[name.replace("conv.", "convtr.convtr." if spreads else "conv.conv.")] = value
    for il in range(k.num_hidden_layers):
        for side in ("encoder", "decoder"):
            at = f"{side}_transformer"
            new = f"mimi.{at}.transformer.layers.{il}."
            block(sound, f"{side}.{at}.layers.{il}.", new, k.head_dim)
    out["mimi.downsample.conv.conv.weight"] = sound["encoder.downsample.conv.weight"]
    out["mimi.upsample.convtr.convtr.weight"] = sound["decoder.upsample.conv.weight"]
    out["mimi.quantizer.output_proj.weight"] = sound["latent_proj.weight"]
    for name in ("mimi.quantizer.input_proj.weight", "flow_lm.transformer.layers.0.rope.freqs"):
        out[name] = rows[:2]  # of no use
    return {name: value.contiguous().clone() for name, value in out.items()}


def save_original(folder: Path, model: Any, codec: Any) -> None:
    """The same model as its makers publish it: no config.json, and all tensors in one file."""
    import sentencepiece
    from safetensors.torch import save_file

    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT, "the fox", "a dog"] * 20), vocab_size=40,
        model_prefix=str(folder / "tokenizer"), hard_vocab_limit=False, minloglevel=2,
        bos_id=-1, eos_id=-1, pad_id=-1,
    )  # fmt: skip
    (folder / "tokenizer.vocab").unlink()
    save_file(_original(model, codec), folder / "model.safetensors")
