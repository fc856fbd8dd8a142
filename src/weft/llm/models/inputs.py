"""`make_step`: the inputs of a model's graph; `GraphOptions`: its sizes and what it computes."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.llm.cache.kv_cache import KVCache
from weft.llm.config import ModelConfig
from weft.llm.models.step import Blocks, Step, Together
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """The sizes of a graph, and what it reads and keeps."""

    n_ubatch: int
    """Maximum number of tokens."""
    n_outputs: int
    """Maximum number of tokens whose rows are computed."""
    flash: bool = True
    """True computes attention as one op."""
    rows_in: bool = False
    """True reads rows instead of tokens. An encoder reads the tokens of one text then, and writes
    what the decoder reads to the text's cells; a model that drafts reads the states of its
    target."""
    together: Together | None = None
    """For recurrent models, the sizes for several sequences; None: all tokens are of one."""
    states: bool | tuple[int, ...] = False
    """True adds the output `states`, what the output projection reads of every token; numbers of
    layers: their inputs, side by side."""


def make_step(
    config: ModelConfig,
    cache: KVCache,
    options: GraphOptions,
    *,
    rope_mode: G.RopeMode,
    typed: bool,
) -> Step:
    """The inputs for any batch up to `options.n_ubatch` tokens over any part of `cache`; `typed` is
    True if tokens have types.

    With shapes outermost first, they are:

        tokens                i32 [n_tokens]; with `rows_in` instead embd f32 [n_tokens, n_embd],
                              or of an encoder embd i32 [n_tokens]
        positions             i32 [n_tokens]; with `rows_in` [4 n_tokens] (M-RoPE)
        cells                 i64 [n_tokens]
        mask                  f16 [n_tokens, n_kv]
        window_mask           f16 [n_tokens, n_kv or n_kv_window], for sliding-window layers
        window_cells          i64 [n_tokens], if these have cells of their own
        block_cells_R, block_sources_R, block_bias_R, block_positions_R, block_places_R,
        block_mask_R and block_rows_R, as `Blocks` says, for compressed keys of R positions each
        places, forced_blocks as `Step.block_places` says, for models that choose blocks
        ngram_rows            i32 [n_tokens * rows of n-grams], if the model has such embeddings
        types                 i32 [n_tokens], if the model has several types of tokens
        buckets               i32 [n_tokens, n_kv], if scores have biases by distance; of an
                              encoder [n_tokens, n_tokens]
        cross_mask            f16 [n_tokens, n_kv], if there is an encoder, for the cells with
                              its output
        out_ids               i32 [n_outputs], the tokens whose rows are computed
        state_in, state_out   i32 [n_seqs], for recurrent models
        states_in             f32 [n_tokens, n], for a model that drafts

    With `together`, n_tokens is n_seqs times n_seq_tokens."""
    n_tokens, n_seqs = _n_tokens(options)
    n_kv = G.Sym("n_kv", 1, cache.size)
    n_out = G.Sym("n_outputs", 1, options.n_outputs)
    encodes = options.rows_in and config.n_encoder > 0
    planes = options.rows_in and bool(config.rope_sections)
    embd = None
    if options.rows_in and not encodes and config.drafts is None:
        embd = G.input("embd", (n_tokens, config.row_width), "f32")
    window_mask, window_cells = _window(config, cache, n_tokens, n_kv)
    width = n_tokens if encodes else n_kv
    relative, crossed = config.n_buckets > 0, config.n_encoder > 0 and not encodes
    kept = options.states if isinstance(options.states, tuple) else ()
    step = Step(
        config=config,
        cache=cache,
        tokens=G.input("embd" if encodes else "tokens", (n_tokens,), "i32"),
        embd=embd,
        positions=G.input("positions", (4 * n_tokens if planes else n_tokens,), "i32"),
        cells=G.input("cells", (n_tokens,), "i64"),
        mask=G.input("mask", (n_tokens, n_kv), "f16"),
        window_mask=window_mask,
        window_cells=window_cells,
        blocks={
            ratio: Blocks.inputs(cells, n_tokens, options.n_ubatch, n_kv.size, n_seqs)
            for ratio, cells in cache.blocks.items()
        },
        out_ids=G.input("out_ids", (n_out,), "i32"),
        rope_mode=rope_mode,
        flash=options.flash,
        types=G.input("types", (n_tokens,), "i32") if typed else None,
        buckets=G.input("buckets", (n_tokens, width), "i32") if relative else None,
        cross_mask=G.input("cross_mask", (n_tokens, n_kv), "f16") if crossed else None,
        states=[] if options.states is True or config.n_layer in kept else None,
        kept=kept,
    )
    return _with_parts(step, n_tokens, n_seqs, options.rows_in)


def _n_tokens(options: GraphOptions) -> tuple[Size, Size]:
    """The number of tokens, and of sequences."""
    together = options.together
    if together is None:
        return G.Sym("n_tokens", 1, options.n_ubatch).size, 1
    n_seqs = G.Sym("n_seqs", 1, together.n_seqs).size
    return n_seqs * G.Sym("n_seq_tokens", 1, together.n_each).size, n_seqs


def _window(
    config: ModelConfig, cache: KVCache, n_tokens: Size, n_kv: G.Sym
) -> tuple[Tensor | None, Tensor | None]:
    """The mask and the cells of sliding-window layers; None: there are none of their own."""
    if not config.window:
        return None, None
    if cache.window is None:
        return G.input("window_mask", (n_tokens, n_kv), "f16"), None
    n_seen = G.Sym("n_kv_window", 1, cache.window.size)
    cells = G.input("window_cells", (n_tokens,), "i64")
    return G.input("window_mask", (n_tokens, n_seen), "f16"), cells


def _with_parts(step: Step, n_tokens: Size, n_seqs: Size, rows_in: bool) -> Step:
    """`step` with the inputs of parts that few models have."""
    c = step.config
    fused = c.drafts is not None and rows_in and c.drafts.fuses
    if c.drafts is not None and (width := c.drafts.n_in(fused=fused)):
        states_in = G.input("states_in", (n_tokens, width), "f32")
        step = replace(step, states_in=states_in, fused=fused)
    if c.chosen_blocks is not None and c.chosen_blocks.chooses(step.cache.size):
        n_blocks = c.chosen_blocks.n_blocks(step.cache.size)
        places = G.input("places", (n_tokens, n_blocks * c.chosen_blocks.size), "i32")
        forced = G.input("forced_blocks", (n_tokens, n_blocks), "f32")
        step = replace(step, block_places=(places, forced))
    if c.ngrams is not None:
        hashed = G.input("ngram_rows", (len(c.ngrams.counts) * n_tokens,), "i32")
        step = replace(step, ngram_rows=hashed)
    if c.recurrent is not None:
        slots = G.input("state_in", (n_seqs,), "i32"), G.input("state_out", (n_seqs,), "i32")
        step = replace(step, slots=slots, n_seqs=n_seqs)
    return step
