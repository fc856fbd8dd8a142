"""`ModelConfig`: the hyper-parameters of a model. `config_keys.py` reads them from a file."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from weft.llm.config_parts import (
    BlockConfig,
    CompressionConfig,
    DiffusionConfig,
    DraftConfig,
    HyperConfig,
    IndexerConfig,
    MlaConfig,
    MoeConfig,
    NgramConfig,
    RecurrentConfig,
    RopeConfig,
    SwitchConfig,
    Temperature,
)
from weft.records import dataclass

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""The embedding of a text: those of all its tokens, their mean, the first or the last one; "rank"
has the scores of the model's classifier instead."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The hyper-parameters of a model. Numbers of heads and widths of feed-forward layers may
    differ between layers."""

    arch: str
    name: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    """Number of layers that are used."""
    heads: tuple[int, ...]
    """Number of query heads of each layer."""
    heads_kv: tuple[int, ...]
    """Number of key/value heads of each layer, a divisor of its query heads (grouped-query
    attention)."""
    widths: tuple[int, ...]
    """Inner width of the feed-forward layer, per layer."""
    head_dim_k: int
    head_dim_v: int
    rms_eps: float
    rope: RopeConfig
    head_dim_window: int = 0
    """Elements of a head in layers with a window, where that differs from other layers; 0: it does
    not."""
    head_dim_v_window: int = 0
    """Elements of a value head in layers with a window, where that differs from their keys; 0: it
    does not."""
    kv_sources: tuple[int, ...] = ()
    """For each layer, the layer whose keys and values it attends to; empty: its own. A layer with
    those of another has no heads in `heads_kv`."""
    n_embd_layer: int = 0
    """Width of the inputs that each layer has besides the previous one's output; 0: none."""
    streams: tuple[int, int] = (1, 0)
    """Number of streams between layers, and the one that layers compute with (AltUp)."""
    cycles: tuple[int, int, int] = (0, 0, 0)
    """Layers of a stack, and how often the slow stack runs, and the fast one before each of these
    (HRM)."""
    norm_cycles: bool = False
    """True if the model's last norm is also between the runs of its layers."""
    laurel_rank: int = 0
    """Width of the low-rank path beside attention; 0: there is none."""
    moe: MoeConfig | None = None
    mla: MlaConfig | None = None
    mla_window: MlaConfig | None = None
    """The latent attention of layers with a window, where that differs from other layers."""
    indexer: IndexerConfig | None = None
    compression: CompressionConfig | None = None
    hyper: HyperConfig | None = None
    switch: SwitchConfig | None = None
    residual_span: int = 0
    """Number of layers after which the residual stream starts anew, and its past stays a part of
    every input (Kimi K3); 0: it goes through all layers."""
    q_rank: int = 0
    """Width of the vector from which queries are projected, where no `mla` says it; 0: they are
    projected from the layer's input."""
    output_groups: tuple[int, int] = (0, 0)
    """Groups of heads whose results are projected apart at first, and the width of each
    projection; 0: the output projection has one matrix."""
    chosen_blocks: BlockConfig | None = None
    ngrams: NgramConfig | None = None
    recurrent: RecurrentConfig | None = None
    sliding_window: int = 0
    """Number of positions that a sliding-window layer sees; 0: not stated."""
    windowed: tuple[bool, ...] = ()
    """For each layer, whether it sees only the sliding window; empty: none does. It is what the
    file says, unless the architecture's `configure` sets it."""
    chunked: bool = False
    """True if a window is the chunk of positions that a token is in: it sees no earlier ones."""
    ropes: tuple[RopeConfig, ...] = ()
    """Rotary embedding of each layer, if layers differ (n_dims 0: none); empty: all have `rope`."""
    norm_eps: float = 1e-5
    """Epsilon of LayerNorm; `rms_eps` is that of RMS norm."""
    attn_scale: float = 0.0
    """Factor of attention scores; 0: 1 / sqrt(head size)."""
    temperature: Temperature | None = None
    """How queries are scaled by their position; None: they are not."""
    activation: tuple[tuple[float, ...], ...] = ()
    """Parameters of the activation of each layer, where it has some."""
    heads_last: bool = False
    """True if the norms of queries and keys are behind the rotation."""
    norms_behind: bool = False
    """True if the norms of layers are behind attention and feed-forward layer, in an architecture
    whose models have them in front or behind."""
    gated_heads: bool = False
    """True if the gate of attention, where there is one, has a number for each head, not for each
    element."""
    value_scale: float = 0.0
    """Factor of values in attention; 0: there is none."""
    attn_softcap: float = 0.0
    """Cap of attention scores s, which become cap * tanh(s / cap); 0: there is none."""
    final_softcap: float = 0.0
    """Cap of logits, in the same way; 0: there is none."""
    embedding_scale: float = 0.0
    """Factor of embeddings; 0: there is none."""
    row_scale: float = 0.0
    """Factor of the rows of images and sounds, which stand in place of embeddings; 0: there is
    none."""
    residual_scale: float = 0.0
    """Factor of the outputs that a layer adds to the residual; 0: there is none."""
    logit_scale: float = 0.0
    """Scale of logits; 0: there is none. The architecture multiplies or divides by it."""
    alibi_bias: float = 0.0
    """Attention with linear biases (ALiBi, arXiv 2108.12409): the first head's slope is
    2^-(alibi_bias / heads); 0: none."""
    rope_sections: tuple[int, ...] = ()
    """Pairs of a head that rotate by time, height and width in images (M-RoPE); empty: none."""
    rows_join: Literal["all", "windows", "none"] = "all"
    """The layers in which the rows of an image see one another, if its tower says that they do."""
    deepstack: tuple[int, ...] = ()
    """For each further part of an image's row, the layer behind which it is added (DeepStack, arXiv
    2406.04334)."""
    n_positions: int = 0
    """Number of learned positions; 0: there are none."""
    n_buckets: int = 0
    """Buckets of distances, each with a learned bias of scores for every head (T5); 0: none."""
    n_encoder: int = 0
    """Layers of the encoder, whose output the decoder attends to; 0: there is no encoder."""
    start_token: int = 0
    """With an encoder, the token with which the decoder begins."""
    clamp_qkv: float = 0.0
    """Largest magnitude of queries, keys and values; 0: there is no limit."""
    parallel_residual: bool = True
    """True if attention and feed-forward layer have the same input (GPT-NeoX)."""

    causal: bool = True
    """True if a token sees only earlier ones. If not, a text must be computed at once."""
    diffusion: DiffusionConfig | None = None
    """How the model writes by diffusion; None: it writes token by token, or not at all."""
    pooling: Pooling = "none"
    """The pooling of the embeddings of a text's tokens."""
    dense: tuple[int, ...] = ()
    """Widths of the dense layers behind the pooling."""
    classifier: tuple[int, int] = (0, 0)
    """Widths of the two layers of the classifier; 0: it lacks the layer."""
    classifier_pooling: Pooling = "none"
    """The pooling in front of the classifier; "none": see `score_pooling`."""
    labels: tuple[str, ...] = ()
    """Names of the classifier's scores, if the file has them."""
    hidden_act: str = ""
    """The activation that the file names; empty: it names none."""
    fused_gate: bool = False
    """True if `ffn_up`, or the same of shared experts, has the gate in its first half."""
    n_blocks: int = 0
    """Number of layers in the file. Layers behind `n_layer` draft tokens (multi-token prediction);
    the model is computed without them (see `models/next_layer.py`)."""
    n_token_types: int = 0
    """Number of token types (sentence A or B) in the file; 0: there are none."""
    drafts: DraftConfig | None = None
    """The states that a model that drafts reads of its target; None: it is a model of its own."""

    @property
    def n_logits(self) -> int:
        """Number of logits of a token."""
        return (self.drafts.n_vocab if self.drafts else 0) or self.n_vocab

    @property
    def reads_first(self) -> bool:
        """True if what is read first has a graph of its own: an encoder's prompt, or the states of
        a target."""
        return self.n_encoder > 0 or (self.drafts is not None and self.drafts.fuses)

    @property
    def n_scores(self) -> int:
        """How many scores the classifier gives; 0: there is none."""
        return self.classifier[1] or self.classifier[0]

    @property
    def score_pooling(self) -> Pooling:
        """The pooling in front of the classifier: unless the file says it, the token that has seen
        all others."""
        if self.classifier_pooling != "none":
            return self.classifier_pooling
        return "last" if self.causal else "cls"

    @property
    def n_embd_out(self) -> int:
        """The width of a text's embedding."""
        return self.dense[-1] if self.dense else self.n_embd

    @property
    def unused_layers(self) -> range:
        """The layers in the file that draft tokens, without which the model is computed."""
        return range(self.n_layer, max(self.n_blocks, self.n_layer))

    @property
    def unused_tensors(self) -> list[str]:
        """What the names of tensors begin with that a file may have and weft does not use."""
        layers = [f"blk.{il}." for il in self.unused_layers]
        shared = [il for il in range(self.n_layer) if self.kv_source(il) != il]
        if self.drafts is not None:  # the tokens of its own vocabulary, and fewer logits at once
            layers += ["d2t", "masked_embd_"]
        return layers + [
            f"blk.{il}.attn_{name}" for il in shared for name in ("k.", "v.", "k_norm.")
        ]

    def without_rope(self) -> ModelConfig:
        """The same config without rotary embedding."""
        return replace(self, rope=replace(self.rope, n_dims=0), ropes=())

    @property
    def n_deepstack(self) -> int:
        """Number of further parts of an image's row."""
        return len(self.deepstack)

    @property
    def row_width(self) -> int:
        """Numbers of a row that stands in place of a token."""
        return self.n_embd * (1 + self.n_deepstack)

    def n_head(self, il: int = 0) -> int:
        """The number of query heads of layer `il`."""
        return self.heads[il]

    def n_head_kv(self, il: int = 0) -> int:
        """The number of key/value heads of layer `il`."""
        return self.heads_kv[il]

    def n_ff(self, il: int = 0) -> int:
        """The inner width of the feed-forward layer `il`."""
        return self.widths[il]

    def d_k(self, il: int) -> int:
        """The number of elements of a query or key head of layer `il`."""
        return (self.is_windowed(il) and self.head_dim_window) or self.head_dim_k

    def d_v(self, il: int) -> int:
        """The number of elements of a value head of layer `il`."""
        own = self.is_windowed(il) and (self.head_dim_v_window or self.head_dim_window)
        return own or self.head_dim_v

    def n_embd_k(self, il: int = 0) -> int:
        """The number of elements of one cached key of layer `il`, all heads together."""
        return self.heads_kv[il] * self.d_k(il)

    def n_embd_v(self, il: int = 0) -> int:
        """The number of elements of one cached value of layer `il`, all heads together."""
        return self.heads_kv[il] * self.d_v(il)

    def kv_source(self, il: int) -> int:
        """The layer whose keys and values layer `il` attends to."""
        return self.kv_sources[il] if self.kv_sources else il

    @property
    def kq_scale(self) -> float:
        """The factor of attention scores, 1 / sqrt(head size) unless the file states another."""
        return self.attn_scale or 1.0 / math.sqrt(self.head_dim_k)

    def rope_of(self, il: int) -> RopeConfig:
        """The rotary embedding of layer `il`; its n_dims is 0 if the layer has none."""
        return self.ropes[il] if self.ropes else self.rope

    def is_windowed(self, il: int) -> bool:
        """True if layer `il` sees only the sliding window."""
        return bool(self.windowed) and self.windowed[il]

    @property
    def window(self) -> int:
        """The sliding window in positions; 0 if no layer has one."""
        return self.sliding_window if any(self.windowed) else 0

    @property
    def window_kept(self) -> int:
        """The number of last positions whose rows layers with a window keep: those that attention
        sees, and those from which the next compressed keys are computed."""
        spans = self.compression.spans if self.compression and self.window else ()
        return max(self.window, *spans, 0)
