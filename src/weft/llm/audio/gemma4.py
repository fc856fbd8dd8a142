"""The towers of Gemma 4 (Google, 2026) for sound: a conformer (arXiv 2005.08100) whose rows attend
to the eleven rows before them, and the 12B model's, which has no layers.

Attention goes by blocks of rows. Scores add the product of the query with a projected wave of the
distance, and have a soft bound. A sound is heard in parts of 30 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.audio.sounds import Samples
from weft.llm.audio.spectra import RATE, bands, hann, mel_filters
from weft.llm.audio.whisper import Part, SoundConfig, SoundFamily, read_sound_config
from weft.llm.models import common
from weft.llm.vision.gemma4 import BOUNDS, bounded
from weft.llm.weights import Row, Weights, maybe, need

EPS = 1e-6
"""The epsilon of all norms; keys of older files have another one, which was a mistake."""
BLOCK, BEFORE = 12, 12
"""Rows of a block, and of what is seen in front of it."""
CAP = 50.0
KERNEL = 5
FRAMES = 4
"""Frames of the spectrogram that become a row."""
_PART = 30 * RATE
_WINDOW, _HOP, _FFT = 320, 160, 512
_BLOCKS = -(-_PART // (_HOP * FRAMES * BLOCK))
_MATRICES = {
    "attn_q": (1, 1), "attn_k": (1, 1), "attn_v": (1, 1), "attn_out": (1, 1), "ffn_up": (1, 0),
    "ffn_down": (0, 1), "ffn_up_1": (1, 0), "ffn_down_1": (0, 1), "conv_pw1": (1, 2),
    "conv_pw2": (1, 1),
}  # fmt: skip
"""Matrices with bounds: their inputs and outputs in widths of the tower, 0 for `n_ff`."""
_NORMS = ("ffn_norm", "ffn_post_norm", "attn_pre_norm", "attn_post_norm", "conv_norm", "norm_conv",
          "ffn_norm_1", "ffn_post_norm_1", "ln2")  # fmt: skip


def read(file: GGUFFile) -> SoundConfig:
    """The config, whose widths are the channels of the convolutions and the width in front of the
    projector."""
    widths = [("a.conv1d.0.weight", 3), ("a.conv1d.1.weight", 3), ("a.pre_encode.out.weight", 1)]
    return replace(read_sound_config(file, widths), eps=EPS)


def _quarter(n: int) -> int:
    """The size of n behind both convolutions."""
    return -(-n // FRAMES)


def rows(c: SoundConfig) -> Iterator[Row]:
    """The tensors of a file."""
    first, second, n_out = c.widths
    for i, (n_in, n) in enumerate(((1, first), (first, second))):
        yield need(f"a.conv1d.{i}.weight", 3, 3, n_in, n)
        yield need(f"a.conv1d.{i}.norm.weight", n)
    yield need("a.input_projection.weight", second * _quarter(c.n_mel), c.n_embd)
    for il in range(c.n_layer):
        at = f"a.blk.{il}"
        for name in _NORMS:
            yield need(f"{at}.{name}.weight", c.n_embd)
        for name, sizes in _MATRICES.items():
            yield need(f"{at}.{name}.weight", *(n * c.n_embd or c.n_ff for n in sizes))
            for bound in BOUNDS:
                yield maybe(f"{at}.{name}.{bound}", 1)
        yield need(f"{at}.attn_k_rel.weight", c.n_embd, c.n_embd)
        yield need(f"{at}.per_dim_scale.weight", c.n_embd // c.n_head)
        yield need(f"{at}.conv_dw.weight", KERNEL, c.n_embd)
    yield need("a.pre_encode.out.weight", c.n_embd, n_out)
    yield maybe("a.pre_encode.out.bias", n_out)
    yield need("mm.a.input_projection.weight", n_out, c.n_out)


def inputs(c: SoundConfig) -> dict[str, Tensor]:
    """Frames of whole blocks, which of them are of the sound after each convolution but the last,
    which keys the queries of a block see, and the waves of distances."""
    n = G.Sym("n_blocks", 1, _BLOCKS).size
    return {
        "mel": G.input("mel", (FRAMES * BLOCK * n, c.n_mel), "f32"),
        "heard": G.input("heard", (FRAMES // 2 * BLOCK * n, 1), "f32"),
        "mask": G.input("mask", (n, 1, BLOCK, BLOCK + BEFORE), "f32"),
        "waves": G.input("waves", (BEFORE + 1, c.n_embd), "f32"),
    }


def forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = _folded(c, w, inputs["mel"], inputs["heard"])
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"a.blk.{il}.")
        x = G.add(x, _fed(c, layer, x, ""))
        y = common.norm(layer, "attn_pre_norm", x, c.eps)
        y = _attended(c, layer, y, inputs["mask"], inputs["waves"])
        x = G.add(x, common.norm(layer, "attn_post_norm", y, c.eps))
        x = G.add(x, _convolved(c, layer, x))
        x = common.norm(layer, "ln2", G.add(x, _fed(c, layer, x, "_1")), c.eps)
        x = x.named(f"a.l_out-{il}")
    x = common.linear(w, "a.pre_encode.out", x)
    return G.mul_mat(w["mm.a.input_projection.weight"], G.rms_norm(x, c.eps))


def _folded(c: SoundConfig, w: Weights, mel: Tensor, heard: Tensor) -> Tensor:
    """Rows [n_embd, n / 4] of frames [n_mel, n]."""
    x = G.reshape(mel, c.n_mel, mel.ne[1], 1)
    for i in range(2):
        if i:
            x = G.cont(G.permute(G.mul(x, G.reshape(heard, 1, 1, heard.ne[1])), 2, 0, 1, 3))
        x = G.conv_2d(w[f"a.conv1d.{i}.weight"], x, (2, 2), (1, 1), (1, 1))
        x = G.cont(G.permute(x, 1, 2, 0, 3))  # channels are innermost
        x = G.relu(common.layer_norm(w, f"a.conv1d.{i}.norm", x, c.eps))
    x = G.reshape(x, x.ne[0] * x.ne[1], x.ne[2])
    return G.mul_mat(w["a.input_projection.weight"], x)


def _fed(c: SoundConfig, w: Weights, x: Tensor, number: str) -> Tensor:
    """Half of what a feed-forward layer adds."""
    y = bounded(w, f"ffn_up{number}", common.norm(w, f"ffn_norm{number}", x, c.eps))
    y = bounded(w, f"ffn_down{number}", G.silu(y))
    return G.scale(common.norm(w, f"ffn_post_norm{number}", y, c.eps), 0.5)


def _convolved(c: SoundConfig, w: Weights, x: Tensor) -> Tensor:
    """The convolution over a row and the four before it, which is added to x."""
    y = bounded(w, "conv_pw1", common.norm(w, "conv_norm", x, c.eps))
    value, gate = (
        G.cont(G.view_2d(y, c.n_embd, y.ne[1], y.nb[1], at * y.dtype.bytes)) for at in (0, c.n_embd)
    )
    y = G.cont(G.transpose(G.mul(value, G.sigmoid(gate))))
    y = G.ssm_conv(G.pad(y, (KERNEL - 1, 0, 0, 0), (0, 0, 0, 0)), w["conv_dw.weight"])
    y = G.reshape(y, c.n_embd, x.ne[1])
    return bounded(w, "conv_pw2", G.silu(common.norm(w, "norm_conv", y, c.eps)))


def _attended(c: SoundConfig, w: Weights, x: Tensor, mask: Tensor, waves: Tensor) -> Tensor:
    """Attention of rows x [n_embd, n] within their blocks and the block before."""
    d, h, n, n_blocks = c.n_embd // c.n_head, c.n_head, x.ne[1], mask.ne[3]
    q, k, v = (bounded(w, f"attn_{name}", x) for name in "qkv")
    q = G.mul(G.reshape(q, d, h, n), w["per_dim_scale.weight"])
    q = G.scale(q, d**-0.5 / math.log(2))
    q = G.cont(G.permute(G.reshape(q, d, h, BLOCK, n_blocks), 0, 2, 1, 3))
    k = _blocks(c, G.scale(k, math.log(1 + math.e) / math.log(2)), n_blocks)
    v = _blocks(c, v, n_blocks)
    scores = G.mul_mat(G.cont(G.permute(k, 0, 2, 1, 3)), q)
    far = G.reshape(G.mul_mat(w["attn_k_rel.weight"], waves), d, h, BEFORE + 1)
    far = G.mul_mat(G.cont(G.permute(far, 0, 2, 1, 3)), q)
    scores = G.add(scores, _shifted(far))
    scores = G.scale(G.tanh(G.scale(scores, 1 / CAP)), CAP)
    chances = G.soft_max(scores, mask)
    y = G.mul_mat(G.cont(G.permute(v, 1, 2, 0, 3)), chances)
    y = G.reshape(G.cont(G.permute(y, 0, 2, 1, 3)), c.n_embd, n)
    return bounded(w, "attn_out", y)


def _blocks(c: SoundConfig, x: Tensor, n_blocks: Any) -> Tensor:
    """The rows x [n_embd, n] that each block sees, [d, n_head, BEFORE + BLOCK, n_blocks]."""
    d = c.n_embd // c.n_head
    x = G.pad(x, (0, BEFORE, 0, 0), (0, 0, 0, 0))
    return G.view_4d(
        x, d, c.n_head, BEFORE + BLOCK, n_blocks, d * x.nb[0], x.nb[1], BLOCK * x.nb[1]
    )


def _shifted(x: Tensor) -> Tensor:
    """Scores [BEFORE + 1, BLOCK, n_head, n_blocks] of distances, the largest first, at the places
    of their keys [BEFORE + BLOCK, BLOCK, n_head, n_blocks]: with one column more than there are
    keys, each row begins one place further than the row before it."""
    n = BEFORE + BLOCK
    x = G.pad(x, (0, 0, 0, 0), (n - BEFORE, 0, 0, 0))
    return G.cont(G.view_4d(x, n, BLOCK, x.ne[2], x.ne[3], n * x.nb[0], x.nb[2], x.nb[3]))


def _n_frames(n: int) -> int:
    """Frames of the spectrogram of n samples, all of whose samples are of the sound."""
    return max(-(-(n - _WINDOW // 2) // _HOP), 0)


def log_mel(samples: NDArray[np.float32], n_mel: int) -> NDArray[np.float32]:
    """The spectrogram [n, n_mel]: logarithms of amplitudes, half a window of silence first."""
    padded = np.pad(samples, (_WINDOW // 2, _WINDOW))
    filters = mel_filters(n_mel, _FFT, "htk", area=False)
    out = bands(padded, hann(_WINDOW), _HOP, _n_frames(len(samples)), _FFT, filters, power=1)
    return np.asarray(np.log(out + 1e-3), np.float32)


def parts(c: SoundConfig, samples: Samples) -> list[Part]:
    out: list[Part] = []
    for at in range(0, len(samples), _PART):
        mel = log_mel(samples[at : at + _PART], c.n_mel)
        n = len(mel)
        if not n:
            continue
        mel = np.pad(mel, ((0, -n % (FRAMES * BLOCK)), (0, 0)))
        n_blocks = len(mel) // (FRAMES * BLOCK)
        heard = np.arange(len(mel) // 2) < -(-n // 2)
        values = {
            "mel": mel, "heard": heard.astype(np.float32)[:, None], "mask": _mask(n_blocks),
            "waves": _waves(c.n_embd),
        }  # fmt: skip
        out.append((values, _quarter(n)))
    return out


def _mask(n_blocks: int) -> NDArray[np.float32]:
    """Which keys the queries of each block see: itself and the eleven before, as far as there are
    any; [n_blocks, 1, BLOCK, BEFORE + BLOCK]."""
    key = np.arange(BEFORE + BLOCK) - BEFORE
    far = np.arange(BLOCK)[:, None] - key
    start = BLOCK * np.arange(n_blocks)[:, None, None, None]
    seen = (far >= 0) & (far < BEFORE) & (start + key >= 0)
    return np.where(seen, 0, -np.inf).astype(np.float32)


def _waves(width: int) -> NDArray[np.float32]:
    """Sines and cosines of the distances, the largest first, [BEFORE + 1, width]."""
    half = width // 2
    turns = np.exp(np.arange(half) * -(math.log(10000) / max(half - 1, 1)))
    at = np.arange(BEFORE, -1, -1)[:, None] * turns
    return np.concatenate([np.sin(at), np.cos(at)], axis=1).astype(np.float32)


def n_rows(c: SoundConfig, n: int) -> int:
    return sum(_quarter(_n_frames(min(n - at, _PART))) for at in range(0, n, _PART))


GEMMA4AUDIO = SoundFamily(
    rows=rows, inputs=inputs, forward=forward, parts=parts, n_rows=n_rows, rate=RATE,
    before="<|audio>", after="<audio|>", read=read,
)  # fmt: skip


# -- the 12B model: 40 milliseconds of samples become a row by one matrix --------------------------

_AT_ONCE = 750
"""Maximum number of rows that are computed at once."""


def unified_parts(c: SoundConfig, samples: Samples) -> list[Part]:
    whole = np.pad(samples, (0, -len(samples) % c.n_embd)).reshape(-1, c.n_embd)
    return [
        ({"samples": whole[at : at + _AT_ONCE]}, len(whole[at : at + _AT_ONCE]))
        for at in range(0, len(whole), _AT_ONCE)
    ]


def unified_inputs(c: SoundConfig) -> dict[str, Tensor]:
    """The samples of each row."""
    n = G.Sym("n_rows", 1, _AT_ONCE).size
    return {"samples": G.input("samples", (n, c.n_embd), "f32")}


GEMMA4_UNIFIED = SoundFamily(
    rows=lambda c: [need("mm.a.input_projection.weight", c.n_embd, c.n_out)],
    inputs=unified_inputs,
    forward=lambda c, w, inputs: G.mul_mat(
        w["mm.a.input_projection.weight"], G.rms_norm(inputs["samples"], EPS)
    ),
    parts=unified_parts, n_rows=lambda c, n: -(-n // c.n_embd), rate=RATE,
    before="<|audio>", after="<audio|>", read=lambda file: read_sound_config(file, layers=False),
)  # fmt: skip
