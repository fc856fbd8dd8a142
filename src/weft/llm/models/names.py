"""Names of the tensors of a model: llama.cpp's, such as `Qcur-0` for the queries of layer 0.

Most tensors are named by the weights that make them: the product with `blk.0.attn_q.weight` is
`Qcur-0`. What follows is named by the op and the tensor that it reads (`AFTER`), and views as in
ggml: `Qcur-0 (permuted)`. So architectures name only what neither tells, with `Tensor.named`. As in
llama.cpp, a name may repeat: queries are `Qcur-0` before and after their rotation.
"""

from __future__ import annotations

import re
from functools import lru_cache

from weft.graph.graph import Graph
from weft.graph.op import NONE
from weft.graph.tensor import Tensor

ALIASES = {
    "inp_embd": "embd",
    "model.embed_tokens": "embd",
    "result_output": "logits",
    "result_embd": "embeddings",
    "sa_out": "ffn_inp",
    "attn_residual": "ffn_inp",
    "post_attn_norm": "attn_post_norm",
    "post_mlp_norm": "ffn_post_norm",
    "post_moe": "l_out",
    "attn_output": "attn_out",
    "linear_attn_out": "mamba_out",
    "linear_attn_qkv_mixed": "wqkv",
    "linear_attn_mixed_ba": "ssm_ba",
    "model.layers.{}.operator_norm": "attn_norm",
    "model.layers.{}.ffn_out": "ffn_norm",
    "model.layers.{}.self_attn.q_layernorm": "Qcur_normed",
    "model.layers.{}.self_attn.k_layernorm": "Kcur_normed",
    "model.layers.{}.self_attn.out_proj": "attn_out",
    "model.layers.{}.conv.in_proj": "shortconv.in_proj",
    "model.layers.{}.conv.conv": "shortconv.conv",
    "model.layers.{}.conv.out_proj": "shortconv.out_proj",
}
"""Names of llama.cpp that some of its models or versions have for a tensor with another name here,
without the layer. Outputs have the names by which programs read them."""

PRODUCTS = {
    "token_embd": "embd",
    "position_embd": "pos_embd",
    "token_embd_norm": "inp_norm",
    "output_norm": "result_norm",
    "output": "result_output",
    "attn_q": "Qcur",
    "attn_k": "Kcur",
    "attn_v": "Vcur",
    "attn_qkv": "wqkv",
    "attn_q_norm": "Qcur_normed",
    "attn_k_norm": "Kcur_normed",
    "attn_output": "attn_out",
    "post_attention_norm": "attn_post_norm",
    "post_ffw_norm": "ffn_post_norm",
    "ffn_down": "ffn_out",
    "ffn_gate_inp": "ffn_moe_logits",
    "exp_probs_b": "ffn_moe_probs_biased",
    "ffn_up_exps": "ffn_moe_up",
    "ffn_gate_exps": "ffn_moe_gate",
    "ffn_gate_up_exps": "ffn_moe_gate_up",
    "ffn_down_exps": "ffn_moe_down",
    "ffn_up_shexp": "ffn_up",
    "ffn_gate_shexp": "ffn_gate",
    "ffn_down_shexp": "ffn_shexp",
    "ffn_gate_inp_shexp": "ffn_shexp_gate_inp",
    "attn_q_a": "q",
    "attn_q_a_norm": "q",
    "attn_q_b": "q",
    "attn_kv_a_mqa": "kv_cmpr_pe",
    "attn_kv_a_norm": "kv_cmpr",
    "attn_k_b": "q_nope_absorbed",
    "attn_v_b": "fattn_mla",
    "attn_kv_b": "kv",
    "ssm_conv1d": "conv_output_raw",
    "ssm_out": "mamba_out",
}
"""The name of a weight's product (of a norm with its gains, of the rows of a table); another weight
gives its own name."""

BIASED = {
    "output": ("result_output_no_bias", "result_output"),
    "attn_qkv": ("wqkv", "wqkv_b"),
    "ffn_up": ("ffn_up", "ffn_up_b"),
    "ffn_gate": ("ffn_gate", "ffn_gate_b"),
    "ffn_down": ("ffn_down", "ffn_out"),
    "ffn_gate_inp": ("ffn_moe_logits", "ffn_moe_logits_biased"),
    "ffn_up_exps": ("ffn_moe_up", "ffn_moe_up_biased"),
    "ffn_gate_exps": ("ffn_moe_gate", "ffn_moe_gate_biased"),
    "ffn_gate_up_exps": ("ffn_moe_gate_up", "ffn_moe_gate_up_biased"),
    "ffn_down_exps": ("ffn_moe_down", "ffn_moe_down_biased"),
}
"""The names of a product and of its sum with the bias; elsewhere both have the same."""

AFTER = {
    ("SCALE", "embd"): "inp_scaled",
    ("SCALE", "Qcur"): "Qcur",
    ("SCALE", "Qcur_normed"): "Qcur_scaled",
    ("CLAMP", "Qcur"): "Qcur_clamped",
    ("CLAMP", "Kcur"): "Kcur_clamped",
    ("CLAMP", "Vcur"): "Vcur_clamped",
    ("SQR", "ffn_relu"): "ffn_sqr(relu)",
    ("SQR", "ffn_moe_relu"): "ffn_moe_relu_sqr",
    ("SOFT_MAX", "ffn_moe_logits"): "ffn_moe_probs",
    ("SOFT_MAX", "ffn_moe_logits_biased"): "ffn_moe_probs",
    ("SIGMOID", "ffn_moe_logits"): "ffn_moe_probs",
    ("SIGMOID", "ffn_moe_logits_biased"): "ffn_moe_probs",
    ("TOP_K", "ffn_moe_probs"): "ffn_moe_topk",
    ("TOP_K", "ffn_moe_probs_biased"): "ffn_moe_topk",
    ("TOP_K", "ffn_moe_probs_masked"): "ffn_moe_topk",
    ("GET_ROWS", "ffn_moe_logits (reshaped)"): "ffn_moe_weights",
    ("GET_ROWS", "ffn_moe_logits_biased (reshaped)"): "ffn_moe_weights",
    ("GET_ROWS", "ffn_moe_probs (reshaped)"): "ffn_moe_weights",
    ("SOFT_MAX", "ffn_moe_weights (reshaped)"): "ffn_moe_weights_softmax",
    ("SUM_ROWS", "ffn_moe_weights (reshaped)"): "ffn_moe_weights_sum",
    ("CLAMP", "ffn_moe_weights_sum"): "ffn_moe_weights_sum_clamped",
    ("DIV", "ffn_moe_weights (reshaped)"): "ffn_moe_weights_norm",
    ("SCALE", "ffn_moe_weights (reshaped)"): "ffn_moe_weights_scaled",
    ("SCALE", "ffn_moe_weights_norm"): "ffn_moe_weights_scaled",
    ("MUL", "ffn_moe_down"): "ffn_moe_weighted",
    ("MUL", "ffn_moe_down_biased"): "ffn_moe_weighted",
    ("CONT", "ffn_moe_weighted (view)"): "ffn_moe_out",
    ("ADD", "ffn_moe_weighted (view)"): "ffn_moe_out",
    ("ADD", "ffn_moe_out"): "ffn_out",
    ("SIGMOID", "ffn_shexp_gate_inp"): "ffn_shexp_gate",
    ("MUL", "ffn_shexp"): "ffn_shexp_out",
    ("PERMUTE", "q_nope"): "q_nope_perm",
    ("PERMUTE", "q_nope_absorbed"): "q_nope_absorbed_perm",
    ("SILU", "conv_output_raw (reshaped)"): "conv_output_silu",
    ("SOFT_MAX", "kq"): "kq_soft_max",
    ("SOFT_MAX", "kq_scaled"): "kq_soft_max",
    ("SOFT_MAX", "kq_tanh"): "kq_soft_max",
    ("SOFT_MAX", "kq_scaled_2"): "kq_soft_max",
    ("SOFT_MAX", "kq_plus_kq_b"): "kq_soft_max",
    ("SCALE", "kq"): "kq_scaled",
    ("SCALE", "kq_scaled"): "kq_scaled_1",
    ("TANH", "kq_scaled_1"): "kq_tanh",
    ("SCALE", "kq_tanh"): "kq_scaled_2",
    ("ADD", "kq"): "kq_plus_kq_b",
    ("ADD", "kq_scaled"): "kq_plus_kq_b",
}
"""The name of what an op makes of a tensor with a name, both without the layer."""

VIEWS = {
    "RESHAPE": "reshaped", "VIEW": "view", "PERMUTE": "permuted", "TRANSPOSE": "transposed",
    "CONT": "cont", "CPY": "copy",
}  # fmt: skip

_NORMS = ("RMS_NORM", "NORM", "GROUP_NORM")
_HEADS = ("Qcur", "Kcur", "Vcur", "q")
"""Tensors that keep their names when they are cut into heads."""


def name_tensors(graph: Graph) -> None:
    """Names the nodes of `graph` that have no name but their number, as far as llama.cpp or their
    weights have one for them."""
    numbers = {t: f"node_{i}" for i, t in enumerate(graph.nodes) if t.name == f"node_{i}"}
    for node in graph.nodes:
        for tensor, name in _named(node):
            if tensor in numbers:
                tensor.name = name or numbers[tensor]


def product_name(weight: str, *, biased: bool) -> str:
    """The name of what a weight such as `blk.3.attn_q.weight` makes, with its bias if `biased`."""
    base, layer, _ = _parts(weight)
    name = BIASED[base][1] if biased and base in BIASED else PRODUCTS.get(base, base)
    return name + layer


def own_name(theirs: str) -> str:
    """The name here of a tensor of llama.cpp."""
    base, space, views = theirs.partition(" (")
    stem, layer = split_name(base)
    return f"{ALIASES.get(stem, stem)}{layer}{space}{views}"


def their_names(own: str) -> list[str]:
    """The name of a tensor here, and those that llama.cpp has for it."""
    stem, layer = split_name(own)
    return [own, *(theirs + layer for theirs, name in ALIASES.items() if name == stem)]


def described(node: Tensor) -> str:
    """The op as ggml's logs have it: for activations the function, such as `SILU`."""
    op = getattr(node.params, "op", None)
    return getattr(op, "name", node.op.name) if node.op.name in ("UNARY", "GLU") else node.op.name


def _named(node: Tensor) -> list[tuple[Tensor, str]]:
    """The names of a node and of those before it that it decides; empty: none but a number."""
    first = node.src[0] if node.src else None
    if first is None:
        return []
    for source in node.src[:2]:
        if source is not None and source.op is NONE and _is_weight(source):
            return _by_weight(node, first, source.name)
    op = described(node)
    if op == "SET_ROWS" and node.view_src is not None:
        return [(node, f"{node.view_src.name} (view)")]
    if first.op is NONE:
        return []
    stem, layer = split_name(first.name)
    second = next((s for s in node.src[1:2] if s is not None), None)
    other = split_name(second.name) if second is not None else ("", "")
    if op == "ADD" and other[0] == "ffn_moe_weighted (view)" and stem == "ffn_moe_out":
        return [(first, ""), (node, first.name)]  # a part of the sum has no name
    if op == "ADD" and second is not None and second.op.name.startswith("MUL_MAT"):
        adapter = second.src[0]
        if adapter is not None and adapter.name.endswith(".lora_b"):
            return [(node, first.name), (first, "")]
    if op == "FLASH_ATTN_EXT":
        return [(node, f"__fattn__{layer}")]
    if op == "MUL_MAT" and stem.startswith("cache_k"):
        return [(node, f"kq{other[1]}")]
    if op == "MUL_MAT" and other[0] == "kq_soft_max":
        return [(node, f"kqv{other[1]}")]
    if op == "TOP_K" and stem.startswith("ffn_moe_logits"):
        return [(first, f"ffn_moe_probs{layer}"), (node, f"ffn_moe_topk{layer}")]
    if stem.startswith("node_"):
        return []
    name = AFTER.get((op, stem), "")
    if not name and op == "HADAMARD":
        name = f"{stem} (rotated)"
    elif not name and op == "ROPE":
        name = stem.partition(" (")[0].removesuffix("_normed")
    elif not name and op in VIEWS:
        kept = op == "RESHAPE" and stem in _HEADS and node.n_dims > first.n_dims
        view = f" ({VIEWS[op]})"
        name = stem if kept else stem.removesuffix(view) + view
    elif not name and node.op.name in ("UNARY", "GLU") and stem.startswith("ffn_"):
        name = ("ffn_moe_" if stem.startswith("ffn_moe_") else "ffn_") + op.lower()
    return [(node, _with_layer(name, layer))] if name else []


def _by_weight(node: Tensor, first: Tensor, weight: str) -> list[tuple[Tensor, str]]:
    base, layer, kind = _parts(weight)
    name = PRODUCTS.get(base, base)
    if base == "token_embd_norm" and node.name != "result_norm":  # LFM2's last norm has this name
        layer = "-0"
    if node.op.name == "MUL" and first.op.name in _NORMS:
        return [(first, f"norm{layer}"), (node, name + layer)]
    if kind == "bias" and first.op.name == "MUL" and split_name(first.name)[0] == name:
        return [(first, f"norm_w{layer}"), (node, name + layer)]
    if kind == "bias" and base in BIASED:
        product, biased = BIASED[base]
        return [(first, product + layer), (node, biased + layer)]
    if kind == "scale":
        return [(first, ""), (node, name + layer)]
    return [(node, name + layer)] if not kind.startswith("lora") else []


def _is_weight(leaf: Tensor) -> bool:
    return leaf.buffer is not None and leaf.buffer.usage == "weights"


_WEIGHT = re.compile(r"(?:enc\.|dec\.)?((?:[va]\.)?)(?:blk\.(\d+)\.)?(.*)")
_NAME = re.compile(r"(.*?)(-\d+)?((?: \(.*\))?)")


@lru_cache(maxsize=1 << 14)
def _parts(weight: str) -> tuple[str, str, str]:
    """Base, layer and kind of a weight: `blk.3.attn_q.bias` is `attn_q`, `-3`, `bias`."""
    found = _WEIGHT.fullmatch(weight)
    assert found is not None
    base, _, kind = found[3].rpartition(".")
    if kind not in ("weight", "bias", "scale", "lora_a", "lora_b"):
        base, kind = found[3], ""
    return found[1] + base, "" if found[2] is None else f"-{found[2]}", kind


@lru_cache(maxsize=1 << 14)
def split_name(name: str) -> tuple[str, str]:
    """A name without its layer, and the layer: `Qcur-3 (view)` is `Qcur (view)` and `-3`."""
    found = _NAME.fullmatch(name)
    assert found is not None
    return found[1] + found[3], found[2] or ""


def _with_layer(name: str, layer: str) -> str:
    base, space, views = name.partition(" (")
    return base + layer + space + views
