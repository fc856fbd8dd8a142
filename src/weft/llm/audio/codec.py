"""The codec of Pocket TTS, frame after frame: SEANet (arXiv 2009.02095) around a transformer with a
window (Mimi, arXiv 2410.00037). A frame of samples becomes a latent, and a latent a frame of
samples.

All convolutions are causal, so what a frame needs of the frames before it is a few columns of each,
which a graph gets and gives back (`Columns`); the keys and values of the window are in caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.dtype import find_dtype
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Buffer, Tensor
from weft.llm.cache.memory import allocate
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass

EPS = 1e-5
_STAGES = 8
"""Maximum number of stages of a SEANet."""
_FRAME = 1 << 16
"""Maximum number of samples of a frame."""


@dataclass(frozen=True, slots=True)
class SeanetConfig:
    """The sizes of one half of the codec, whose convolutions are read from the tensors."""

    at: str
    """The beginning of the names of its tensors."""
    blocks: str
    """The beginning of the names of its transformer's tensors."""
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    base: float
    """The base of rotary embeddings."""
    window: int
    """Rows of the transformer that a row sees, itself included."""
    ratios: tuple[int, ...]
    """Strides of the stages, in order."""
    stride: int
    """Rows of the transformer in a frame."""

    @property
    def frame(self) -> int:
        """Samples of a frame."""
        return prod(self.ratios) * self.stride


def read_seanet_config(file: GGUFFile, decoder: bool) -> SeanetConfig:
    """Reads the keys of a half and the sizes of its kernels. Raises FormatError for a file that is
    damaged."""
    keys = Keys(file)
    part = "gen.audio" if decoder else "audio"
    at = "a.gen.wav.seanet" if decoder else "a.seanet"
    outer = "a.gen.wav.upsample.weight" if decoder else "a.downsample.conv.weight"
    n_embd = keys.count(f"{part}.embedding_length", most=1 << 16)
    n_head = keys.count(f"{part}.attention.head_count", most=1 << 12)
    if n_embd % (2 * n_head):
        raise keys.bad(f"{part}.attention.head_count", n_head, f"a divisor of half of {n_embd}")
    n_stage = 0
    while f"{at}.blk.{n_stage}.scale_conv.weight" in file.tensors:
        n_stage += 1
    if not 1 <= n_stage <= _STAGES:
        raise FormatError(f"{file.path}: {n_stage} stages of {at}; there are 1 to {_STAGES}")
    ratios = tuple(_half(file, f"{at}.blk.{i}.scale_conv.weight") for i in range(n_stage))
    stride = _half(file, outer)
    if prod(ratios) * stride > _FRAME:
        raise FormatError(f"{file.path}: a frame has more than {_FRAME} samples; it is damaged")
    return SeanetConfig(
        at=at,
        blocks="a.gen.wav.tfm.blk" if decoder else "a.blk",
        n_embd=n_embd,
        n_ff=keys.count(f"{part}.feed_forward_length", most=1 << 18),
        n_layer=keys.count(f"{part}.block_count", most=1 << 8),
        n_head=n_head,
        base=keys.number("gen.audio.rope.freq_base", 10000.0, above=0.0),
        window=keys.count("gen.audio.attention.sliding_window", 250, most=1 << 14),
        ratios=ratios,
        stride=stride,
    )


def _half(file: GGUFFile, name: str) -> int:
    """The stride of a convolution whose kernel is twice as long."""
    info = file.tensors.get(name)
    if info is None or info.ne[0] % 2 or info.ne[0] < 2:
        raise FormatError(f"{file.path}: {name} has no kernel of two strides; it is damaged")
    return info.ne[0] // 2


def codec_rows(c: SeanetConfig, file: GGUFFile) -> Iterator[Row]:
    """The tensors of a half. Widths between stages are read from the file's kernels; what they are
    multiplied with has to fit."""
    decoder = c.at.startswith("a.gen")
    width = _sizes(file, f"{c.at}.conv_in.weight")[2]
    n_in = c.n_embd if decoder else 1
    yield from _conv(file, f"{c.at}.conv_in", n_in, width)
    for i in range(len(c.ratios)):
        at = f"{c.at}.blk.{i}"
        inner = width
        if decoder:
            inner = _sizes(file, f"{at}.scale_conv.weight")[1]
            yield need(f"{at}.scale_conv.weight", 2 * c.ratios[i], inner, width)
            yield need(f"{at}.scale_conv.bias", inner)
        narrow = _sizes(file, f"{at}.res_conv1.weight")[2]
        yield from _conv(file, f"{at}.res_conv1", inner, narrow)
        yield from _conv(file, f"{at}.res_conv2", narrow, inner)
        if not decoder:
            inner = _sizes(file, f"{at}.scale_conv.weight")[2]
            yield from _conv(file, f"{at}.scale_conv", width, inner)
        width = inner
    yield from _conv(file, f"{c.at}.conv_out", width, 1 if decoder else c.n_embd)
    for il in range(c.n_layer):
        at = f"{c.blocks}.{il}"
        for name in ("ln1", "ln2"):
            yield need(f"{at}.{name}.weight", c.n_embd)
            yield need(f"{at}.{name}.bias", c.n_embd)
        for name in "qkv":
            yield need(f"{at}.attn_{name}.weight", c.n_embd, c.n_embd)
        yield need(f"{at}.attn_out.weight", c.n_embd, c.n_embd)
        yield need(f"{at}.ffn_up.weight", c.n_embd, c.n_ff)
        yield need(f"{at}.ffn_down.weight", c.n_ff, c.n_embd)
        for name in ("ls1", "ls2"):
            yield maybe(f"{at}.{name}.weight", c.n_embd)


def _conv(file: GGUFFile, name: str, n_in: int, n_out: int) -> Iterator[Row]:
    yield need(f"{name}.weight", _sizes(file, f"{name}.weight")[0], n_in, n_out)
    yield need(f"{name}.bias", n_out)


def _sizes(file: GGUFFile, name: str) -> tuple[int, ...]:
    info = file.tensors.get(name)
    if info is None:
        raise FormatError(f"{file.path}: tensor {name} is missing; convert the model again")
    return info.ne


class Columns:
    """The columns that the convolutions of a graph need from the frame before: inputs and outputs
    of the graph, by name. They are zeros in front of the first frame."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, int]] = {}
        """Sizes f32 [channels, columns], outermost first."""
        self.writes: list[Tensor] = []

    def before(self, name: str, n: int, channels: int) -> Tensor:
        """The columns [n, channels] of the frame before."""
        self.shapes[name] = channels, n
        return G.input(name, (channels, n), "f32")

    def after(self, name: str, x: Tensor) -> None:
        """The columns for the next frame."""
        self.writes.append(G.cont(x).as_output(f"{name}.next"))

    def first(self) -> dict[str, NDArray[np.float32]]:
        """The values in front of the first frame."""
        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}

    def following(self, out: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        """The values in front of the next frame, from the results of a run."""
        return {name: out[f"{name}.next"].reshape(shape) for name, shape in self.shapes.items()}


class Window:
    """The keys and values that the transformer of a half keeps: of the rows of a frame, and of the
    rows before that they see."""

    def __init__(self, c: SeanetConfig) -> None:
        self.c = c
        self.n = c.window - 1 + c.stride
        f32 = find_dtype("f32")

        def leaf(name: str) -> Tensor:
            memory = allocate(None, f32.row_bytes(c.n_embd) * self.n, name, "the codec")
            buffer = Buffer("any", None, memory)
            return Tensor(f32, (c.n_embd, self.n, 1, 1), name=name, buffer=buffer)

        self.caches = [
            (leaf(f"{c.blocks}.{il}.k"), leaf(f"{c.blocks}.{il}.v")) for il in range(c.n_layer)
        ]

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Positions, cells, and which cells a row sees."""
        n = self.c.stride
        return (
            G.input("positions", (n,), "i32"), G.input("cells", (n,), "i64"),
            G.input("mask", (n, self.n), "f16"),
        )  # fmt: skip

    def values(self, frame: int) -> dict[str, NDArray[np.generic]]:
        """The values of these inputs for a frame. Cells are used in turn."""
        n = self.c.stride
        at = np.arange(frame * n, (frame + 1) * n)
        # the position in each cell, once this frame is written
        cells = np.arange(self.n)
        there = at[-1] - (at[-1] - cells) % self.n
        seen = (there >= 0) & (there <= at[:, None]) & (there > at[:, None] - self.c.window)
        return {
            "positions": at.astype(np.int32), "cells": (at % self.n).astype(np.int64),
            "mask": np.where(seen, 0, -np.inf).astype(np.float16),
        }  # fmt: skip


def transformed(w: Weights, window: Window, x: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """The rows [n_embd, n] of a frame behind the transformer."""
    c = window.c
    positions, cells, mask = inputs
    d, n = c.n_embd // c.n_head, c.stride
    row = window.caches[0][0].nb[1]
    for il, caches in enumerate(window.caches):
        layer = w.part(f"{c.blocks}.{il}.")
        y = common.layer_norm(layer, "ln1", x, EPS)
        q, k, v = (G.mul_mat(layer[f"attn_{name}.weight"], y) for name in "qkv")
        q, k = (
            G.rope(
                G.reshape(t, d, c.n_head, n), positions, mode=G.RopeMode.NORMAL, n_dims=d,
                freq_base=c.base,
            )
            for t in (q, k)
        )  # fmt: skip
        kept = [
            G.set_rows(cache, G.reshape(t, c.n_embd, n), cells)
            for cache, t in zip(caches, (k, v), strict=True)
        ]
        k, v = (G.view_3d(t, d, window.n, c.n_head, row, 4 * d) for t in kept)
        y = G.flash_attn_ext(G.permute(q, 0, 2, 1, 3), k, v, mask, scale=1 / math.sqrt(d))
        x = G.add(
            x, _scaled(layer, "ls1", G.mul_mat(layer["attn_out.weight"], G.reshape(y, c.n_embd, n)))
        )
        y = common.layer_norm(layer, "ln2", x, EPS)
        y = G.mul_mat(layer["ffn_down.weight"], G.gelu(G.mul_mat(layer["ffn_up.weight"], y)))
        x = G.add(x, _scaled(layer, "ls2", y)).named(f"{c.blocks}-{il}")
    return x


def _scaled(layer: Weights, name: str, x: Tensor) -> Tensor:
    return G.mul(x, layer[f"{name}.weight"]) if f"{name}.weight" in layer else x


# ---- convolutions, whose rows x are [channels, n] ------------------------------------------------


def convolved(w: Weights, name: str, x: Tensor, columns: Columns, stride: int = 1) -> Tensor:
    """A causal convolution of x [c, n]: [c_out, n / stride]."""
    kernel = w[f"{name}.weight"]
    k, n_in, n_out = kernel.ne[:3]
    assert isinstance(k, int) and isinstance(n_in, int) and isinstance(n_out, int)
    bias = w[f"{name}.bias"] if f"{name}.bias" in w else None
    flat = G.reshape(kernel, k * n_in, n_out)
    if k > 1:
        x = G.cont(G.transpose(x))
        if k > stride:
            x = G.concat(columns.before(name, k - stride, n_in), x, 0)
            columns.after(name, _end(x, k - stride))
        x = G.im2col(kernel, x, (stride, 0), (0, 0), (1, 0), is_2d=False)
    y = G.mul_mat(flat, x)
    return y if bias is None else G.add(y, bias)


def _end(x: Tensor, n: int) -> Tensor:
    """The last n columns of x [m, c]."""
    m, channels = x.ne[0], x.ne[1]
    assert isinstance(m, int)
    return G.view_2d(x, n, channels, x.nb[1], (m - n) * 4)


def spread(w: Weights, name: str, x: Tensor, columns: Columns, stride: int) -> Tensor:
    """A causal transposed convolution of x [c, n] with a kernel of two strides: [c_out, n stride].
    What reaches beyond its rows is added to the next frame's."""
    kernel = w[f"{name}.weight"]
    n, n_out = x.ne[1], kernel.ne[1]
    assert isinstance(n, int) and isinstance(n_out, int)
    y = G.conv_transpose_1d(kernel, G.cont(G.transpose(x)), stride)
    y = _overlapped(y, name, n * stride, stride, columns)
    y = G.cont(G.transpose(y))
    return G.add(y, w[f"{name}.bias"]) if f"{name}.bias" in w else y


def _overlapped(y: Tensor, name: str, n: int, over: int, columns: Columns) -> Tensor:
    """The first n columns of y [n + over, c], the first of them with the rest of the frame
    before."""
    channels = y.ne[1]
    assert isinstance(channels, int)
    columns.after(name, _end(y, over))
    head = G.add(
        G.cont(G.view_2d(y, over, channels, y.nb[1], 0)), columns.before(name, over, channels)
    )
    if n == over:
        return head
    rest = G.view_2d(y, n - over, channels, y.nb[1], over * 4)
    return G.concat(head, G.cont(rest), 0)


def _residual(w: Weights, at: str, x: Tensor, columns: Columns) -> Tensor:
    y = convolved(w, f"{at}.res_conv1", G.elu(x), columns)
    return G.add(x, convolved(w, f"{at}.res_conv2", G.elu(y), columns))


def decoded(c: SeanetConfig, w: Weights, x: Tensor, columns: Columns) -> Tensor:
    """The samples [frame] of the rows [n_embd, stride] of a frame."""
    x = convolved(w, f"{c.at}.conv_in", x, columns)
    for i, ratio in enumerate(c.ratios):
        at = f"{c.at}.blk.{i}"
        x = _residual(w, at, spread(w, f"{at}.scale_conv", G.elu(x), columns, ratio), columns)
    x = convolved(w, f"{c.at}.conv_out", G.elu(x), columns)
    return G.reshape(x, c.frame)


def encoded(c: SeanetConfig, w: Weights, samples: Tensor, columns: Columns) -> Tensor:
    """The rows [n_embd, stride] of the samples [frame] of a frame."""
    x = convolved(w, f"{c.at}.conv_in", G.reshape(samples, 1, c.frame), columns)
    for i, ratio in enumerate(c.ratios):
        at = f"{c.at}.blk.{i}"
        x = G.elu(_residual(w, at, x, columns))
        x = convolved(w, f"{at}.scale_conv", x, columns, ratio)
    return convolved(w, f"{c.at}.conv_out", G.elu(x), columns)


def upsampled(c: SeanetConfig, w: Weights, x: Tensor, columns: Columns) -> Tensor:
    """The rows [n_embd, stride] that one row [n_embd, 1] becomes; each channel has a kernel of its
    own."""
    name, n = "a.gen.wav.upsample", c.stride
    kernel = G.cast(G.reshape(w[f"{name}.weight"], 2 * n, c.n_embd), "f32")
    y = G.mul(kernel, G.reshape(x, 1, c.n_embd))
    return G.cont(G.transpose(_overlapped(y, name, n, n, columns)))


def downsampled(c: SeanetConfig, w: Weights, x: Tensor, columns: Columns, first: Tensor) -> Tensor:
    """The latent [n_latent, 1] of the rows [n_embd, stride] of a frame. Its first row stands again
    in front of the first frame, where `first` [1] is 1; it is 0 for the others."""
    name, n = "a.downsample.conv", c.stride
    kernel = w[f"{name}.weight"]
    n_out = kernel.ne[2]
    assert isinstance(n_out, int)
    x = G.cont(G.transpose(x))
    column = G.mul(G.cont(G.view_2d(x, 1, c.n_embd, x.nb[1], 0)), first)
    left = G.add(columns.before(name, n, c.n_embd), G.repeat(column, (n, c.n_embd)))
    columns.after(name, x)
    x = G.im2col(kernel, G.concat(left, x, 0), (n, 0), (0, 0), (1, 0), is_2d=False)
    return G.mul_mat(G.reshape(kernel, 2 * n * c.n_embd, n_out), x)
