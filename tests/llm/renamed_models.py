"""Models of transformers with random weights, and their tensors by the names of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.llm.tiny import tokens, write_model
from weft.llm import Context
from weft.llm.model import Model

__all__ = [
    "BEHIND", "GLM", "IDS", "LAYER", "N_VOCAB", "SHAPE", "Tensors", "adjacent",
    "randomised", "renamed", "same", "weft_rows",
]  # fmt: skip

N_VOCAB = len(tokens()[0])
IDS = [5, 90, 17, 201, 8, 90, 44, 3, 120, 66, 9, 250, 33, 71, 2, 19]
Tensors = dict[str, NDArray[np.float32]]
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
BEHIND = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
GLM = LAYER | {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip
OUTER = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def randomised(model: Any) -> Any:
    """The model with weights that make a difference."""
    import torch

    torch.manual_seed(1)
    saved = model.state_dict()
    with torch.no_grad():
        for name, p in (*model.named_parameters(), *model.named_buffers()):
            if p.dtype == torch.float32 and name in saved:
                scale = 1.5 / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.2
                p.copy_(torch.randn_like(p) * scale + (p.dim() == 1 and "bias" not in name))
    return model.eval()


def renamed(model: Any, table: dict[str, str], layers: str) -> Tensors:
    """Parameters by their names in a GGUF file; those that `table` does not have are left out."""
    out: Tensors = {}
    for full, p in model.state_dict().items():
        stem, _, kind = full.rpartition(".")
        name = OUTER.get(stem, "")
        if full.startswith(layers):
            number, _, inner = stem.removeprefix(layers).partition(".")
            name = f"blk.{number}.{table[inner]}" if inner in table else ""
        if name:
            out[f"{name}.{kind}"] = p.numpy().astype(np.float32)
    return out


def weft_rows(path: Path, meta: dict[str, object], tensors: Tensors) -> NDArray[np.float32]:
    """What weft computes for IDS: logits, or embeddings of a model without them."""
    model = Model.open(write_model(path, meta, tensors))
    options: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "devices": ["reference"]}
    return Context(model, 64, **options).decode(IDS, outputs="all")


def same(got: NDArray[np.float32], want: Any) -> None:
    want = want.detach().numpy()[0]
    assert want.std() > 0.1
    # float32 sums in another order; what these tests are about differs by 0.1 and more
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


def adjacent(tensors: Tensors, n_head: int, n_head_kv: int) -> Tensors:
    """Puts the rows of queries and keys in the order in which adjacent pairs rotate, as converters
    do for models that rotate halves."""
    out = dict(tensors)
    for name, array in tensors.items():
        n = {"attn_q": n_head, "attn_k": n_head_kv}.get(name.split(".")[-2])
        if n is not None:
            halves = array.reshape(n, 2, len(array) // n // 2, *array.shape[1:])
            out[name] = halves.swapaxes(1, 2).reshape(array.shape)
    return out


SHAPE: dict[str, Any] = {
    "vocab_size": N_VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "attn_implementation": "eager",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "pad_token_id": None,
}  # fmt: skip
