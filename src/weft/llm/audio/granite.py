"""The tower of Granite Speech (IBM, 2025): a conformer whose rows of two frames attend within
blocks, with learned distances (arXiv 1803.02155), and a Q-Former (arXiv 2301.12597) that makes a
few rows of each window. Half way up, the encoder adds what a layer of letters says.

The spectrogram is of the whole sound; parts of two minutes are heard by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.audio.conformer import half_fed
from weft.llm.audio.sounds import Samples
from weft.llm.audio.spectra import RATE, bands, hann, mel_filters
from weft.llm.audio.whisper import Part, SoundConfig, SoundFamily, read_sound_config
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.senses import qformer
from weft.llm.weights import Row, Weights, need, pair

EPS = 1e-5
_WINDOW, _HOP, _FFT = 400, 160, 512
_MOST = 6000
"""Maximum number of rows of the encoder that are computed at once: two minutes."""


class _Sizes(NamedTuple):
    """The widths of a config."""

    n_letters: int
    n_distances: int
    kernel: int
    n_conv: int
    n_ff: int
    n_queries: int
    n_layer: int
    context: int
    """Rows of a block."""
    middle: int
    """The number of the learned distance that is of a row to itself."""
    window: int
    """Rows of the encoder of which the Q-Former makes `n_queries`."""
    n_head: int
    """Heads of the Q-Former."""
    other: int
    """1 for a file in which the norm of convolutions has the name of its variance."""

    @property
    def norm(self) -> str:
        """The name of the norm of convolutions."""
        return "conv_norm_var" if self.other else "conv_norm"

    @property
    def unit(self) -> int:
        """Rows of whole blocks and windows."""
        return math.lcm(self.context, self.window)


def read(file: GGUFFile) -> SoundConfig:
    """The config, whose widths are `_Sizes`. Raises FormatError for a wrong key."""
    keys = Keys(file)
    c = read_sound_config(file, [
        ("a.enc_ctc_out.weight", 1), ("a.blk.0.attn_rel_pos_emb", 1), ("a.blk.0.conv_dw.weight", 0),
        ("a.blk.0.conv_dw.weight", 1), ("a.proj_blk.0.ffn_up.weight", 1), ("a.proj_query", 1),
    ])  # fmt: skip
    n_layer = 0
    while f"a.proj_blk.{n_layer}.ffn_up.weight" in file.tensors:
        n_layer += 1
    context = keys.count("audio.chunk_size", most=1 << 10)
    middle = keys.count("audio.max_pos_emb", least=context, most=1 << 16)
    window = keys.count("audio.projector.window_size", most=1 << 10)
    rate = keys.count("audio.projector.downsample_rate", most=window)
    n_head = keys.count("audio.projector.head_count")
    other = "a.blk.0.conv_norm_var.weight" in file.tensors
    own = _Sizes._make((*c.widths, n_layer, context, middle, window, n_head, int(other)))
    if c.n_embd % n_head:
        raise keys.bad("audio.projector.head_count", n_head, f"a divisor of {c.n_embd}")
    if own.n_queries != window // rate:
        raise keys.bad("audio.projector.downsample_rate", rate, f"one for {own.n_queries} rows")
    if own.n_distances < middle + context or own.unit > _MOST:
        raise keys.bad("audio.chunk_size", context, f"a size for {own.n_distances} distances")
    return replace(c, widths=own)


def sizes(c: SoundConfig) -> _Sizes:
    return _Sizes(*c.widths)


def rows(c: SoundConfig) -> Iterator[Row]:
    """The tensors of a file."""
    s, n = sizes(c), c.n_embd
    yield from pair("a.input_projection", c.n_mel, n)
    for il in range(c.n_layer):
        at = f"a.blk.{il}"
        for name in ("ffn_norm", "ln1", "norm_conv", "ffn_norm_1", "ln2"):
            yield from pair(f"{at}.{name}", n)
        for half in ("", "_1"):
            yield from pair(f"{at}.ffn_up{half}", n, c.n_ff)
            yield from pair(f"{at}.ffn_down{half}", c.n_ff, n)
        for name in "qkv":
            yield need(f"{at}.attn_{name}.weight", n, n)
        yield from pair(f"{at}.attn_out", n, n)
        yield need(f"{at}.attn_rel_pos_emb", n // c.n_head, s.n_distances)
        yield from pair(f"{at}.conv_pw1", n, 2 * s.n_conv)
        yield need(f"{at}.conv_dw.weight", s.kernel, s.n_conv)
        yield from pair(f"{at}.{s.norm}", s.n_conv)
        yield from pair(f"{at}.conv_pw2", s.n_conv, n)
    yield from pair("a.enc_ctc_out", n, s.n_letters)
    yield from pair("a.enc_ctc_out_mid", s.n_letters, n)
    yield need("a.proj_query", n, s.n_queries)
    yield from pair("a.proj_norm", n)
    for il in range(s.n_layer):
        yield from qformer.rows(f"a.proj_blk.{il}", n, s.n_ff)
    yield from pair("a.proj_linear", n, c.n_out)


def inputs(c: SoundConfig) -> dict[str, Tensor]:
    """Pairs of frames, which of them are of the sound, which keys each block sees, and the numbers
    of the distances in a block."""
    s = sizes(c)
    n = s.unit * G.Sym("n_units", 1, _MOST // s.unit).size
    return {
        "mel": G.input("mel", (n, c.n_mel), "f32"),
        "heard": G.input("heard", (n, 1), "f32"),
        "mask": G.input("mask", (n // s.context, 1, s.context, s.context), "f32"),
        "distances": G.input("distances", (s.context * s.context,), "i32"),
    }


def forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = common.linear(w, "a.input_projection", inputs["mel"])
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"a.blk.{il}.")
        x = G.add(x, half_fed(layer, x, ""))
        x = G.add(x, _attended(c, layer, common.layer_norm(layer, "ln1", x, EPS), inputs))
        x = G.add(x, _convolved(c, layer, x, inputs["heard"]))
        x = common.layer_norm(layer, "ln2", G.add(x, half_fed(layer, x, "_1")), EPS)
        x = x.named(f"a.l_out-{il}")
        if il + 1 == c.n_layer // 2:
            letters = G.soft_max(common.linear(w, "a.enc_ctc_out", x))
            x = G.add(x, common.linear(w, "a.enc_ctc_out_mid", letters))
    return _queried(c, w, G.mul(x, inputs["heard"]))


def _attended(c: SoundConfig, w: Weights, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Attention of rows x [n_embd, n] within their blocks."""
    d, h, size, mask = c.n_embd // c.n_head, c.n_head, sizes(c).context, inputs["mask"]
    q, k, v = (
        G.reshape(G.mul_mat(w[f"attn_{name}.weight"], x), d, h, size, mask.ne[3]) for name in "qkv"
    )
    far = G.get_rows(w["attn_rel_pos_emb"], inputs["distances"])
    far = G.mul_mat(G.reshape(far, d, size, 1, size), G.cont(G.permute(q, 0, 1, 3, 2)))
    scores = G.mul_mat(G.cont(G.permute(k, 0, 2, 1, 3)), G.cont(G.permute(q, 0, 2, 1, 3)))
    scores = G.add(scores, G.cont(G.permute(far, 0, 2, 3, 1)))
    return common.linear(w, "attn_out", qformer.mixed(d, scores, v, mask, x.ne[1]))


def _convolved(c: SoundConfig, w: Weights, x: Tensor, heard: Tensor) -> Tensor:
    """The convolution over rows; rows behind the sound are zeros for it."""
    n, kernel = sizes(c).n_conv, sizes(c).kernel
    y = common.linear(w, "conv_pw1", common.layer_norm(w, "norm_conv", x, EPS))
    value, gate = (G.cont(G.view_2d(y, n, y.ne[1], y.nb[1], at * y.dtype.bytes)) for at in (0, n))
    y = G.cont(G.transpose(G.mul(G.mul(value, G.sigmoid(gate)), heard)))
    y = G.pad(y, (kernel // 2, 0, 0, 0), ((kernel - 1) // 2, 0, 0, 0))
    y = G.reshape(G.ssm_conv(y, w["conv_dw.weight"]), n, x.ne[1])
    name = sizes(c).norm
    y = G.mul(y, w[f"{name}.weight"])
    if f"{name}.bias" in w:
        y = G.add(y, w[f"{name}.bias"])
    return common.linear(w, "conv_pw2", G.silu(y))


def _queried(c: SoundConfig, w: Weights, x: Tensor) -> Tensor:
    """The rows of the Q-Former [n_out, n_queries n_windows] of rows x [n_embd, n]."""
    s = sizes(c)
    n = x.ne[1] // s.window
    y = common.layer_norm(w, "a.proj_norm", w["a.proj_query"], qformer.EPS)
    y = G.repeat(G.reshape(y, c.n_embd, s.n_queries, 1), (c.n_embd, s.n_queries, n, 1))
    y = G.reshape(y, c.n_embd, s.n_queries * n)
    for il in range(s.n_layer):
        layer = Weights(dict(w), f"a.proj_blk.{il}.")
        y = qformer.layer(layer, y, x, s.n_head, s.n_queries, s.window, n)
    return common.linear(w, "a.proj_linear", y)


# -- the spectrogram -------------------------------------------------------------------------------


def log_mel(samples: NDArray[np.float32], n_mel: int) -> NDArray[np.float32]:
    """Pairs of frames of the spectrogram [n, 2 n_mel]: logarithms of powers, at most 8 powers of
    ten below the largest."""
    n = (len(samples) // _HOP + 1) // 2 * 2
    half = _FFT // 2
    padded = np.pad(samples.astype(np.float64), (half, half), mode="reflect")
    side = (_FFT - _WINDOW) // 2
    filters = mel_filters(n_mel, _FFT, "htk", area=False)
    out = bands(padded[side : len(padded) - side], hann(_WINDOW), _HOP, n, _FFT, filters)
    out = np.log10(np.maximum(out, 1e-10))
    out = np.maximum(out, out.max() - 8) / 4 + 1
    return np.asarray(out.reshape(n // 2, 2 * n_mel), np.float32)


def _n_pairs(n: int) -> int:
    """Pairs of frames of n samples; 0 for a sound that is too short."""
    return (n // _HOP + 1) // 2 if n > _FFT // 2 else 0


def n_rows(c: SoundConfig, n: int) -> int:
    return -(-_n_pairs(n) // sizes(c).window) * sizes(c).n_queries


def parts(c: SoundConfig, samples: Samples) -> list[Part]:
    s = sizes(c)
    mel = log_mel(samples, c.n_mel // 2)
    out: list[Part] = []
    most = _MOST // s.unit * s.unit
    place = np.arange(s.context)
    distances = (place[:, None] - place + s.middle).astype(np.int32).reshape(-1)
    for at in range(0, len(mel), most):
        part = mel[at : at + most]
        n = len(part)
        part = np.pad(part, ((0, -n % s.unit), (0, 0)))
        heard = np.arange(len(part)) < n
        seen = heard.reshape(-1, 1, 1, s.context).repeat(s.context, axis=2)
        seen[..., 0] = True  # a block behind the sound sees something, and is not used
        values = {
            "mel": part, "heard": heard.astype(np.float32)[:, None],
            "mask": np.where(seen, 0, -np.inf).astype(np.float32), "distances": distances,
        }  # fmt: skip
        out.append((values, -(-n // s.window) * s.n_queries))
    return out


GRANITE = SoundFamily(
    rows=rows, inputs=inputs, forward=forward, parts=parts, n_rows=n_rows, rate=RATE, read=read,
)  # fmt: skip
