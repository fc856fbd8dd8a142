"""Encoders made of decoders' blocks: ModernBERT, EuroBERT, NeoBERT, Llama-Embed, EmbeddingGemma."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import FormatError
from weft.files import read_json
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.bert import encoder_keys
from weft.frontends.hf.families.gemma import FAMILIES as GEMMA
from weft.frontends.hf.families.llama import FAMILIES as LLAMA
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, pooling_keys
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import Values, stored_values
from weft.frontends.hf.vocab import Vocabulary, bpe, word_pieces

__all__ = ["FAMILIES", "dense_keys", "dense_tensors"]


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
    "neo-bert": Family(
        "neo-bert",
        _neo_keys,
        change=_neo_change,
        vocab=word_pieces,
        activation="",
    ),
    "llama-embed": replace(LLAMA["llama"], arch="llama-embed"),
    "gemma-embedding": replace(
        GEMMA["gemma3"], arch="gemma-embedding", keys=_gemma_keys, extra=dense_tensors, windows=None
    ),
}
