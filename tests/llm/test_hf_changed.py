"""Settings of config.json that the code of a model reads, each changed alone: the logits of
transformers, or a refusal. None may be taken for another in silence."""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import ContextError, FormatError

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.part("models")
N_CHANGES = 4
"""Number of settings of each model that are changed."""
IDS = [(7 * i * i + 13 * i + 5) % 360 + 4 for i in range(20)]
# sizes that other settings must fit, and what has no part in logits
LEFT_OUT = {
    "vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "pad_token_id",
    "num_hidden_layers", "num_attention_heads", "n_layer", "n_embd", "n_head", "n_positions",
    "d_model", "n_layers", "n_heads", "use_cache", "initializer_range", "router_aux_loss_coef",
    "output_router_logits", "output_attentions", "output_hidden_states", "is_decoder",
    "num_nextn_predict_layers", "chunk_size", "pretraining_tp", "router_jitter_noise",
    "hc_sinkhorn_iters",
}  # fmt: skip
ROUGH = {"gptneox", "mpt", "falcon", "falcon2"}  # the erf form of GELU
OTHER = {
    "silu": "gelu_new", "gelu": "silu", "relu2": "relu", "gelu_pytorch_tanh": "silu",
    "gelu_new": "silu", "xielu": "silu", "softmax": "sigmoid", "sigmoid": "softmax",
    "rope": "nope", "nope": "rope", "greedy": "group_limited_greedy", "noaux_tc": "greedy",
}  # fmt: skip
GIVEN = {
    "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "sliding_window": 4,
    "attention_chunk_size": 5, "clip_qkv": 0.4, "n_group": 2, "q_lora_rank": 12, "head_dim": 12,
}  # fmt: skip
ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32,
     "attention_factor": 1.3, "beta_fast": 16.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
    {"rope_type": "dynamic", "factor": 2.0},
]  # fmt: skip


def another(name: str, value: Any) -> Any:
    """Another value of a setting; None: there is none to try."""
    if value is None or isinstance(value, str):
        return GIVEN.get(name) if value is None else OTHER.get(value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value
    if isinstance(value, float):
        return 1.7 * value if 0 < value < 1e9 else 0.3
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[::-1] if value != value[::-1] else [value[-1]] * len(value)
    if isinstance(value, list) and value and isinstance(value[0], bool | int | float):
        return [another(name, value[0]), *value[1:]]
    return None


def changes(model: Any, options: dict[str, Any], seed: str) -> Iterator[dict[str, Any]]:
    """Settings to change, in random order; the rotary embedding is one of them."""
    config = model.config.get_text_config()
    code = "".join(inspect.getsource(sys.modules[type(x).__module__]) for x in (model, config))
    values = config.to_dict()
    read = {*re.findall(r"config\.(\w+)", code), "mlp_layer_types"} & {*values} - LEFT_OUT
    dice = random.Random(seed)
    for name in dice.sample(sorted(read), len(read)):
        value: Any = another(name, values[name])
        if name == "rope_parameters":
            base = options.get(name) or {}
            usual = folders.PLAIN | base | dice.choice(ROPES)
            value = None if "full_attention" in base else usual
        if value is not None:
            yield {name: value}


@pytest.mark.parametrize("name", [n for n in folders.MODELS if n not in folders.HEADLESS])
def test_a_changed_setting_is_computed_or_refused(tmp_path: Path, name: str) -> None:
    kind, options, tokenizer = folders.MODELS[name]
    done = 0
    for change in changes(folders.writer(kind, options), options, f"{name} 1"):
        try:
            model = folders.writer(kind, options | change)
            with torch.no_grad():
                want = model(torch.tensor([IDS])).logits[0].numpy()
        except Exception:  # transformers does not know it either, and raises whatever it does
            continue
        folder = tmp_path / str(done)
        model.save_pretrained(folder)
        folders.save_tokenizer(tokenizer, folder)
        done += 1
        try:
            got = folders.context(folder, n_ubatch=7).decode(IDS, outputs="all")
        except (FormatError, ContextError) as error:
            assert str(folder) in str(error), change
        else:
            near = (2e-3 if name in ROUGH else 1e-4) * np.abs(want).max()
            np.testing.assert_allclose(got, want, atol=near, rtol=0, err_msg=str(change))
        if done == N_CHANGES:
            break
    assert done > 0
