"""`Step`: the inputs from which a model's graph is built; `Together`: how many sequences it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from weft import graph as G
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache
from weft.llm.config import ModelConfig
from weft.records import dataclass

__all__ = ["Step", "Together", "together_sizes"]


@dataclass(frozen=True, slots=True)
class Together:
    """The largest ubatch of the graph that computes several sequences at once."""

    n_seqs: int
    """Most sequences."""
    n_each: int
    """Most tokens of each sequence."""


def together_sizes(n_ubatch: int, n_seq_max: int) -> Together | None:
    """The sizes of the graph for several sequences: `n_seq_max` of them share a ubatch equally, so
    that the graph needs memory for one ubatch. None: there is only one sequence."""
    n_seqs = min(n_seq_max, n_ubatch)
    return Together(n_seqs, n_ubatch // n_seqs) if n_seqs > 1 else None


@dataclass(frozen=True, slots=True)
class Step:
    """The config, the cache and the inputs from which a graph is built. The context fills the
    inputs for each ubatch."""

    config: ModelConfig
    cache: KVCache
    tokens: Tensor
    """i32 [n_tokens]"""
    positions: Tensor
    """i32 [n_tokens]"""
    cells: Tensor
    """i64 [n_tokens]: the cache cell that each token is written to."""
    mask: Tensor
    """f16 [n_kv, n_tokens]: 0 where a token sees a cell, -inf elsewhere."""
    window_mask: Tensor | None
    """The mask of sliding-window layers; None if the architecture has none."""
    out_ids: Tensor
    """i32 [n_outputs]: the tokens whose logits are wanted."""
    rope_mode: G.RopeMode
    """Elements of a head that rotate together; see `Architecture.rope_mode`."""
    flash: bool = True
    """True computes attention as one op (FLASH_ATTN_EXT), False as matmuls around a softmax."""
    embd: Tensor | None = None
    """f32 [n_embd, n_tokens] in place of the tokens' embeddings."""

    types: Tensor | None = None
    """i32 [n_tokens]: the type of each token; None when the model has one type or none."""

    buckets: Tensor | None = None
    """i32 [n_kv, n_tokens]: the bucket of the distance of each cell from each token; None when the
    model has no biases by distance. For an encoder the other tokens stand in place of cells."""
    cross_mask: Tensor | None = None
    """f16 [n_kv, n_tokens]: as `mask`, for the cells with the encoder's output, which `mask` leaves
    out; None when there is no encoder, and in its own graph."""

    window_cells: Tensor | None = None
    """i64 [n_tokens]: the same as `cells` for sliding-window layers with cells of their own."""
    slots: tuple[Tensor, Tensor] | None = None
    """For recurrent models, the slots of states to read and to write, i32 [n_seqs] each. Tokens are
    then sorted by sequence and position, with the same number for each sequence."""
    n_seqs: Size = 1
    """Number of sequences."""
    directions: Mapping[int, Tensor] = field(default_factory=dict)
    """Directions of control vectors by layer, f32 [n_vectors, n_embd] each."""
    vector_scales: tuple[Tensor, ...] = ()
    """Scales of the control vectors, f32 [n_vectors, n]: for all tokens, and for the tokens whose
    logits are wanted."""
    writes: list[Tensor] = field(default_factory=list)
    """Writes of recurrent states, which the graph computes besides its output."""

    kv: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Keys and values in the cache by layer, once that layer has written its own."""

    values: list[Tensor] = field(default_factory=list)
    """Values of the first layer that others mix in, [n_embd, n_tokens]."""

    states_in: Tensor | None = None
    """f32 [n_embd, n_tokens]: for a layer that drafts, the states of the model's last layer."""
    states: list[Tensor] | None = None
    """Collects the inputs of the output projection, [n_embd, n_tokens], for every token; None: they
    are computed for the tokens whose logits are wanted."""

    chosen: list[Tensor] = field(default_factory=list)
    """Masks of the positions that layers have chosen, f16 [n_kv, n_tokens] each."""

    @property
    def n_seq_tokens(self) -> Size:
        """Number of tokens of each sequence."""
        each = exact_div(self.tokens.ne[0], self.n_seqs)
        assert each is not None
        return each

    def mask_of(self, il: int) -> Tensor:
        """The attention mask of layer `il`."""
        if not self.config.is_windowed(il):
            return self.mask
        assert self.window_mask is not None
        return self.window_mask

    def cells_of(self, il: int) -> Tensor:
        """The cells that layer `il` writes to."""
        small = self.window_cells is not None and self.config.is_windowed(il)
        return self.window_cells if small and self.window_cells is not None else self.cells
