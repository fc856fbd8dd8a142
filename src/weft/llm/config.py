"""`ModelConfig`: the hyper-parameters of a model. `config_keys.py` reads them from a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

__all__ = [
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
