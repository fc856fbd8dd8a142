"""`Step`: the inputs from which a model's graph is built; `Together`: how many sequences it has.

Here are also the parts that recurrent layers share: convolutions over the last tokens, scans and
the delta rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from weft import graph as G
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.cache.cells import BlockCells
from weft.llm.cache.kv_cache import KVCache
from weft.llm.config import ModelConfig
from weft.llm.config_parts import RecurrentConfig
from weft.records import dataclass


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
class Blocks:
    """The inputs for compressed keys of one ratio, for the blocks that this step ends."""

    cells: Tensor
    """i64 [n_blocks]: the row that each key is written to."""
    sources: Tensor
    """i32 [span n_blocks]: the cells of the tokens from which each key is computed."""
    bias: Tensor
    """f32 [span, 1, n_blocks]: -inf where such a token does not exist, else 0."""
    positions: Tensor
    """i32 [n_blocks]: the position of the first token of each block."""
    places: Tensor
    """i32 [n_tokens]: the place of each token in its block."""
    mask: Tensor
    """f16 [n_compressed, n_tokens]: 0 where a token sees a key, -inf elsewhere."""
    rows: Tensor
    """i32 [n_kv, n_seqs]: for each cell and sequence, the row of the key whose block the cell's
    position is in; n_compressed if there is none."""

    @staticmethod
    def inputs(
        cells: BlockCells, n_tokens: Size, n_ubatch: int, n_kv: Size, n_seqs: Size
    ) -> Blocks:
        """The inputs for keys in `cells`."""
        ratio = cells.ratio
        most = n_ubatch // ratio + min(cells.n_seq_max, n_ubatch)
        n = G.Sym(f"n_blocks_{ratio}", 1, most).size
        n_seen = G.Sym(f"n_compressed_{ratio}", 1, cells.size)
        return Blocks(
            cells=G.input(f"block_cells_{ratio}", (n,), "i64"),
            sources=G.input(f"block_sources_{ratio}", (cells.span * n,), "i32"),
            bias=G.input(f"block_bias_{ratio}", (n, 1, cells.span), "f32"),
            positions=G.input(f"block_positions_{ratio}", (n,), "i32"),
            places=G.input(f"block_places_{ratio}", (n_tokens,), "i32"),
            mask=G.input(f"block_mask_{ratio}", (n_tokens, n_seen), "f16"),
            rows=G.input(f"block_rows_{ratio}", (n_seqs, n_kv), "i32"),
        )


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
    blocks: Mapping[int, Blocks] = field(default_factory=dict)
    """The inputs for compressed keys, by the number of positions in a block."""
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
    """f32 [n, n_tokens]: for a model that drafts, states of its target, or its own."""
    fused: bool = False
    """True if these are the target's, which have a graph of their own (`DraftConfig.fuses`)."""
    states: list[Tensor] | None = None
    """Collects the inputs of the output projection, [n_embd, n_tokens], for every token; None: they
    are computed for the tokens whose logits are wanted."""

    kept: tuple[int, ...] = ()
    """Layers whose inputs are kept for a model that drafts; layer 1 is the second."""
    inputs: dict[int, Tensor] = field(default_factory=dict)
    """The inputs of these layers, [n_embd, n_tokens] each."""

    block_places: tuple[Tensor, Tensor] | None = None
    """For models that choose blocks of positions: i32 [n_blocks * size, n_tokens], the cell of each
    position of each block of the token's text, and n_kv where it has none; f32 [n_blocks,
    n_tokens], what is added to the scores of blocks. None: all blocks are seen."""

    ngram_rows: Tensor | None = None
    """i32 [n_parts * n_tokens]: rows of the embeddings of n-grams, in models that have them."""

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


# The parts of recurrent layers: a causal convolution, a selective scan and the gated delta rule.
# Each reads a state from one slot of the layer's table and writes the new state to another.

_EPS = 1e-6
_SIZE = 4  # bytes of a float32


def recurs(c: ModelConfig, il: int) -> bool:
    """True if layer `il` is recurrent; a layer that drafts never is."""
    return c.recurrent is not None and c.recurrent.layers[il]


def require_recurrent(c: ModelConfig) -> RecurrentConfig:
    """The sizes of recurrent layers, which `configure` has set."""
    assert c.recurrent is not None
    return c.recurrent


def convolve(step: Step, il: int, x: Tensor, kernel: Tensor) -> Tensor:
    """Convolves each channel of x [n_channels, n_tokens] with its kernel [d_conv, n_channels]. The
    state has the inputs before the first token."""
    r, n, n_seqs = require_recurrent(step.config), step.n_seq_tokens, step.n_seqs
    assert step.slots is not None and step.cache.states is not None
    kept, table = r.d_conv - 1, step.cache.states.conv[il]
    before = G.reshape(G.get_rows(table, step.slots[0]), kept, r.n_channels, n_seqs)
    across = G.cont(G.transpose(G.reshape(x, r.n_channels, n, n_seqs)))
    inputs = G.concat(before, across, 0)  # [kept + n, n_channels, n_seqs]
    inputs = inputs.named(f"conv_input-{il}")
    nb = inputs.nb
    last = G.view_3d(inputs, kept, r.n_channels, n_seqs, nb[1], nb[2], n * _SIZE)
    last = G.reshape(G.cont(last), r.conv_size, n_seqs)
    step.writes.append(G.set_rows(table, last, step.slots[1]))
    y = G.ssm_conv(inputs, kernel)
    return G.reshape(y, r.n_channels, x.ne[1])


def scan(step: Step, il: int, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Computes Mamba's selective scan over x [d_inner, n_tokens], with time steps dt [n_head,
    n_tokens] and b, c [d_state, n_group, n_tokens]; returns [d_inner, n_tokens]."""
    r, n, n_seqs = require_recurrent(step.config), step.n_seq_tokens, step.n_seqs
    assert step.slots is not None and step.cache.states is not None
    table = step.cache.states.state[il]
    states = G.reshape(table, r.d_state, r.head_dim, r.n_head, table.ne[1])
    heads = G.reshape(x, r.head_dim, r.n_head, n, n_seqs)
    dt = G.reshape(dt, r.n_head, n, n_seqs)
    b, c = (G.reshape(t, r.d_state, r.n_group, n, n_seqs) for t in (b, c))
    both = G.ssm_scan(states, heads, dt, a, b, c, step.slots[0]).named(f"ssm_scan-{il}")
    return kept_state(step, il, both)


def kept_state(step: Step, il: int, both: Tensor) -> Tensor:
    """Keeps the states that follow the outputs of a recurrence in `both`; returns the outputs
    [d_inner, n_tokens]."""
    r, n_tokens = require_recurrent(step.config), step.tokens.ne[0]
    assert step.slots is not None and step.cache.states is not None
    at = r.d_inner * n_tokens * _SIZE
    state = G.view_2d(both, r.state_size, step.n_seqs, r.state_size * _SIZE, at)
    step.writes.append(G.set_rows(step.cache.states.state[il], state, step.slots[1]))
    return G.view_2d(both, r.d_inner, n_tokens, r.d_inner * _SIZE, 0)


def unit(x: Tensor) -> Tensor:
    """The columns of x [d, ...], divided by their length."""
    d = x.ne[0]
    assert isinstance(d, int)
    return G.scale(G.rms_norm(x, _EPS / d), 1.0 / math.sqrt(d))


def delta_rule(
    step: Step, il: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> Tensor:
    """Updates the states of a gated delta net and reads them, for q, k, v [d, heads, n_tokens], g
    [1 or d, n_head, n_tokens] and beta [n_head, n_tokens]; returns [d, n_head, n_tokens]."""
    r, n, n_seqs = require_recurrent(step.config), step.n_seq_tokens, step.n_seqs
    assert step.slots is not None and step.cache.states is not None
    d, table = r.head_dim, step.cache.states.state[il]
    state = G.reshape(G.get_rows(table, step.slots[0]), d, d, r.n_head, n_seqs)
    q, k, v, g = (G.reshape(t, t.ne[0], t.ne[1], n, n_seqs) for t in (q, k, v, g))
    both = G.gated_delta_net(q, k, v, g, G.reshape(beta, 1, r.n_head, n, n_seqs), state)
    both = both.named(f"delta_rule-{il}")
    return G.reshape(kept_state(step, il, both), d, r.n_head, step.tokens.ne[0])


def beside(x: Tensor, n: int) -> Tensor:
    """Each head of x [d, n_head, n_tokens], `n` times beside itself."""
    d, n_head, n_tokens, _ = x.ne
    if n == 1:
        return x
    assert isinstance(d, int) and isinstance(n_head, int)
    wide = G.repeat(G.reshape(x, d, 1, n_head, n_tokens), (d, n, n_head, n_tokens))
    return G.reshape(wide, d, n * n_head, n_tokens)
