"""`ModelConfig`: the hyper-parameters of a model, read from GGUF metadata and checked.

The keys are those of the GGUF specification (docs/gguf.md in the ggml repository), most of them
under the architecture's name, e.g. `llama.embedding_length`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile

__all__ = [
    "Keys",
    "MlaConfig",
    "ModelConfig",
    "MoeConfig",
    "Pooling",
    "RecurrentConfig",
    "RopeConfig",
    "RopeScaling",
]

Pooling = Literal["none", "mean", "cls", "last"]
"""All of a text's embeddings, their mean, the first or the last one."""
RopeScaling = Literal["none", "linear", "yarn", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071) for `yarn`."""

    n_dims: int
    """Dimensions of a head that are rotated; even."""
    freq_base: float
    scaling: RopeScaling = "none"
    factor: float = 1.0
    """How many times longer than in training the context may be."""
    n_ctx_orig: int = 0
    """Context length before scaling."""
    ext_factor: float = 0.0
    """YaRN's mix of interpolation and extrapolation: 1 on, 0 off."""
    attn_factor: float = 1.0
    """Extra magnitude of the rotated vectors."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0
    """YaRN's `mscale_all_dim` (DeepSeek): part of the magnitude that the attention scale has."""
    offset: int = 0
    """Dimensions of a cached key head in front of the rotated ones."""

    @property
    def freq_scale(self) -> float:
        """What positions are multiplied with (before YaRN's mix)."""
        return 1.0 if self.scaling in ("none", "longrope") else 1.0 / self.factor

    @property
    def kernel_attn_factor(self) -> float:
        """The `attn_factor` that the ROPE op wants.

        The op itself multiplies by 1 + 0.1 ln(factor) when `ext_factor` is not 0; with a log
        multiplier m the magnitude is to be that over 1 + 0.1 m ln(factor)."""
        return self.attn_factor / self._yarn_magnitude(self.log_multiplier)

    @property
    def shift_attn_factor(self) -> float:
        """The `attn_factor` with which the ROPE op only rotates: it undoes the op's own."""
        return 1.0 / self._yarn_magnitude(1.0)

    def _yarn_magnitude(self, multiplier: float) -> float:
        if self.ext_factor == 0.0 or self.factor <= 1.0:
            return 1.0
        return 1.0 + 0.1 * multiplier * math.log(self.factor)


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A mixture of experts instead of the dense feed-forward layer."""

    n_expert: int
    n_used: int
    """Experts that each token goes through."""
    n_ff: int
    """Inner width of one expert."""
    n_ff_shared: int = 0
    """Inner width of the experts that every token goes through; 0: not stated."""
    renormalise: bool | None = None
    """Whether the weights of the chosen experts are brought to sum 1; None: not stated, the
    architecture says."""
    scale: float = 1.0
    """What those weights are multiplied with."""
    sigmoid: bool = False
    """Whether router scores go through a sigmoid instead of a softmax."""
    n_group: int = 1
    """Groups of equal size that the experts are in."""
    n_group_used: int = 1
    """Groups that the experts of a token are chosen from."""
    n_dense: int = 0
    """Layers at the start that have a dense feed-forward layer all the same."""


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads are
    made from one short vector a token."""

    q_rank: int
    """Length of the vector that queries are made from; 0: they are made from the input."""
    kv_rank: int
    """Length of the vector that keys and values are made from."""
    head_dim_k: int
    """Elements of a query or key head, of which the last `rope.n_dims` rotate."""
    head_dim_v: int
    absorbed: bool
    """Whether the vector itself is what is cached (and attended to as a single head), the matrices
    of keys and values having moved to queries and outputs."""


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Layers that keep a state of fixed size for each sequence, instead of keys and values."""

    layers: tuple[bool, ...]
    """Which layers are such."""
    d_conv: int
    """Taps of the causal convolution; the state has the last d_conv - 1 inputs."""
    n_channels: int
    """Channels of the convolution."""
    d_state: int = 0
    """Elements that each inner dimension keeps (state-space models); 0: none."""
    n_head: int = 0
    head_dim: int = 0
    n_group: int = 1
    """Groups of heads that share B and C."""
    dt_rank: int = 0
    """Width that time steps are projected from (Mamba 1)."""
    norm_dt: bool = False
    """Whether time steps, B and C are normed though there are no gains (FalconMamba)."""

    @property
    def d_inner(self) -> int:
        """Inner width of a state-space layer."""
        return self.n_head * self.head_dim

    @property
    def conv_size(self) -> int:
        """Kept inputs of the convolution."""
        return (self.d_conv - 1) * self.n_channels

    @property
    def state_size(self) -> int:
        """Elements of the state-space state."""
        return self.d_state * self.d_inner


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyper-parameters. Head counts and feed-forward widths may differ between layers."""

    arch: str
    name: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    """Layers that tokens go through."""
    heads: tuple[int, ...]
    """Query heads per layer."""
    heads_kv: tuple[int, ...]
    """Key/value heads per layer; each divides the query heads (grouped-query attention)."""
    widths: tuple[int, ...]
    """Inner width of the feed-forward layer, per layer."""
    head_dim_k: int
    head_dim_v: int
    rms_eps: float
    rope: RopeConfig
    moe: MoeConfig | None = None
    mla: MlaConfig | None = None
    recurrent: RecurrentConfig | None = None
    sliding_window: int = 0
    """Positions that a sliding-window layer looks back; 0: none stated."""
    windowed: tuple[bool, ...] = ()
    """Whether a layer sees only the sliding window; empty: none does. Set by `configure` of the
    architecture."""
    ropes: tuple[RopeConfig, ...] = ()
    """Rotary embedding per layer where layers differ (n_dims 0: none); empty: `rope` in all."""
    norm_eps: float = 1e-5
    """Epsilon of LayerNorm; `rms_eps` is that of RMS norm."""
    attn_scale: float = 0.0
    """What attention scores are multiplied with; 0: 1 / sqrt(head size)."""
    attn_softcap: float = 0.0
    """Attention scores s become cap * tanh(s / cap); 0: they stay."""
    final_softcap: float = 0.0
    """The same for logits."""
    embedding_scale: float = 0.0
    """What embeddings are multiplied with; 0: nothing. So are the next two."""
    residual_scale: float = 0.0
    logit_scale: float = 0.0
    alibi_bias: float = 0.0
    """Attention with linear biases (ALiBi, arXiv 2108.12409): the first head's slope is
    2^-(alibi_bias / heads); 0: none."""
    n_positions: int = 0
    """Rows of the table of learned positions; 0: there is no such table."""
    clamp_qkv: float = 0.0
    """Queries, keys and values are limited to this in magnitude; 0: they are not."""
    parallel_residual: bool = True
    """Whether attention and feed-forward layer work side by side, where files say it."""

    causal: bool = True
    """Whether a token sees only those before it; else a text must be computed at once."""
    pooling: Pooling = "none"
    """How the embeddings of a text's tokens become one."""
    n_blocks: int = 0
    """Layers in the file; those behind `n_layer` draft tokens (multi-token prediction) and are not
    used."""
    n_token_types: int = 0
    """Rows of the table of token types (sentence A or B); 0: there is no such table."""

    @property
    def unused_layers(self) -> range:
        """Layers that are in the file and draft tokens, which weft does by other means."""
        return range(self.n_layer, max(self.n_blocks, self.n_layer))

    def without_rope(self) -> ModelConfig:
        """The same without rotary embedding."""
        return replace(self, rope=replace(self.rope, n_dims=0), ropes=())

    def n_head(self, il: int = 0) -> int:
        """Query heads of layer `il`."""
        return self.heads[il]

    def n_head_kv(self, il: int = 0) -> int:
        """Key/value heads of layer `il`."""
        return self.heads_kv[il]

    def n_ff(self, il: int = 0) -> int:
        """Feed-forward width of layer `il`."""
        return self.widths[il]

    def n_embd_k(self, il: int = 0) -> int:
        """Elements of one cached key of layer `il`, all heads."""
        return self.heads_kv[il] * self.head_dim_k

    def n_embd_v(self, il: int = 0) -> int:
        """Elements of one cached value of layer `il`, all heads."""
        return self.heads_kv[il] * self.head_dim_v

    @property
    def kq_scale(self) -> float:
        """What attention scores are multiplied with: 1 / sqrt(head size) unless stated."""
        return self.attn_scale or 1.0 / math.sqrt(self.head_dim_k)

    def rope_of(self, il: int) -> RopeConfig:
        """Rotary embedding of layer `il`; its n_dims are 0 when the layer has none."""
        return self.ropes[il] if self.ropes else self.rope

    def is_windowed(self, il: int) -> bool:
        """Whether layer `il` sees only the sliding window."""
        return bool(self.windowed) and self.windowed[il]

    @property
    def window(self) -> int:
        """The sliding window where a layer has one, else 0."""
        return self.sliding_window if any(self.windowed) else 0

    @staticmethod
    def from_gguf(file: GGUFFile) -> ModelConfig:
        """Reads and checks the metadata; raises FormatError naming a key that is wrong."""
        return Keys(file).config()


class Keys:
    """Metadata lookups under the architecture's prefix, with range checks.

    `key` is the name without the prefix; errors are FormatErrors that name the whole key."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.arch = file.architecture

    def config(self) -> ModelConfig:
        """The whole config, as far as it is the same for every architecture."""
        if not self.file.tensors:
            raise FormatError(
                f"{self.file.path}: the file has no tensors: it is a vocabulary, not a model; give "
                "the path of a model"
            )
        n_embd = self.count("embedding_length")
        n_blocks = self.count("block_count", most=1 << 16)
        n_layer = n_blocks - self.count("nextn_predict_layers", 0, least=0, most=n_blocks - 1)
        heads = self.per_layer("attention.head_count", n_layer)
        heads_kv = self.per_layer("attention.head_count_kv", n_layer, heads)
        for il, (h, kv) in enumerate(zip(heads, heads_kv, strict=True)):
            if kv and h % kv:
                raise self.bad(
                    "attention.head_count_kv", kv, f"a divisor of layer {il}'s {h} heads"
                )
        head_dim = n_embd // max(heads[0], 1)
        key = f"{self.arch}.attention.key_length"
        if key not in self.file.metadata and heads[0] and n_embd % heads[0]:
            raise self.bad(
                "attention.head_count",
                heads[0],
                f"a divisor of embedding_length {n_embd} (there is no attention.key_length)",
            )
        head_dim_k = self.count("attention.key_length", head_dim)
        return ModelConfig(
            arch=self.arch,
            name=self.file.get_str("general.name", ""),
            n_vocab=self.n_vocab(),
            n_ctx_train=self.count("context_length"),
            n_embd=n_embd,
            n_layer=n_layer,
            n_blocks=n_blocks,
            heads=heads,
            heads_kv=heads_kv,
            widths=self.per_layer("feed_forward_length", n_layer),
            head_dim_k=head_dim_k,
            head_dim_v=self.count("attention.value_length", head_dim),
            rms_eps=self.number("attention.layer_norm_rms_epsilon", 1e-5),
            rope=self.rope(head_dim_k),
            moe=self.moe(),
            sliding_window=self.count("attention.sliding_window", 0, least=0),
            norm_eps=self.number("attention.layer_norm_epsilon", 1e-5),
            attn_scale=self.number("attention.scale", 0.0),
            attn_softcap=self.number("attn_logit_softcapping", 0.0),
            final_softcap=self.number("final_logit_softcapping", 0.0),
            embedding_scale=self.number("embedding_scale", 0.0),
            residual_scale=self.number("residual_scale", 0.0),
            logit_scale=self.number("logit_scale", 0.0),
            alibi_bias=self.number("attention.max_alibi_bias", 0.0),
            clamp_qkv=self.number("attention.clamp_kqv", 0.0),
            causal=self.flag("attention.causal", True),
            pooling=self.pooling(),
            n_token_types=self.file.get_int("tokenizer.ggml.token_type_count", 0),
            parallel_residual=self.flag("use_parallel_residual", True),
        )

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        tokens = "tokenizer.ggml.tokens"
        if tokens in self.file.metadata:
            return self.file.metadata.count_of(tokens)
        return self.count("vocab_size")

    def moe(self) -> MoeConfig | None:
        """The mixture of experts, where there is one."""
        n_expert = self.count("expert_count", 0, least=0, most=1 << 16)
        if n_expert == 0:
            return None
        n_used = self.count("expert_used_count")
        if n_used > n_expert:
            raise self.bad("expert_used_count", n_used, f"at most expert_count = {n_expert}")
        n_ff = self.count("expert_feed_forward_length", 0, least=0)
        n_group = self.count("expert_group_count", 1, least=0) or 1
        n_group_used = self.count("expert_group_used_count", n_group, least=0) or n_group
        if n_expert % n_group or n_expert < 2 * n_group > 2:
            raise self.bad("expert_group_count", n_group, f"groups of 2 or more of {n_expert}")
        if n_group_used > n_group or n_used > n_expert // n_group * n_group_used:
            raise self.bad(
                "expert_group_used_count", n_group_used, f"at most {n_group}, with {n_used} experts"
            )
        norm = f"{self.arch}.expert_weights_norm"
        return MoeConfig(
            n_expert,
            n_used,
            n_ff or self.per_layer("feed_forward_length", 1)[0],
            n_ff_shared=self.count("expert_shared_feed_forward_length", 0, least=0),
            renormalise=self.file.get_bool(norm) if norm in self.file.metadata else None,
            scale=self.number("expert_weights_scale", 0.0) or 1.0,
            sigmoid=self._is_sigmoid(),
            n_group=n_group,
            n_group_used=n_group_used,
            n_dense=self.count("leading_dense_block_count", 0, least=0),
        )

    def _is_sigmoid(self) -> bool:
        """Whether expert weights are sigmoids of scores. Files of GLM-4.7-Flash do not say so, but
        have a bias that balances the choice, which goes with sigmoids alone."""
        key = "expert_gating_func"
        if f"{self.arch}.{key}" in self.file.metadata:
            return self.count(key, least=0) == 2
        return any(name.endswith(".exp_probs_b.bias") for name in self.file.tensors)

    def pooling(self) -> Pooling:
        """How embeddings are pooled; the key holds llama.cpp's numbers."""
        names = get_args(Pooling)
        number = self.count("pooling_type", 0, least=0)
        if number >= len(names):
            known = ", ".join(f"{i} ({name})" for i, name in enumerate(names))
            raise self.bad("pooling_type", number, f"one of {known}; others are not supported")
        found: Pooling = names[number]
        return found

    def windowed(self, period: int, n_layer: int) -> tuple[bool, ...]:
        """Which layers see only the sliding window. `attention.sliding_window_pattern` says it per
        layer, or gives the period: the last layer of each period sees everything, with period 0 no
        layer does. `period` is the architecture's own."""
        key = "attention.sliding_window_pattern"
        full = f"{self.arch}.{key}"
        meta = self.file.metadata
        if full in meta and meta.item_type_of(full) is not None:
            flags = self.file.get_array(full)
            if len(flags) < n_layer:
                raise self.bad(
                    key, f"an array of {len(flags)}", f"one for each of {n_layer} layers"
                )
            return tuple(bool(flag) for flag in flags[:n_layer])
        period = self.count(key, period, least=0)
        return tuple(period == 0 or il % period < period - 1 for il in range(n_layer))

    def rope(self, head_dim: int) -> RopeConfig:
        """The rotary embedding of heads of `head_dim` elements."""
        n_dims = self.count("rope.dimension_count", head_dim, least=0)
        if n_dims % 2 or n_dims > head_dim:
            raise self.bad("rope.dimension_count", n_dims, f"even and at most {head_dim}")
        base = self.number("rope.freq_base", 10000.0, above=0.0)
        # the old name of the factor is the specification's `rope.scale_linear`
        old = self.number("rope.scale_linear", 0.0)
        factor = self.number("rope.scaling.factor", old)
        known = get_args(RopeScaling)
        key = f"{self.arch}.rope.scaling.type"
        scaling = self.file.get_str(key, "linear" if factor not in (0.0, 1.0) else "none")
        if scaling not in known:
            raise self.bad("rope.scaling.type", repr(scaling), f"one of {', '.join(known)}")
        if factor == 0.0:
            factor = 1.0
        if factor < 0.0:
            raise self.bad("rope.scaling.factor", factor, "above 0")
        ext = self.number("rope.scaling.yarn_ext_factor", -1.0)
        ext = ext if ext >= 0.0 else float(scaling == "yarn")
        multiplier = self.number("rope.scaling.yarn_log_multiplier", 0.0)
        return RopeConfig(
            n_dims=n_dims,
            freq_base=base,
            scaling=scaling,  # type: ignore[arg-type]  # checked against RopeScaling above
            factor=factor,
            n_ctx_orig=self.count(
                "rope.scaling.original_context_length", self.count("context_length")
            ),
            ext_factor=ext,
            attn_factor=self.number("rope.scaling.attn_factor", 1.0)
            * self._yarn_attn_factor(1.0 if multiplier or not ext else max(factor, 1.0)),
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
            log_multiplier=multiplier,
        )

    def _yarn_attn_factor(self, factor: float) -> float:
        """What brings YaRN's magnitude, 1 + 0.1 ln(factor), to the one that the file states."""
        key = "rope.scaling.yarn_attn_factor"
        if f"{self.arch}.{key}" not in self.file.metadata:
            return 1.0
        return self.number(key, 1.0, above=0.0) / (1.0 + 0.1 * math.log(factor))

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31
    ) -> int:
        """An integer in [least, most]; the limit keeps lying files from overflowing sizes."""
        full = f"{self.arch}.{key}"
        get = self.file.get_int
        value = get(full) if default is None else get(full, default)
        if not least <= value <= most:
            raise self.bad(key, value, f"in {least}..{most}")
        return value

    def number(self, key: str, default: float, *, above: float | None = None) -> float:
        """A finite float, above a limit if there is one."""
        value = self.file.get_float(f"{self.arch}.{key}", default)
        if not math.isfinite(value) or (above is not None and value <= above):
            raise self.bad(key, value, "finite" if above is None else f"above {above}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A bool."""
        return self.file.get_bool(f"{self.arch}.{key}", default)

    def per_layer(
        self, key: str, n_layer: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """A count for each layer: the file has one number for all, or an array of them."""
        full = f"{self.arch}.{key}"
        meta = self.file.metadata
        if full not in meta and default is not None:
            return default
        if full not in meta or meta.item_type_of(full) is None:
            return (self.count(key, least=0),) * n_layer
        values = self.file.get_array(full)
        if len(values) < n_layer or not np.issubdtype(values.dtype, np.integer):
            raise self.bad(
                key, f"an array of {len(values)}", f"an integer for each of {n_layer} layers"
            )
        found = tuple(int(v) for v in values[:n_layer])
        if min(found) < 0 or max(found) > 1 << 31:
            raise self.bad(key, found, f"in 0..{1 << 31}")
        return found

    def bad(self, key: str, value: object, wanted: str) -> FormatError:
        """An error to raise: `key` is `value` and must be `wanted`."""
        return FormatError(
            f"{self.file.path}: metadata key {self.arch}.{key} is {value}; it must be {wanted}"
        )
