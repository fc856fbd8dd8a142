"""Encoders that transformers does not have, against others that compute the same: random weights,
renamed as converters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import keys_of
from tests.llm.renamed_models import IDS, LAYER, SHAPE, Tensors, adjacent, randomised, same
from tests.llm.tiny import write_model
from weft.llm import Context
from weft.llm.model import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BERT = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
NOMIC = LAYER | {
    "post_attention_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
OUTER = {
    "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.norm": "token_embd_norm", "embeddings.tok_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd", "embed_tokens": "token_embd",
    "embeddings.token_type_embeddings": "token_types", "final_norm": "output_norm",
    "norm": "output_norm", "head.dense": "cls", "head.norm": "cls.norm", "pooler.dense": "cls",
    "pre_classifier": "cls", "classifier.dense": "cls", "classifier.out_proj": "cls.output",
    "classifier": "cls.output", "lm_head": "output",
}  # fmt: skip
ENCODER = {"attention.causal": False, "attention.head_count_kv": 4, "block_count": 4}
WORDS = {"tokenizer.ggml.token_type_count": 2}
SIZES: dict[str, Any] = {
    key: SHAPE[key] for key in ("vocab_size", "hidden_size", "intermediate_size",
                                "num_hidden_layers", "num_attention_heads", "rope_parameters",
                                "attn_implementation")
} | {"pad_token_id": 0, "max_position_embeddings": 64, "layer_norm_eps": 1e-5}  # fmt: skip


def tensors_of(model: Any, names: dict[str, str], layers: str = "layers.") -> Tensors:
    """Parameters by their names in a GGUF file; heads for training are left out."""
    out: Tensors = {}
    for full, p in model.state_dict().items():
        name = full
        for root in ("model.", "bert.", "roberta.", "distilbert.", "encoder.", "transformer."):
            name = name.removeprefix(root)
        stem, _, kind = name.rpartition(".")
        gguf = OUTER.get(stem, "")
        if name.startswith(layers):
            number, _, inner = stem.removeprefix(layers).partition(".")
            gguf = f"blk.{number}.{names[inner]}"
        if gguf:
            out[f"{gguf}.{kind}"] = p.numpy().astype(np.float32)
    return out


def context(path: Path, meta: dict[str, object], tensors: Tensors, **options: Any) -> Context:
    model = Model.open(write_model(path, meta, tensors))
    options = {"type_k": "f32", "type_v": "f32", "devices": ["reference"]} | options
    return Context(model, 64, embeddings=True, **options)


def hidden(model: Any, ids: list[int] = IDS, **inputs: Any) -> Any:
    with torch.no_grad():
        out = model(torch.tensor([ids]), **inputs)
    return out.logits if "logits" in out else out.last_hidden_state


def require_same(c: Context, model: Any) -> None:
    """The rows of all tokens, with both kinds of attention, and of two texts in a batch."""
    want = hidden(model)
    same(c.embed(IDS, "none"), want)
    plain = Context(c.model, 64, embeddings=True, flash=False, type_k="f32", type_v="f32",
                    n_seq_max=2, devices=["reference"])  # fmt: skip
    n = len(IDS) // 2
    rows = plain.decode(IDS, [*range(n)] * 2, seqs=[[0]] * n + [[1]] * n, outputs="all")
    same(rows[:n], hidden(model, IDS[:n]))
    same(rows[n:], hidden(model, IDS[n:]))


@pytest.mark.parametrize("arch", ["llama-embed", "neo-bert"])
def test_relatives_of_eurobert(tmp_path: Path, arch: str) -> None:
    """The same blocks, where adjacent pairs rotate; NeoBERT has fused matrices."""
    config = transformers.EuroBertConfig(**SHAPE)
    model = randomised(transformers.EuroBertModel(config))
    tensors = adjacent(tensors_of(model, LAYER), 4, 2)
    meta = keys_of(arch, {"block_count": 4, "rope.freq_base": 1000.0})
    if arch == "neo-bert":
        tensors["enc.output_norm.weight"] = tensors.pop("output_norm.weight")
        for il in range(4):
            for name, parts in (("attn_qkv", ("attn_q", "attn_k", "attn_v")),
                                ("ffn_up", ("ffn_gate", "ffn_up"))):  # fmt: skip
                each = [tensors.pop(f"blk.{il}.{part}.weight") for part in parts]
                tensors[f"blk.{il}.{name}.weight"] = np.concatenate(each)
    require_same(context(tmp_path / "m.gguf", meta, tensors), model)


def test_experts_of_nomic_bert(tmp_path: Path) -> None:
    """Two of four experts without a gate, in every second layer; their weights do not sum to 1."""
    config = transformers.JinaEmbeddingsV3Config(**SIZES, type_vocab_size=1)
    model = transformers.JinaEmbeddingsV3Model(config, add_pooling_layer=False)

    class Mixture(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.router = torch.nn.Linear(16, 4, bias=False)
            self.up = torch.nn.Parameter(torch.zeros(4, 24, 16))
            self.down = torch.nn.Parameter(torch.zeros(4, 16, 24))

        def forward(self, x: Any) -> Any:
            weights, best = self.router(x).softmax(dim=-1).topk(2, dim=-1)
            inside = torch.nn.functional.gelu(torch.einsum("efd,btd->btef", self.up, x))
            each = torch.einsum("edf,btef->bted", self.down, inside)
            kept = each.gather(2, best[..., None].expand(*best.shape, 16))
            return (kept * weights[..., None]).sum(dim=2)

    for il in (1, 3):
        model.layers[il].mlp = Mixture()
    model = randomised(model)
    tensors = tensors_of(model, NOMIC | {"mlp.router": "ffn_gate_inp", "mlp": "ffn"})
    for il in (1, 3):
        for name in ("up", "down"):
            tensors[f"blk.{il}.ffn_{name}_exps.weight"] = tensors.pop(f"blk.{il}.ffn.{name}")
    meta = keys_of("nomic-bert-moe", ENCODER | {
        "expert_count": 4, "expert_used_count": 2, "moe_every_n_layers": 2,
    }) | {"tokenizer.ggml.token_type_count": 1}  # fmt: skip
    require_same(context(tmp_path / "m.gguf", meta, tensors), model)


@pytest.mark.parametrize("fused", [False, True])
def test_jina_bert_v2(tmp_path: Path, fused: bool) -> None:
    """BERT with ALiBi on both sides in place of positions, and a gated feed-forward layer."""
    config = transformers.BertConfig(**SIZES, hidden_act="gelu", type_vocab_size=2)
    model = transformers.BertModel(config, add_pooling_layer=False)

    class Geglu(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Linear(16, 24, bias=False)
            self.up = torch.nn.Linear(16, 24, bias=False)

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.gelu(self.gate(x)) * self.up(x)

    for layer in model.encoder.layer:
        layer.intermediate = Geglu()
    model = randomised(model)
    model.embeddings.position_embeddings.weight.data.zero_()
    names = BERT | {"intermediate.gate": "ffn_gate", "intermediate.up": "ffn_up"}
    tensors = tensors_of(model, names, "layer.")
    tensors.pop("position_embd.weight")
    if fused:
        for il in range(4):
            gate, up = (tensors.pop(f"blk.{il}.ffn_{name}.weight") for name in ("gate", "up"))
            tensors[f"blk.{il}.ffn_up.weight"] = np.concatenate([gate, up])
    n = len(IDS)
    at = torch.arange(n)
    slopes = 2.0 ** (-8.0 * torch.arange(1, 5) / 4)
    bias = -(at[:, None] - at[None]).abs() * slopes[:, None, None]
    c = context(tmp_path / "m.gguf", keys_of("jina-bert-v2", ENCODER) | WORDS, tensors)
    want = hidden(model, attention_mask=bias[None].to(torch.float32))
    same(c.embed(IDS, "none"), want)
    assert (want - hidden(model)).abs().max() > 0.1
