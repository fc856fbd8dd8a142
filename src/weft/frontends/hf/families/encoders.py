"""BERT and its relatives, and encoders made of decoders' blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.errors import FormatError
from weft.files import read_json
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.gemma import FAMILIES as GEMMA
from weft.frontends.hf.families.llama import FAMILIES as LLAMA
from weft.frontends.hf.family import Change, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys, pooling_keys
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.unigrams import is_unigram, unigrams
from weft.frontends.hf.values import Values, stored_values
from weft.frontends.hf.vocab import Vocabulary, bpe, has, word_pieces


def _modern_keys(c: Config) -> Pairs:
    yield from encoder_keys(c)
    yield "attention.sliding_window", c["local_attention"]
    every = c.get("global_attn_every_n_layers")
    if every is not None:
        yield "attention.sliding_window_pattern", every
    yield "rope.scaling.type", "none"
    yield "vocab_size", c["vocab_size"]
    if c.get("hidden_activation"):
        yield "hidden_activation", c["hidden_activation"]


def _modern_vocab(c: Config) -> Vocabulary:
    for name in ("bos", "eos", "sep"):
        yield f"tokenizer.ggml.add_{name}_token", True
    yield from bpe(c)


def _modern_change(c: Config, name: str, values: Values) -> Named:
    """Leaves out the head for training."""
    name = name.removeprefix("model.")
    if c.cls.endswith("MaskedLM") and name.startswith(("head.", "decoder.")):
        return
    yield name, values


def _euro_keys(c: Config) -> Pairs:
    yield "attention.causal", False
    yield "rope.scaling.type", "none"
    yield from pooling_keys(c, classifiers=c.get("classifier_pooling") != "late")


def _euro_vocab(c: Config) -> Vocabulary:
    yield "tokenizer.ggml.add_bos_token", False
    yield from bpe(c)


def _neo_keys(c: Config) -> Pairs:
    yield from encoder_keys(c)
    yield "feed_forward_length", 2 * c["intermediate_size"] // 3
    yield "rope.freq_base", 10000.0
    yield "rope.scaling.type", "none"
    yield "attention.layer_norm_rms_epsilon", float(c.get("norm_eps", 1e-6))
    yield "pooling_type", 2


def _neo_change(c: Config, name: str, values: Values) -> Named:
    """Leaves out the head for training."""
    name = name.removeprefix("model.")
    if not name.startswith("decoder."):
        name = "=token_embd.weight" if name == "encoder.weight" else name
        yield name.replace("transformer_encoder.", "layers."), values


# **** EmbeddingGemma ****


def _dense(c: Config) -> dict[str, tuple[str, Values]]:
    """The dense layers behind the pooling, as sentence-transformers has them: the folder and the
    matrix by GGUF's name."""
    modules = c.folder / "modules.json"
    found: dict[str, tuple[str, Values]] = {}
    for module in read_json(modules, "a file of the model") if modules.is_file() else ():
        path = str(module.get("path", ""))
        if not str(module.get("type", "")).endswith("Dense"):
            continue
        act = str(c.json(f"{path}/config.json").get("activation_function", "Identity"))
        tensors = open_shards(c.folder / path)
        if not act.endswith("Identity") or set(tensors) != {"linear.weight"} or len(found) == 2:
            raise FormatError(
                f"{c.folder / path}: weft computes at most two dense layers without bias and "
                "activation behind the pooling"
            )
        name = "dense_2" if path == "2_Dense" else "dense_3"
        found[name] = (path, stored_values(tensors["linear.weight"]))
    return found


def dense_tensors(c: Config) -> Named:
    """The dense layers behind the pooling, if sentence-transformers has any."""
    for name, (_, values) in _dense(c).items():
        yield f"={name}.weight", values


def dense_keys(c: Config) -> Pairs:
    """The widths of the dense layers behind the pooling."""
    for name, (_, values) in _dense(c).items():
        yield f"{name}_feat_in", values.shape[1]
        yield f"{name}_feat_out", values.shape[0]


def _gemma_keys(c: Config) -> Pairs:
    yield from GEMMA["gemma3"].keys(c)
    yield "attention.sliding_window", c["sliding_window"]
    yield from dense_keys(c)
    yield from pooling_keys(c)


# BERT and its relatives: DistilBERT, RoBERTa, XLM-RoBERTa, Jina's and Nomic's.

_ROOTS = ("bert.", "distilbert.", "roberta.", "new.", "model.")
_NOMIC_TRAINED = {8192: 2048, 2048: 512}
"""Tokens that Nomic's models were trained for, by `n_positions`."""


def encoder_keys(c: Config) -> Pairs:
    """The keys of all encoders: tokens see tokens on both sides, pooling and labels."""
    yield "attention.causal", False
    yield from pooling_keys(c)
    yield from label_keys(c)


def label_keys(c: Config) -> Pairs:
    """The names of a classifier's scores, if they are not the two that every model has."""
    labels = _labels(c)
    if labels:
        yield "classifier.output_labels", labels


def _labels(c: Config) -> list[str]:
    given = c.get("id2label")
    if not isinstance(given, dict):
        given = {i: f"LABEL_{i}" for i in range(c.get("num_labels", 2))}
    labels = [str(text) for _, text in sorted(given.items(), key=lambda row: int(row[0]))]
    return [] if len(labels) == 2 and labels[0] == "LABEL_0" else labels


def _change(c: Config, name: str, values: Values) -> Named:
    """Leaves out the heads for training, and the pooler where no classifier is behind it."""
    for root in _ROOTS:
        name = name.removeprefix(root)
    name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
    if name.startswith(("cls.", "vocab_", "lm_head.")) or name.endswith("position_ids"):
        return
    if name.startswith("pooler.") and c.cls != "BertForSequenceClassification":
        return
    if name in ("classifier.weight", "classifier.bias") and c.cls.endswith("Classification"):
        name = name.replace("classifier", "classifier.out_proj")
    if name == "embeddings.position_embeddings.weight" and "Roberta" in c.cls:
        values = values.rows(_first_position(c), values.shape[0])
    yield name, values


def _distil_common(c: Config) -> Pairs:
    yield "attention.layer_norm_epsilon", 1e-12
    yield from common_keys(c)


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


# **** Nomic's ****


def _nomic_common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        if key == "context_length" and c.get("max_trained_positions", 2048) == 2048:
            value = _NOMIC_TRAINED.get(c.get("n_positions", 0), value)
        yield key, value


def _moe_keys(c: Config) -> Pairs:
    yield from encoder_keys(c)
    yield "moe_every_n_layers", c["moe_every_n_layers"]
    yield "expert_used_count", c["moe_top_k"]


def _nomic_vocab(c: Config) -> Vocabulary:
    return (
        unigrams(c, mask=250001 if c.get("moe_every_n_layers") else None)
        if is_unigram(c)
        else word_pieces(c)
    )


def _nomic_change(c: Config, name: str, values: Values) -> Named:
    """Experts as one matrix each; their bias is not used."""
    for new, changed in _change(c, name, values):
        if "mlp.experts.bias" in new:
            return
        if "mlp.experts.mlp.w" in new:
            n, inner = c.n_expert, c["n_inner"]
            changed = changed.reshaped(n, inner, c.n_embd)
            if new.endswith("w2"):
                changed = changed.through(lambda x: x.swapaxes(1, 2), (n, c.n_embd, inner))
            new += ".weight"
        yield new, changed


# **** Jina's ****


def _jina_vocab(c: Config) -> Vocabulary:
    if c.json("tokenizer_config.json").get("tokenizer_class") == "RobertaTokenizer":
        yield from bpe(c)
        yield "tokenizer.ggml.token_type_count", 2
    else:
        yield from word_pieces(c)


def _without_adapters(change: Change) -> Change:
    """Matrices of parametrized layers under their own names, without the adapters of tasks."""

    def changed(c: Config, name: str, values: Values) -> Iterator[tuple[str, Values]]:
        name = name.replace(".parametrizations.", ".").removesuffix(".original")
        if not name.endswith((".lora_A", ".lora_B")):
            yield from change(c, name, values)

    return changed


_BERT = Family(
    "bert",
    encoder_keys,
    names={
        "mixer.out_proj": "attn_output",
        "post_attention_layernorm": "attn_output_norm",
        "post_mlp_layernorm": "layer_output_norm",
    },
    outer={"classifier": "cls"},
    change=_change,
    vocab=word_pieces,
    defaults={"layer_norm_eps": 1e-12, "type_vocab_size": 2},
    activation="gelu",
)
_XLM = replace(_BERT, common=_roberta_common, vocab=unigrams)
_NOMIC = replace(
    _BERT, arch="nomic-bert", common=_nomic_common, change=_nomic_change, vocab=_nomic_vocab,
    defaults={"type_vocab_size": 2}, activation="",
)  # fmt: skip


FAMILIES = {
    "modern-bert": Family(
        "modern-bert",
        _modern_keys,
        change=_modern_change,
        vocab=_modern_vocab,
        defaults={
            "norm_eps": 1e-5,
            "local_attention": 128,
            "hidden_activation": "gelu",
            "classifier_pooling": "cls",
        },
        activation="",
    ),
    "eurobert": Family("eurobert", _euro_keys, vocab=_euro_vocab),
    "neo-bert": Family("neo-bert", _neo_keys, change=_neo_change, vocab=word_pieces, activation=""),
    "llama-embed": replace(LLAMA["llama"], arch="llama-embed"),
    "gemma-embedding": replace(
        GEMMA["gemma3"], fixed={"use_bidirectional_attention": (True,)},
        arch="gemma-embedding", keys=_gemma_keys, extra=dense_tensors,
        windows=None,
    ),
    "bert": _BERT,
    "distilbert": replace(_BERT, common=_distil_common, defaults={"max_position_embeddings": 512}),
    "roberta": replace(_BERT, common=_roberta_common, vocab=_roberta_vocab),
    "xlm-roberta": replace(
        _XLM, variant=lambda config: "jina-bert-v3" if config.get("lora_adaptations") else "",
    ),
    "nomic-bert": replace(
        _NOMIC, variant=lambda config: "nomic-bert-moe" if config.get("moe_every_n_layers") else "",
    ),
    "nomic-bert-moe": replace(_NOMIC, arch="nomic-bert-moe", keys=_moe_keys),
    "jina-bert-v2": replace(_BERT, arch="jina-bert-v2", vocab=_jina_vocab, activation=""),
    "jina-bert-v3": replace(_XLM, arch="jina-bert-v3", change=_without_adapters(_change)),
}  # fmt: skip
