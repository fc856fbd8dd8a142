"""Folders of RWKV 6 and 7, which transformers lacks: the tensors of a tiny file under the names,
and with the sizes, that such a folder has give the logits of the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import TOKENS, Tensors, configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_model
from weft.llm import Tokenizer

safetensors = pytest.importorskip("safetensors.numpy")

TEXTS = [bytes([i]) for i in range(256)] + [b"the", b"\n\n", b" the", "\u4e2d".encode(), b"'\""]
CONFIG = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 274}
SIX = {
    "ln1": "attn_norm", "ln2": "attn_norm_2", "attention.ln_x": "time_mix_ln",
    "attention.time_maa_x": "time_mix_lerp_x", "attention.time_maa_w1": "time_mix_w1",
    "attention.time_maa_w2": "time_mix_w2", "attention.time_decay": "time_mix_decay",
    "attention.time_decay_w1": "time_mix_decay_w1", "attention.time_decay_w2": "time_mix_decay_w2",
    "attention.time_faaaa": "time_mix_first", **{f"attention.{n}": f"time_mix_{n}" for n in (
        "key", "value", "receptance", "gate", "output")},
    "feed_forward.time_maa_k": "channel_mix_lerp_k", "feed_forward.time_maa_r":
    "channel_mix_lerp_r", **{f"feed_forward.{n}": f"channel_mix_{n}" for n in (
        "key", "value", "receptance")},
}  # fmt: skip
SEVEN = {
    "attn_norm": "attn_norm", "ffn_norm": "attn_norm_2", "attn.g_norm": "time_mix_ln",
    **{f"attn.{n[0]}_proj": f"time_mix_{n}" for n in ("key", "value", "receptance", "output")},
    **{f"attn.{n}": f"time_mix_{n}" for n in ("k_k", "k_a", "r_k")},
    **{f"attn.{p}_lora.lora.{n}": f"time_mix_{p}{i}" for p in "wavg"
       for n, i in (("2.bias", 0), ("0", 1), ("2", 2))},
    "ffn.x_k": "channel_mix_lerp_k", "ffn.key": "channel_mix_key", "ffn.value": "channel_mix_value",
}  # fmt: skip
_QWEN = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         **{f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")}}  # fmt: skip
SIX_QWEN = _QWEN | {
    **{name.replace("attention.", "self_attn."): new for name, new in SIX.items()
       if "time_" in name and "feed" not in name},
    **{f"self_attn.{n}_proj": f"time_mix_{new}" for n, new in (
        ("k", "key"), ("v", "value"), ("q", "receptance"), ("o", "output"))},
    "self_attn.gate": "time_mix_gate",
}  # fmt: skip
SEVEN_QWEN = _QWEN | {f"self_attn.time_mixer.{n}": f"time_mix_{n}" for n in (
    "key", "value", "receptance", "output", "k_k", "k_a", "r_k",
    *(f"{p}{i}" for p in "wavg" for i in "012"))}  # fmt: skip
SEVEN_QWEN["self_attn.time_mixer.ln_x"] = "time_mix_ln"
BARE = re.compile(r"(time_maa_\w+|time_decay\w*|time_faaaa|x_.|k_k|k_a|r_k|2\.bias|[wavg][012])$")


def write_vocabulary(folder: Path) -> None:
    lines = []
    for i, text in enumerate(TEXTS, 1):
        try:
            shown = repr(text.decode())
        except UnicodeDecodeError:
            shown = repr(text)
        lines.append(f"{i} {shown} {len(text)}")
    (folder / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def in_folder(tensors: Tensors, seven: bool, qwen: bool, rescale: int) -> dict[str, Any]:
    """The tensors as folders have them."""
    table = (SEVEN_QWEN if qwen else SEVEN) if seven else (SIX_QWEN if qwen else SIX)
    names = {new: old for old, new in table.items()}
    old_names = not seven and not qwen
    root = "rwkv.blocks" if old_names else "model.layers"
    outer = {
        "token_embd": "model.embed_tokens" if qwen else f"{root.partition('.')[0]}.embeddings",
        "output_norm": "rwkv.ln_out" if old_names else "model.norm",
        "output": "head" if old_names else "lm_head",
        "token_embd_norm": f"{root}.0.{'pre_norm' if seven else 'pre_ln'}",
    }
    out: dict[str, Any] = {}
    for name, x in tensors.items():
        found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if found is None:
            stem, _, kind = name.rpartition(".")
            out[f"{outer[stem]}.{kind}"] = x
            continue
        il, stem, kind = int(found[1]), found[2], found[3]
        if stem.startswith("time_mix_lerp_") and stem != "time_mix_lerp_x":
            letter = "attn.x_" if seven else "attention.time_maa_"
            if qwen:
                letter = "self_attn.time_mixer.x_" if seven else "self_attn.time_maa_"
            if stem == "time_mix_lerp_fused":
                letters = ("rwkvag" if seven else "wkvrg")[: len(x)]
                for part, row in zip(letters, x, strict=True):
                    out[f"{root}.{il}.{letter}{part}"] = row.reshape(1, 1, -1)
            else:
                out[f"{root}.{il}.{letter}{stem[-1]}"] = x.reshape(1, 1, -1)
            continue
        old = names[stem]
        if stem == "time_mix_w2" and not seven:
            x = (x[[3, 1, 2, 0, 4]] if qwen else x).transpose(0, 2, 1)
        elif stem == "time_mix_w1" and not seven and qwen:
            x = x.reshape(5, -1, 16)[[3, 1, 2, 0, 4]].reshape(x.shape).T
        elif re.search("_([avgw]|decay_w)[12]$", stem) and (qwen or not seven):
            x = x.T
        elif stem in ("time_mix_k_k", "time_mix_k_a", "channel_mix_lerp_k", "channel_mix_lerp_r"):
            x = x.reshape(1, 1, -1)
        elif stem == "time_mix_r_k":
            x = x.reshape(-1, 4)
        elif rescale and stem in ("time_mix_output", "channel_mix_value"):
            x = x * 2.0 ** (il // rescale)
        out[f"{root}.{il}.{old}{'' if BARE.search(old) else f'.{kind}'}"] = x
    return {name: np.ascontiguousarray(x, np.float32) for name, x in out.items()}


@pytest.mark.parametrize("name", ["rwkv6", "rwkv6 halved", "rwkv7", "rwkv6qwen2", "arwkv7"])
def test_logits_of_the_file(tmp_path: Path, name: str) -> None:
    seven, qwen, rescale = name.endswith("7"), name in ("rwkv6qwen2", "arwkv7"), "halved" in name
    arch, changes = OTHERS[name]
    ranks = {} if seven else {"time_mix_extra_dim": 32, "time_decay_extra_dim": 64}
    if name == "arwkv7":  # widths that config.json does not say
        ranks = {f"attention.{key}_lora_rank": n for key, n in (
            ("decay", 64), ("iclr", 64), ("value_residual_mix", 32))}  # fmt: skip
    meta = keys_of(arch, changes | ranks)
    tensors = made_up(configure(tmp_path, meta))
    tensors = {n: x for n, x in tensors.items() if not re.search("mix_(key|value|gate|output|rec"
               "eptance).bias|output.bias", n)}  # fmt: skip
    want = context(write_model(tmp_path / "f.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    state = in_folder(tensors, seven, qwen, int(rescale))
    safetensors.save_file(state, tmp_path / "model.safetensors")
    config = CONFIG | {"num_hidden_layers": changes["block_count"]}
    config |= {"architectures": ["RWKV7ForCausalLM" if seven else "Rwkv6ForCausalLM"]}
    if qwen:
        config |= {
            "architectures": ["RwkvHybridForCausalLM" if seven else "RWKV6Qwen2ForCausalLM"],
            "rms_norm_eps": 1e-5, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_size": 4, "wkv_version": 7, "wkv_has_gate": False,
        }  # fmt: skip
        if not seven:
            config["wkv_has_gate"] = True
    elif seven:
        widths = {key: changes[f"attention.{long}_lora_rank"] for key, long in (
            ("decay_low_rank_dim", "decay"), ("a_low_rank_dim", "iclr"),
            ("v_low_rank_dim", "value_residual_mix"), ("gate_low_rank_dim", "gate"))}  # fmt: skip
        config |= {"head_dim": 4, "norm_eps": 1e-5, **widths}
    else:
        config |= {"head_size": 4, "layer_norm_epsilon": 1e-5, "rescale_every": int(rescale)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if qwen:
        pytest.importorskip("tests.llm.hf_folders").save_tokenizer("gpt2", tmp_path)
    else:
        write_vocabulary(tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    for path in (tmp_path, tmp_path / "m.gguf"):
        file = open_model(path)
        end = file.get_int("tokenizer.ggml.eot_token_id", 0)
        assert file.architecture == arch and (qwen or end == 261)
        got = context(path).decode(TOKENS, outputs="all")
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
    if qwen:
        return
    tokenizer = Tokenizer.from_gguf(open_model(tmp_path))
    for text in ("the the\n\n", "\u4e2d\u56fd", "a'\"b\\\t"):
        ids = tokenizer.encode(text, add_special=False)
        assert b"".join(TEXTS[i - 1] for i in ids) == text.encode()
    assert tokenizer.encode("the the", add_special=False) == [257, 259]


def test_wrong_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(CONFIG | {"architectures": ["RWKV7ForCausalLM"], "head_dim": 4, "norm_eps": 1})
    )
    safetensors.save_file({"lm_head.weight": np.ones((2, 2), np.float32)},
                          tmp_path / "model.safetensors")  # fmt: skip
    with pytest.raises(FormatError, match="download the tokenizer"):
        open_model(tmp_path)
    for line in ("1 'a' 2", "1 open('x') 1", "1 'a'", f"1 '{'a' * 5000}' 5000", "1 5 1"):
        (tmp_path / "rwkv_vocab_v20230424.txt").write_text(line)
        with pytest.raises(FormatError, match="not a number, a token"):
            open_model(tmp_path)
