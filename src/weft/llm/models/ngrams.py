"""Embeddings of n-grams (Qwen4-Exp): the last tokens of a text, hashed to rows of a table.

A hash is the exclusive or of the last two (three, ..) tokens, each times a factor of its place. Its
remainders give rows of several parts of the table, whose values e, side by side, are a key for each
residual stream and one value:

    v[j] = sigmoid(root(norm(K[j] e) . norm(x[j]) / sqrt(n))) V e      root(s) = sign(s) sqrt(|s|)
    x[j] = x[j] + v[j] + silu(conv(norm(v))[j])

The convolution sees the token, and tokens at multiples of the size of the longest n-gram before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import NgramConfig
from weft.llm.models.common import linear
from weft.llm.models.hyper import grouped, hyper
from weft.llm.models.parts import linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

TABLE = "per_layer_token_embd.weight"
_SIZE = 4  # bytes of a float32
_MOST_PARTS = 1 << 8


def read_ngrams(c: ModelConfig, keys: Keys) -> NgramConfig | None:
    """The embeddings of n-grams that a file has; None: it has none."""
    full = f"{c.arch}.ple.layers"
    layers = keys.file.get_array(full) if full in keys.file.metadata else np.empty(0, np.int32)
    if not len(layers):
        return None
    if len(layers) > 1 or not 0 <= int(layers[0]) < c.n_layer:
        raise keys.bad("ple.layers", layers.tolist()[:8], f"one layer of 0..{c.n_layer - 1}")
    size = keys.count("ple.ngram_size", least=2, most=1 << 6)
    n = (size - 1) * keys.count("ple.heads_per_ngram", most=_MOST_PARTS)
    if n > _MOST_PARTS:
        raise keys.bad("ple.heads_per_ngram", n // (size - 1), f"{_MOST_PARTS} or less in all")
    multipliers = _numbers(c, keys, "ple.layer_multipliers", size, 1 << 63)
    offsets = _numbers(c, keys, "ple.head_offsets", n, 1 << 31)
    counts = _numbers(c, keys, "ple.head_vocab_sizes", n, 1 << 31)
    n_rows = max(a + b for a, b in zip(offsets, counts, strict=True))
    table = keys.file.tensors.get(TABLE)
    if min(counts) < 1 or n_rows >= 1 << 31 or (table is not None and table.ne[1] < n_rows):
        known = "" if table is None else f", and at most {table.ne[1]} rows"
        raise keys.bad("ple.head_vocab_sizes", list(counts)[:8], f"1 or more{known} in all")
    end = keys.count("ple.eos_token_id", least=0, most=c.n_vocab)
    return NgramConfig(
        layer=int(layers[0]),
        size=size,
        multipliers=multipliers,
        offsets=offsets,
        counts=counts,
        n_rows=n_rows if table is None else table.ne[1],
        width=keys.count("embedding_length_per_layer_input"),
        end=end,
        image=keys.count("ple.image_token_id", end, least=0, most=c.n_vocab),
        d_conv=keys.count("ple.conv_kernel", most=1 << 8),
    )


def _numbers(c: ModelConfig, keys: Keys, key: str, n: int, end: int) -> tuple[int, ...]:
    """The first `n` numbers of an array, from 0 to below `end`."""
    values = keys.file.get_array(f"{c.arch}.{key}")
    if len(values) < n or not np.issubdtype(values.dtype, np.integer):
        raise keys.bad(key, f"an array of {len(values)}", f"{n} integers")
    numbers = tuple(int(value) for value in values[:n])
    if min(numbers) < 0 or max(numbers) >= end:
        raise keys.bad(key, list(numbers)[:8], f"in 0..{end - 1}")
    return numbers


def ngrams_of(c: ModelConfig) -> NgramConfig:
    """The embeddings of n-grams, which `configure` has set."""
    assert c.ngrams is not None
    return c.ngrams


def conv_size(c: ModelConfig, ngrams: NgramConfig) -> int:
    """Number of elements that the convolution keeps of a text."""
    return (ngrams.d_conv - 1) * ngrams.size * hyper(c).count * c.n_embd


def table_row(c: ModelConfig) -> Row:
    """The table."""
    return need(TABLE, ngrams_of(c).width, ngrams_of(c).n_rows)


def ngram_rows(c: ModelConfig, il: int) -> Iterator[Row]:
    """The weights of the layer that reads embeddings of n-grams."""
    ngrams, b = ngrams_of(c), f"blk.{il}.ple"
    width, wide = ngrams.width * len(ngrams.counts), hyper(c).count * c.n_embd
    yield from linear_rows(f"{b}_key", width, wide)
    yield from linear_rows(f"{b}_value", width, c.n_embd)
    for name in ("key", "query", "conv"):
        yield need(f"{b}_norm_{name}.weight", wide)
    yield need(f"{b}_conv1d.weight", ngrams.d_conv, wide)


def with_ngrams(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """The streams x [n_embd, n_streams, n_tokens] with what the n-grams of their tokens add."""
    c, layer, rows = step.config, w.layer(il), step.ngram_rows
    assert rows is not None
    ngrams, (n_embd, n, n_tokens, _) = ngrams_of(c), x.ne
    e = G.get_rows(w[TABLE], rows).named("ple_embd")  # [width, n_parts * n_tokens]
    e = G.reshape(e, ngrams.width * len(ngrams.counts), n_tokens)
    keys = G.reshape(linear(layer, "ple_key", e), n_embd, n, n_tokens)
    keys = grouped(c, layer, "ple_norm_key", keys)
    scores = G.sum_rows(G.mul(keys, grouped(c, layer, "ple_norm_query", x)))
    scores = G.scale(scores, 1 / math.sqrt(c.n_embd))  # [1, n_streams, n_tokens]
    root = G.sqrt(G.clamp(G.abs(scores), 1e-6, math.inf))
    gate = G.sigmoid(G.mul(G.sgn(scores), root)).named(f"ple_gate-{il}")
    value = G.reshape(linear(layer, "ple_value", e), n_embd, 1, n_tokens)
    value = G.mul(G.repeat(value, (n_embd, n, n_tokens, 1)), gate).named(f"ple_gated_value-{il}")
    normed = G.reshape(grouped(c, layer, "ple_norm_conv", value), n_embd * n, n_tokens)
    y = G.silu(_convolved(step, il, normed, layer["ple_conv1d.weight"])).named(f"ple_conv_out-{il}")
    return G.add(x, G.add(value, G.reshape(y, n_embd, n, n_tokens)))


def _convolved(step: Step, il: int, x: Tensor, kernel: Tensor) -> Tensor:
    """Convolves each channel of x [n_channels, n_tokens] with its kernel [d_conv, n_channels],
    whose taps are some tokens apart. The state has the inputs before the first token."""
    ngrams, n, n_seqs, wide = ngrams_of(step.config), step.n_seq_tokens, step.n_seqs, x.ne[0]
    assert step.slots is not None and step.cache.states is not None
    kept, table = (ngrams.d_conv - 1) * ngrams.size, step.cache.states.dilated.get(il)
    inputs = G.cont(G.transpose(G.reshape(x, wide, n, n_seqs)))
    if table is not None:  # a kernel of one tap keeps nothing
        before = G.reshape(G.get_rows(table, step.slots[0]), kept, wide, n_seqs)
        inputs = G.concat(before, inputs, 0)  # [kept + n, n_channels, n_seqs]
        last = G.view_3d(inputs, kept, wide, n_seqs, inputs.nb[1], inputs.nb[2], n * _SIZE)
        last = G.reshape(G.cont(last), kept * wide, n_seqs)
        step.writes.append(G.set_rows(table, last, step.slots[1]))
    kernel = kernel if kernel.dtype.name == "f32" else G.cast(kernel, "f32")
    total = None
    for tap in range(ngrams.d_conv):
        start = tap * ngrams.size * _SIZE
        part = G.cont(G.view_3d(inputs, n, wide, n_seqs, inputs.nb[1], inputs.nb[2], start))
        factor = G.cont(G.view_2d(kernel, 1, wide, kernel.nb[1], tap * _SIZE))
        term = G.mul(part, factor)
        total = term if total is None else G.add(total, term)
    assert total is not None
    return G.reshape(G.cont(G.permute(total, 1, 0, 2, 3)), wide, x.ne[1])
