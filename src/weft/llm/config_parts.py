"""The parts of `ModelConfig` (`config.py`) that only some models have."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.records import dataclass

RopeScaling = Literal["none", "linear", "yarn", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071) for `yarn`."""

    n_dims: int
    """Number of rotated dimensions of a head; even."""
    freq_base: float
    scaling: RopeScaling = "none"
    factor: float = 1.0
    """Factor by which the context may be longer than in training."""
    n_ctx_orig: int = 0
    """Context length before scaling."""
    ext_factor: float = 0.0
    """YaRN's mix of interpolation and extrapolation: 1 on, 0 off."""
    attn_factor: float = 1.0
    """Additional factor of the rotated vectors."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0
    """YaRN's `mscale_all_dim` (DeepSeek): the part of the magnitude that the attention scale
    includes."""
    offset: int = 0
    """Number of dimensions of a cached key head before the rotated ones."""
    factored: bool = True
    """False: the divisors of angles that the file may have are for other layers."""
    dynamic: bool = False
    """True if the base depends on the length of a text that is longer than in training."""
    rounded: bool = True
    """False: the pairs between which YaRN mixes are not rounded to whole ones."""

    @property
    def freq_scale(self) -> float:
        """The factor of positions, before YaRN's mix."""
        return 1.0 if self.scaling in ("none", "longrope") else 1.0 / self.factor

    @property
    def kernel_attn_factor(self) -> float:
        """The parameter `attn_factor` of the ROPE op.

        If `ext_factor` is not 0, the op itself multiplies by 1 + 0.1 ln(factor); with a log
        multiplier m, the magnitude must be this divided by 1 + 0.1 m ln(factor)."""
        return self.attn_factor / self.yarn_magnitude(self.log_multiplier)

    @property
    def shift_attn_factor(self) -> float:
        """The parameter `attn_factor` with which the ROPE op changes no magnitude."""
        return 1.0 / self.yarn_magnitude(1.0)

    def yarn_divisors(self) -> tuple[float, ...]:
        """The divisors of the angle of each pair by YaRN's mix, without rounding.

        Source: `_compute_yarn_parameters` in transformers, with `truncate` false."""
        n, base = self.n_dims, math.log(self.freq_base)
        low, high = (
            n * math.log(self.n_ctx_orig / (2 * math.pi * turns)) / (2 * base)
            for turns in (self.beta_fast, self.beta_slow)
        )
        low, high = max(low, 0.0), min(high, n - 1.0)
        divisors = []
        for pair in range(n // 2):
            inside = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
            kept = (1.0 - inside) * self.ext_factor
            divisors.append(1.0 / (self.freq_scale * (1.0 - kept) + kept))
        return tuple(divisors)

    def yarn_magnitude(self, multiplier: float) -> float:
        """1 + 0.1 `multiplier` ln(factor), with which the ROPE op multiplies under YaRN."""
        if self.ext_factor == 0.0 or self.factor <= 1.0:
            return 1.0
        return 1.0 + 0.1 * multiplier * math.log(self.factor)


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A mixture of experts instead of the dense feed-forward layer."""

    n_expert: int
    n_used: int
    """Number of experts that each token uses."""
    n_ff: int
    """Inner width of one expert."""
    n_ff_shared: int = 0
    """Inner width of the experts that every token uses; 0: not stated."""
    renormalise: bool | None = None
    """True scales the weights of the chosen experts to sum 1; None: the architecture decides."""
    scale: float = 1.0
    """Factor of these weights."""
    sigmoid: bool = False
    """True applies a sigmoid to router scores, False a softmax."""
    root: bool = False
    """True takes the square root of softplus of router scores instead."""
    n_hashed: int = 0
    """First layers, whose experts a table gives for each token."""
    n_group: int = 1
    """Number of groups of experts, of equal size."""
    n_group_used: int = 1
    """Number of groups from which the experts of a token are chosen."""
    dense: tuple[int, ...] = ()
    """Layers that have a dense feed-forward layer instead."""
    n_latent: int = 0
    """Width of the experts' inputs and outputs, which are projections; 0: the model's width."""
    latent_eps: float = 1e-5
    """The epsilon of the norm of these outputs, if they have one."""
    n_ff_small: int = 0
    """Inner width of the small experts beside the others; 0: there are none."""
    n_sharing: int = 1
    """Number of experts that share a small one."""
    small_scale: float = 0.0
    """Factor of the outputs of small experts."""

    def is_dense(self, il: int) -> bool:
        """True if layer `il` has a dense feed-forward layer."""
        return il in self.dense


@dataclass(frozen=True, slots=True)
class Temperature:
    """Scores of late tokens are sharpened: queries at position p are multiplied by
    1 + scale * log(1 + floor((p + offset) / span))  (LLaMA 4, "Scalable-Softmax", arXiv
    2501.19399)."""

    scale: float
    span: int
    offset: int = 0
    unrotated: bool = False
    """True if only layers that do not rotate do so."""


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the keys and values of all heads
    are computed from one short vector per token, the latent."""

    q_rank: int
    """Length of the vector from which queries are computed; 0: they are computed from the input."""
    kv_rank: int
    """Length of the latent, from which keys and values are computed."""
    head_dim_k: int
    """Elements of a query or key head, of which the last `rope.n_dims` rotate."""
    head_dim_v: int
    absorbed: bool
    """True if the latent itself is cached and attended to as a single head. The matrices of keys
    and values are then applied to queries and outputs."""
    norm_eps: float
    """The epsilon of the norms of the two short vectors."""
    query_scale: float = 1.0
    """Factor of queries, where scores have another scale than the model's."""


@dataclass(frozen=True, slots=True)
class IndexerConfig:
    """The choice of the positions that a token attends to (DeepSeek-V3.2, arXiv 2512.02556). Its
    keys are cached behind the values."""

    n_head: int
    head_dim: int
    top_k: int
    """Number of positions that are chosen."""
    halves: bool
    """True if halves of the first dimensions of a head rotate, False: adjacent pairs."""
    layers: tuple[bool, ...]
    """For each layer, whether it chooses; the others take the choice of the layer before."""
    tail: bool = False
    """True if the last dimensions of a head rotate, in the way of the model's other heads."""


@dataclass(frozen=True, slots=True)
class CompressionConfig:
    """Keys that stand for whole blocks of positions: beside the keys of a sliding window
    (DeepSeek-V4), or only in an indexer that chooses blocks (GLM-5.3, Qwen4-Exp)."""

    ratios: tuple[int, ...]
    """For each layer, the number of positions in a block; 0: the layer has no such keys."""
    spans: tuple[int, ...]
    """For each layer, the number of positions from which a key is computed, its block's own being
    the last of them. Where it is more than the ratio, the block before is there too."""
    widths: tuple[int, ...]
    """For each layer, how many numbers of each token are kept until its blocks are whole."""
    indexed: tuple[bool, ...]
    """For each layer, whether an indexer chooses blocks."""
    attended: bool = True
    """True if attention sees such keys; False: it sees the positions of the chosen blocks."""

    @property
    def tables(self) -> dict[int, int]:
        """The spans of all ratios."""
        return {r: n for r, n in zip(self.ratios, self.spans, strict=True) if r}


@dataclass(frozen=True, slots=True)
class HyperConfig:
    """Several residual streams, which layers collapse into one and mix anew (hyper-connections,
    arXiv 2409.19606)."""

    count: int
    """Number of streams."""
    n_iter: int
    """Iterations that make the mixing matrix doubly stochastic; 0: streams are not mixed."""
    eps: float
    magnitude: float = 2.0
    """Factor of the weights with which outputs go back to the streams."""
    rank: int = 0
    """Width through which the weights of the streams' elements are computed (Qwen4-Exp); 0: streams
    have one weight each."""


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """The choice of the blocks of positions that a token attends to (MiniMax-M3). The indexer has
    as many heads as there are key heads, and its keys are cached behind the values."""

    head_dim: int
    top_k: int
    """Number of blocks that are chosen."""
    size: int
    """Number of positions of a block."""
    n_local: int
    """Number of blocks, the last of them the token's own, that are chosen in any case."""
    layers: tuple[bool, ...]
    """For each layer, whether it chooses; the others see everything."""

    def n_blocks(self, n_cells: int) -> int:
        """The maximum number of blocks of a text in a cache of `n_cells`."""
        return max(n_cells // self.size + 2, self.top_k)

    def chooses(self, n_cells: int) -> bool:
        """True if a text in a cache of `n_cells` may have more blocks than are chosen. It need not
        begin at the first position of a block."""
        return self.n_blocks(n_cells) > self.top_k


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Embeddings of the last tokens of a text, whose rows are hashes of these tokens (Qwen4-Exp).
    There are n-grams of 2 to `size` tokens, and as many rows for each of these lengths."""

    layer: int
    """The layer that reads them."""
    size: int
    multipliers: tuple[int, ...]
    """Factors of the tokens in a hash, the last token first."""
    offsets: tuple[int, ...]
    """For each row of a token, where its part of the table begins."""
    counts: tuple[int, ...]
    """For each row of a token, the number of rows of its part of the table."""
    n_rows: int
    """Number of rows of the table."""
    width: int
    """Number of elements of a row."""
    end: int
    """The token that ends a text; an n-gram has it in place of what is before it."""
    image: int
    """The token that stands for rows of images."""
    d_conv: int
    """Taps of the convolution, which are `size` tokens apart."""

    def rows(self, grams: NDArray[np.int64]) -> NDArray[np.int32]:
        """The rows [n, n_parts] of tokens with those before them, the last one first: [n, size].
        Those before are -1 where there are none."""
        grams = grams.copy()
        before = grams[:, 1:]
        gone = np.logical_or.accumulate((before == self.end) | (before < 0), axis=1)
        before[gone] = self.end
        products = grams.astype(np.uint64) * np.array(self.multipliers, np.uint64)
        mixed = np.bitwise_xor.accumulate(products, axis=1)[:, 1:]
        mixed = np.repeat(mixed, len(self.counts) // (self.size - 1), axis=1)
        rows = mixed % np.array(self.counts, np.uint64) + np.array(self.offsets, np.uint64)
        return rows.astype(np.int32)


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Layers with a state of fixed size for each sequence, instead of keys and values."""

    layers: tuple[bool, ...]
    """For each layer, whether it is recurrent."""
    d_conv: int
    """Taps of the causal convolution; the state has the last d_conv - 1 inputs."""
    n_channels: int
    """Channels of the convolution."""
    d_state: int = 0
    """For state-space models, elements of the state of each inner dimension; 0: none."""
    n_head: int = 0
    head_dim: int = 0
    n_group: int = 1
    """Groups of heads that share B and C."""
    dt_rank: int = 0
    """Width from which time steps are projected (Mamba 1)."""
    ranks: tuple[int, ...] = ()
    """Widths of the narrow matrices of RWKV."""
    rescale_every: int = 0
    """Number of layers after which the result is halved again; 0: it is never halved."""
    norm_dt: bool = False
    """True if time steps, B and C are normed without learned gains (FalconMamba)."""
    time_steps: tuple[float, float] = (0.0, math.inf)
    """Bounds of time steps."""
    least_decay: float = 0.0
    """Lower bound of the logarithms of a delta net's decays; 0: they have none."""
    dilated: tuple[int, ...] = ()
    """For each layer, the number of elements that a second, dilated convolution keeps; empty: no
    layer has one."""

    @property
    def d_inner(self) -> int:
        """Inner width of a state-space layer."""
        return self.n_head * self.head_dim

    @property
    def conv_size(self) -> int:
        """Number of elements of the convolution's state, its last inputs."""
        return (self.d_conv - 1) * self.n_channels

    @property
    def state_size(self) -> int:
        """Number of elements of the state-space state."""
        return self.d_state * self.d_inner


@dataclass(frozen=True, slots=True)
class DiffusionConfig:
    """How a model that writes by diffusion was trained to."""

    shifts: bool
    """True if the logits of a token are in the row of the token before it."""
    block_length: int
    """Number of tokens that are written before any that follow them, if a request says nothing
    else; 0: there are no blocks."""


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The states of another model, its target, that a model that drafts reads."""

    n_embd: int
    """Width of the target."""
    n_state: int
    """Width of the state that it computes for a token, which stands for the target's in the next
    guess; 0: it guesses a block of tokens at once, and reads no state of its own."""
    layers: tuple[int, ...] = ()
    """Layers of the target whose inputs it reads, side by side; empty: it reads what the target's
    output projection reads."""
    n_vocab: int = 0
    """Number of tokens that it can guess, if it has a vocabulary of its own; 0: all tokens."""
    block: int = 0
    """Number of tokens of a block, the last token of the text included."""
    mask_token: int = 0
    """The token that stands for one that is to be guessed in a block."""
    shares_cache: bool = False
    """True if it attends to keys and values of the target."""
    norm_before_residual: bool = False
    """True if the residual of EAGLE-3's layer is the normed state."""

    @property
    def n_read(self) -> int:
        """Width of what it reads of the target for a token."""
        return self.n_embd * max(len(self.layers), 1)

    @property
    def fuses(self) -> bool:
        """True if the target's states have a graph of their own, which brings them to the width
        that the model works with."""
        return self.n_read != self.n_state

    def n_in(self, *, fused: bool) -> int:
        """Width of the states that a graph reads; `fused` is the graph of the target's states."""
        return self.n_read if fused else self.n_state


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """Adapters of a model's own, which tokens of the text turn on (Granite Switch)."""

    rank: int
    """Width of the narrow matrices of an adapter."""
    gain: float
    """Score of a token that turns an adapter on; other tokens have its negative."""
    tokens: tuple[int, ...]
    """The token that turns on each adapter."""
    substitutes: tuple[int, ...]
    """For each of these tokens, the token whose embedding it has."""
