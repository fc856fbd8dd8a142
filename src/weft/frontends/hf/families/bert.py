"""Encoders for embeddings: BERT, DistilBERT, RoBERTa."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys, pooling_keys
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, has, word_pieces

__all__ = ["FAMILIES"]


def _keys(c: Config) -> Pairs:
    yield "attention.causal", False
    yield from pooling_keys(c)
    labels = c.get("id2label")
    if isinstance(labels, dict) and labels and list(labels.values())[:1] != ["LABEL_0"]:
        yield "classifier.output_labels", [v for _, v in sorted(labels.items())]


def _distil_common(c: Config) -> Pairs:
    yield "attention.layer_norm_epsilon", 1e-12
    yield from common_keys(c)


def _change(c: Config, name: str, values: Values) -> Named:
    """Leaves out the heads for training."""
    for prefix in ("bert.", "distilbert.", "roberta."):
        name = name.removeprefix(prefix)
    name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
    if name.startswith(("cls.", "vocab_", "lm_head.", "pooler.")) or name.endswith("position_ids"):
        return
    if name == "embeddings.position_embeddings.weight" and "Roberta" in c.cls:
        values = values.rows(_first_position(c), values.shape[0])
    yield name, values


def _first_position(c: Config) -> int:
    """RoBERTa counts positions from the padding token's id on."""
    pad = c.get("pad_token_id")
    return 0 if pad is None else int(pad) + 1


def _roberta_common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        if key == "context_length":
            value = c["max_position_embeddings"] - _first_position(c)
        yield key, value


def _roberta_vocab(c: Config) -> Vocabulary:
    if not has(c, "tokenizer.json"):
        yield from word_pieces(c)
        return
    yield from bpe(c)
    yield "tokenizer.ggml.token_type_count", c.get("type_vocab_size", 1)


_OUTER = {
    "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "classifier.dense": "cls", "classifier.out_proj": "cls.output", "classifier": "cls",
}  # fmt: skip
_NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    # DistilBERT's
    "attention.q_lin": "attn_q", "attention.k_lin": "attn_k", "attention.v_lin": "attn_v",
    "attention.out_lin": "attn_output", "sa_layer_norm": "attn_output_norm", "ffn.lin1": "ffn_up",
    "ffn.lin2": "ffn_down", "output_layer_norm": "layer_output_norm",
}  # fmt: skip

FAMILIES = {
    "bert": Family(
        "bert",
        _keys,
        names=_NAMES,
        outer=_OUTER,
        change=_change,
        vocab=word_pieces,
        defaults={"layer_norm_eps": 1e-12, "type_vocab_size": 2},
    ),
    "distilbert": Family(
        "bert",
        _keys,
        common=_distil_common,
        names=_NAMES,
        outer=_OUTER,
        change=_change,
        vocab=word_pieces,
        defaults={"max_position_embeddings": 512},
    ),
    "roberta": Family(
        "bert",
        _keys,
        common=_roberta_common,
        names=_NAMES,
        outer=_OUTER,
        change=_change,
        vocab=_roberta_vocab,
        defaults={"layer_norm_eps": 1e-12, "type_vocab_size": 2},
    ),
}
