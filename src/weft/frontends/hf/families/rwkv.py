"""RWKV 6 and 7, with a vocabulary that is a list of Python's literals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values, stacked
from weft.frontends.hf.vocab import CONTROL, NORMAL, UNUSED, Vocabulary, pieces_or_bpe

_WORLD = "rwkv_vocab_v20230424.txt"
_LONGEST = 4096
"""Maximum number of characters of a line of the vocabulary."""
_CHAT = (
    "{% for m in messages %}{{ {'user': 'User', 'assistant': 'Assistant'}.get(m.role, 'System') }}"
    ": {{ m.content | trim }}\n\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The form of talk that RWKV's World models were trained on."""
_LONG = 1 << 20
"""The length of texts in files, which nothing limits."""


def _literals(c: Config) -> Iterator[str]:
    """The texts of tokens from 1 on, as files write them."""
    text = c.text(_WORLD)
    if text is None:
        raise FormatError(f"{c.folder}: no {_WORLD}; download the tokenizer too")
    for line in text.splitlines():
        try:
            _, _, rest = line.partition(" ")
            literal, _, length = rest.rpartition(" ")
            token = ast.literal_eval(literal) if len(literal) <= _LONGEST else None
            token = token.encode() if isinstance(token, str) else token
            if not isinstance(token, bytes) or not token or len(token) != int(length):
                raise ValueError(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            said = f"not a number, a token and its length: {line[:80]!r}"
            raise FormatError(f"{c.folder / _WORLD}: {said}") from None
        yield repr(token)[2:-1]


def _vocab(c: Config) -> Vocabulary:
    tokens = ["<s>", *_literals(c)]
    n = c.get("vocab_size", len(tokens))
    if not len(tokens) <= n <= 2 * len(tokens) + (1 << 16):
        raise c.bad("vocab_size", f"is {n}, and {_WORLD} has {len(tokens)} tokens")
    kinds = [CONTROL] + [NORMAL] * (len(tokens) - 1) + [UNUSED] * (n - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), n)]
    special = SpecialTokens(c)
    special.ids |= {"bos": 0, "eos": 0}
    special.set("eot", 261)  # an empty line ends a turn
    special.template = special.template or _CHAT
    yield "tokenizer.ggml.model", "rwkv"
    yield "tokenizer.ggml.tokens", tokens
    yield "tokenizer.ggml.token_type", np.array(kinds, np.int32)
    yield from special.keys()


def _sizes(c: Config, eps: float, head: int, width: int) -> Pairs:
    yield "context_length", _LONG
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "attention.layer_norm_epsilon", float(eps)
    yield "wkv.head_size", head
    yield "feed_forward_length", width
    yield "attention.head_count", 0
    yield "general.file_type", None


def _keys6(c: Config) -> Pairs:
    wide = c.n_embd == 4096
    width = c.get("intermediate_size") or int(c.n_embd * 3.5) // 32 * 32
    yield from _sizes(c, c["layer_norm_epsilon"], c["head_size"], width)
    yield "rescale_every_n_layers", c.get("rescale_every", 0)
    yield "time_mix_extra_dim", 64 if wide else 32
    yield "time_decay_extra_dim", 128 if wide else 64


_RANKS = (("decay", "lora_rank_decay", "decay_low_rank_dim", 0.5, 1.8),
          ("iclr", "lora_rank_iclr", "a_low_rank_dim", 0.5, 1.8),
          ("value_residual_mix", "lora_rank_value_residual_mix", "v_low_rank_dim", 0.5, 1.3),
          ("gate", "lora_rank_gate", "gate_low_rank_dim", 0.8, 0.6))  # fmt: skip
"""Widths of narrow matrices: the key, its two names in config.json, and the exponent and the factor
of the model's width if neither is there."""


def _keys7(c: Config) -> Pairs:
    eps, head = c.first("layer_norm_epsilon", "norm_eps"), c.first("head_size", "head_dim")
    yield from _sizes(c, eps, head, c.get("intermediate_size") or 4 * c.n_embd)
    for key, *names, exponent, factor in _RANKS:
        rank = c.first(*names) or max(1, round(c.n_embd**exponent * factor / 32)) * 32
        yield f"attention.{key}_lora_rank", rank


def _qwen_sizes(c: Config, head: int) -> Pairs:
    """Sizes of models that were Qwen before."""
    yield "context_length", _LONG
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
    yield "wkv.head_size", head
    yield "feed_forward_length", c["intermediate_size"]
    yield "token_shift_count", 1
    yield "attention.head_count", 0
    yield "general.file_type", None


def _keys6_qwen(c: Config) -> Pairs:
    wide = c.n_embd >= 4096
    yield from _qwen_sizes(c, c.n_embd // c.n_head)
    yield "time_mix_extra_dim", c.get("lora_rank_tokenshift", 64 if wide else 32)
    yield "time_decay_extra_dim", c.get("lora_rank_decay", 128 if wide else 64)
    yield "attention.head_count_kv", c.n_head_kv


def _keys7_qwen(c: Config) -> Pairs:
    if c.get("wkv_version", 7) != 7:
        raise c.bad("wkv_version", f"is {c['wkv_version']}, and must be 7 here")
    yield from _qwen_sizes(c, c["head_size"])
    gate = 128 if c.get("wkv_has_gate", True) else 0
    for key, rank in (("decay", 64), ("iclr", 64), ("value_residual_mix", 32), ("gate", gate)):
        yield f"attention.{key}_lora_rank", rank


_OUTER = {
    "model.embed_tokens": "token_embd",
    "rwkv.embeddings": "token_embd", "model.embeddings": "token_embd", "rwkv.ln_out": "output_norm",
    "model.norm": "output_norm", "model.ln_out": "output_norm", "head": "output",
    "lm_head": "output", "model.pre_ln": "token_embd_norm",
}  # fmt: skip
_NAMES = {
    "ln1": "attn_norm", "attn_norm": "attn_norm", "ln2": "attn_norm_2", "ffn_norm": "attn_norm_2",
    "attention.ln_x": "time_mix_ln", "attention.g_norm": "time_mix_ln",
    "attention.time_maa_x": "time_mix_lerp_x", "attention.time_maa_w1": "time_mix_w1",
    "attention.time_maa_w2": "time_mix_w2", "attention.time_decay": "time_mix_decay",
    "attention.time_decay_w1": "time_mix_decay_w1", "attention.time_decay_w2": "time_mix_decay_w2",
    "attention.time_faaaa": "time_mix_first", "attention.gate": "time_mix_gate",
    **{f"attention.{name}": f"time_mix_{name}"
       for name in ("key", "value", "receptance", "output", "k_k", "k_a", "r_k")},
    **{f"attention.{name}_proj": f"time_mix_{full}" for name, full in (
        ("k", "key"), ("v", "value"), ("r", "receptance"), ("q", "receptance"), ("o", "output"))},
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    **{f"attention.{part}{i}": f"time_mix_{part}{i}" for part in "wavg" for i in "012"},
    "feed_forward.time_maa_k": "channel_mix_lerp_k", "feed_forward.x_k": "channel_mix_lerp_k",
    "feed_forward.time_maa_r": "channel_mix_lerp_r",
    **{f"feed_forward.{name}": f"channel_mix_{name}" for name in ("key", "value", "receptance")},
}  # fmt: skip
_FLAT = ("lerp", "time_mix_decay.", "0.weight", "k_k", "k_a", "r_k")
"""Parts of names of vectors that folders have with more dimensions."""
_TURNED = re.compile(r"time_mix_(w1|decay_w[12]|[avgw][12])\.weight$")
"""Narrow matrices that folders have transposed."""


def _split(c: Config, name: str) -> tuple[str, str]:
    """The layer, "" outside, and the rest of a tensor's name, in one spelling."""
    found = re.fullmatch(r"(?:rwkv|model)\.(?:blocks|layers)\.(\d+)\.(.+)", name)
    if found is None:
        return "", name
    rest = re.sub(r"^(attn|self_attn|att)\.", "attention.", found[2])
    rest = re.sub(r"^ffn\.", "feed_forward.", rest).replace("time_mixer.", "")
    return found[1], rest


def _join(c: Config, tensors: Named) -> Named:
    """The weights of mixtures with the token before are one tensor in files."""
    letters = "wkvrg" if any(kind in c.cls for kind in ("Rwkv6", "RWKV6")) else "rwkvag"
    letters = letters if c.get("wkv_has_gate", True) else letters[:-1]
    start = "time_maa_" if letters == "wkvrg" else "x_"
    waiting: dict[str, dict[str, Values]] = {}
    for name, values in tensors:
        il, rest = _split(c, name)
        found = re.fullmatch(rf"attention\.{start}([{letters}x])", rest)
        fused = f"=blk.{il}.time_mix_lerp_fused.weight"
        if found is None or (found[1] == "x" and start == "time_maa_"):
            yield name, values
        elif found[1] == "x":
            yield fused, values.reshaped(len(letters), 1, 1, c.n_embd)
        else:
            parts = waiting.setdefault(fused, {})
            parts[found[1]] = values.reshaped(1, 1, values.size)
            if len(parts) == len(letters):
                yield fused, stacked([parts[letter] for letter in letters])
                del waiting[fused]
    if waiting:
        missing = sorted(set(letters) - set(next(iter(waiting.values()))))
        raise FormatError(f"{c.folder}: {next(iter(waiting))[1:]} lacks its parts {missing}")


def _change(c: Config, name: str, values: Values) -> Named:
    if name.startswith("="):
        yield name, values
        return
    il, rest = _split(c, name)
    lora = re.fullmatch(r"attention\.([wavg])_lora\.lora\.([02])\.(weight|bias)", rest)
    if lora:  # as the package fla has them, not transposed
        number = "0" if lora[3] == "bias" else "1" if lora[2] == "0" else "2"
        rest = f"attention.{lora[1]}{number}"
    stem, _, kind = rest.rpartition(".") if rest.endswith((".weight", ".bias")) else (rest, "", "")
    stem, kind = (stem, kind) if kind else (rest, "weight")
    if il == "0" and stem in ("pre_ln", "pre_norm"):
        new, il = "token_embd_norm", ""
    else:
        found = (_NAMES if il else _OUTER).get(stem)
        if found is None:
            raise FormatError(f"{c.folder}: tensor {name} has no place in a model of RWKV")
        new = found
    new = f"{new}.{kind}"
    if il == "0" and re.match(r"time_mix_v[012]\.", new):
        return  # the first layer does not use them
    if any(part in new for part in _FLAT):
        values = values.reshaped(values.size)
    elif new == "time_mix_w2.weight" and len(values.shape) == 3:
        n, rank, width = values.shape
        order = _order(c)
        values = values.through(lambda x: x[order].transpose(0, 2, 1), (n, width, rank))
    elif new == "time_mix_w1.weight" and "RWKV6Qwen2" in c.cls:
        width, n = values.shape
        order = _order(c)
        values = values.through(
            lambda x: x.T.reshape(5, n // 5, width)[order].reshape(n, width), (n, width)
        )
    elif _TURNED.search(new) and not lora:
        values = values.through(lambda x: x.T, values.shape[::-1])
    every = c.get("rescale_every", 0)
    if every and new in ("time_mix_output.weight", "channel_mix_value.weight"):
        by = np.float32(2.0 ** -(int(il) // every))
        values = values.through(lambda x: x * by)
    yield (f"=blk.{il}.{new}" if il else f"={new}"), values
    if il == "0" and re.match(r"time_mix_a[012]\.", new):  # other programs look for them
        yield f"=blk.0.{new.replace('time_mix_a', 'time_mix_v')}", values


def _order(c: Config) -> list[int]:
    """The places of decay, keys, values, receptance and gate in the narrow matrices."""
    return [3, 1, 2, 0, 4] if "RWKV6Qwen2" in c.cls else [0, 1, 2, 3, 4]


_FAMILY = Family("rwkv6", common=_keys6, join=_join, change=_change, vocab=_vocab, activation="")

FAMILIES = {
    "rwkv6": _FAMILY,
    "rwkv6qwen2": replace(
        _FAMILY, arch="rwkv6qwen2", common=_keys6_qwen, vocab=pieces_or_bpe,
    ),
    "arwkv7": replace(_FAMILY, arch="arwkv7", common=_keys7_qwen, vocab=pieces_or_bpe),
    "rwkv7": Family(
        "rwkv7", common=_keys7, join=_join, change=_change, vocab=_vocab, activation="",
    ),
}  # fmt: skip
