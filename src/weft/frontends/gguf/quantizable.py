"""Which tensors of a file are quantized: matrices, but not norms, routers and small ones.

The names are those of llama.cpp's `llama-quant.cpp`.
"""

from __future__ import annotations

from weft.dtype import DTYPES
from weft.frontends.gguf.tensors import TensorInfo

__all__ = ["is_quantized"]

_SOURCES = frozenset(DTYPES) - {"i8", "i16", "i32", "i64", "f64", "q8_1", "q8_K"}
_LEFT_ALONE = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "position_embd", "ssm_conv1d", "shortconv.conv.weight",
    "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight",
    "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight",
    "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight",
    "time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight", "sam.pos_embd",
    "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook",
    "mm.a.code_embd",
)  # fmt: skip
"""Parts of names of tensors that stay: norms, routers, tables of positions, small matrices."""
_OF_ARCH = {
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate",
        "indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight",
        "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight",
        "attn_v_b.weight",
    ),
}  # fmt: skip


def is_quantized(t: TensorInfo, arch: str) -> bool:
    """True if the tensor of a model of architecture `arch` gets another type."""
    if t.ne[1:] == (1, 1, 1) or not t.name.endswith("weight") or t.dtype.name not in _SOURCES:
        return False
    if t.name == "token_types.weight":
        return False
    return not any(part in t.name for part in (*_LEFT_ALONE, *_OF_ARCH.get(arch, ())))
