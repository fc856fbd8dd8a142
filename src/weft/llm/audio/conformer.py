"""Fast Conformer (arXiv 2305.05084), the encoder of Parakeet and of LFM2-Audio: three convolutions
make a row of eight frames, and blocks have half a feed-forward layer, attention to all rows with
waves of their distances (arXiv 1901.02860), a convolution, and the other half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.audio.sounds import Samples
from weft.llm.audio.spectra import RATE, bands, mel_filters
from weft.llm.audio.whisper import Part, SoundConfig, SoundFamily, read_sound_config
from weft.llm.models import common
from weft.llm.weights import Row, Weights, maybe, need

EPS = 1e-5
FRAMES = 8
"""Frames of the spectrogram that become a row."""
LEAST, MOST = 2, 1500
"""Number of rows that are computed at once: two minutes."""
PART = MOST * FRAMES * 160
"""Samples of the longest part of a sound."""
_QUIET = 20 * RATE
_WINDOW, _HOP, _FFT = 400, 160, 512
WIDTHS = [("a.conv1d.0.weight", 3), ("a.blk.0.ffn_up.weight", 1), ("a.blk.0.conv_dw.weight", 0)]
"""The tensors that say the channels of the first convolutions, the width of feed-forward layers,
and the rows that a block's convolution sees."""
_LINEAR = ("attn_q", "attn_k", "attn_v", "attn_out", "conv_pw2")
_NORMS = ("ffn_norm", "ln1", "norm_conv", "ffn_norm_1", "ln2")


def rows(c: SoundConfig) -> Iterator[Row]:
    """The tensors of the encoder."""
    n, n_ff, kernel = c.widths[:3]
    for i, (size, n_in) in {0: (3, 1), 2: (3, 1), 3: (1, n), 5: (3, 1), 6: (1, n)}.items():
        yield need(f"a.conv1d.{i}.weight", size, size, n_in, n)
        yield need(f"a.conv1d.{i}.bias", 1, 1, n)
    yield need("a.pre_encode.out.weight", n * -(-c.n_mel // FRAMES), c.n_embd)
    yield need("a.pre_encode.out.bias", c.n_embd)
    for il in range(c.n_layer):
        at = f"a.blk.{il}"
        for name in _NORMS:
            yield from _pair(f"{at}.{name}", c.n_embd)
        for half in ("", "_1"):
            yield from _pair(f"{at}.ffn_up{half}", c.n_embd, n_ff, bias=False)
            yield from _pair(f"{at}.ffn_down{half}", n_ff, c.n_embd, bias=False)
        for name in _LINEAR:
            yield from _pair(f"{at}.{name}", c.n_embd, c.n_embd, bias=False)
        yield need(f"{at}.linear_pos.weight", c.n_embd, c.n_embd)
        for name in ("pos_bias_u", "pos_bias_v"):
            yield need(f"{at}.{name}", c.n_embd // c.n_head, c.n_head)
        yield from _pair(f"{at}.conv_pw1", c.n_embd, 2 * c.n_embd, bias=False)
        yield from _pair(f"{at}.conv_dw", kernel, c.n_embd, bias=False)
        yield from _pair(f"{at}.conv_norm", c.n_embd)
        for name in ("conv_norm_mean", "conv_norm_var"):  # else they are in the norm already
            yield maybe(f"{at}.{name}", c.n_embd)


def _pair(name: str, *ne: int, bias: bool = True) -> Iterator[Row]:
    """A weight and its bias, which files may lack unless `bias` is set."""
    yield need(f"{name}.weight", *ne)
    yield (need if bias else maybe)(f"{name}.bias", ne[-1])


def inputs(c: SoundConfig) -> dict[str, Tensor]:
    """Frames of whole rows, which results of the first two convolutions are of the sound, and the
    waves of distances."""
    n = G.Sym("n_rows", LEAST, MOST).size
    return {
        "mel": G.input("mel", (FRAMES * n, c.n_mel), "f32"),
        "heard_4": G.input("heard_4", (4 * n, 1), "f32"),
        "heard_2": G.input("heard_2", (2 * n, 1), "f32"),
        "waves": G.input("waves", (2 * n - 1, c.n_embd), "f32"),
    }


def encoded(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor], scale: float = 1.0) -> Tensor:
    """Rows [n_embd, n] of the inputs; `scale` is of what the convolutions make."""
    x = _folded(c, w, inputs)
    x = G.scale(x, scale) if scale != 1 else x
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"a.blk.{il}.")
        x = G.add(x, half_fed(layer, x, ""))
        y = common.layer_norm(layer, "ln1", x, EPS)
        x = G.add(x, _attended(c, layer, y, inputs["waves"]))
        x = G.add(x, _convolved(c, layer, common.layer_norm(layer, "norm_conv", x, EPS)))
        x = common.layer_norm(layer, "ln2", G.add(x, half_fed(layer, x, "_1")), EPS)
        x = x.named(f"a.l_out-{il}")
    return x


def _folded(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    """Rows [n_embd, n] of frames [n_mel, 8 n]. Results behind the end of the sound are zeros, as
    what is behind the frames."""
    mel = inputs["mel"]
    x = G.reshape(mel, c.n_mel, mel.ne[1], 1)
    heard: list[Tensor | None] = [inputs["heard_4"], inputs["heard_2"], None]
    for i, seen in zip((0, 2, 5), heard, strict=True):
        kernel = w[f"a.conv1d.{i}.weight"]
        convolve = G.conv_2d_dw if i else G.conv_2d
        x = G.add(convolve(kernel, x, (2, 2), (1, 1), (1, 1)), w[f"a.conv1d.{i}.bias"])
        if i:
            x = G.conv_2d(w[f"a.conv1d.{i + 1}.weight"], x, (1, 1), (0, 0), (1, 1))
            x = G.add(x, w[f"a.conv1d.{i + 1}.bias"])
        x = G.relu(x)
        if seen is not None:
            x = G.mul(x, G.reshape(seen, 1, seen.ne[1]))
    x = G.cont(G.permute(x, 0, 2, 1, 3))  # the bands of a channel are innermost
    return common.linear(w, "a.pre_encode.out", G.reshape(x, x.ne[0] * x.ne[1], x.ne[2]))


def half_fed(w: Weights, x: Tensor, half: str) -> Tensor:
    """Half of what a feed-forward layer adds; the names of its weights end in `half`."""
    y = common.linear(w, f"ffn_up{half}", common.layer_norm(w, f"ffn_norm{half}", x, EPS))
    return G.scale(common.linear(w, f"ffn_down{half}", G.silu(y)), 0.5)


def _attended(c: SoundConfig, w: Weights, x: Tensor, waves: Tensor) -> Tensor:
    """Attention of all rows x [n_embd, n] to all."""
    d, h, n = c.n_embd // c.n_head, c.n_head, x.ne[1]
    q, k, v = (G.reshape(common.linear(w, f"attn_{name}", x), d, h, n) for name in "qkv")
    near, far = (G.cont(G.permute(G.add(q, w[f"pos_bias_{name}"]), 0, 2, 1, 3)) for name in "uv")
    scores = G.mul_mat(G.cont(G.permute(k, 0, 2, 1, 3)), near)
    places = G.reshape(G.mul_mat(w["linear_pos.weight"], waves), d, h, waves.ne[1])
    scores = G.add(scores, _shifted(G.mul_mat(G.cont(G.permute(places, 0, 2, 1, 3)), far)))
    chances = G.soft_max(scores, scale=1 / math.sqrt(d))
    y = G.mul_mat(G.cont(G.permute(v, 1, 2, 0, 3)), chances)
    return common.linear(w, "attn_out", G.reshape(G.cont(G.permute(y, 0, 2, 1, 3)), c.n_embd, n))


def _shifted(x: Tensor) -> Tensor:
    """Scores [2 n - 1, n, n_head] of distances, from n - 1 down, at the places of their keys
    [n, n, n_head]: each row begins one place before the row before it."""
    n, size = x.ne[1], x.nb[0]
    return G.cont(G.view_3d(x, n, n, x.ne[2], (2 * n - 2) * size, x.nb[2], (n - 1) * size))


def _convolved(c: SoundConfig, w: Weights, x: Tensor) -> Tensor:
    """The convolution over rows, with as many rows before as behind."""
    y = common.linear(w, "conv_pw1", x)
    value, gate = (
        G.cont(G.view_2d(y, c.n_embd, y.ne[1], y.nb[1], at * y.dtype.bytes)) for at in (0, c.n_embd)
    )
    y = G.cont(G.transpose(G.mul(value, G.sigmoid(gate))))
    side = (c.widths[2] - 1) // 2
    y = G.ssm_conv(G.pad(y, (side, 0, 0, 0), (side, 0, 0, 0)), w["conv_dw.weight"])
    y = G.reshape(y, c.n_embd, x.ne[1])
    if "conv_dw.bias" in w:
        y = G.add(y, w["conv_dw.bias"])
    if "conv_norm_mean" in w and "conv_norm_var" in w:
        y = G.sub(y, w["conv_norm_mean"])
        y = G.div(y, G.sqrt(G.scale(w["conv_norm_var"], 1.0, EPS)))
    y = G.add(G.mul(y, w["conv_norm.weight"]), w["conv_norm.bias"])
    return common.linear(w, "conv_pw2", G.silu(y))


# -- the spectrogram -------------------------------------------------------------------------------


def n_rows(n: int) -> int:
    """Rows of n samples; 0 for a sound that is too short."""
    found = -(-(n // _HOP) // FRAMES)
    return found if found >= LEAST else 0


def log_mel(samples: NDArray[np.float32], n_mel: int) -> NDArray[np.float32]:
    """The spectrogram [n, n_mel] of samples from which 0.97 of the sample before is taken: natural
    logarithms of powers, with mean 0 and deviation 1 in each band."""
    n = len(samples) // _HOP
    sharp = samples.astype(np.float64)
    sharp[1:] -= 0.97 * samples[:-1].astype(np.float64)
    side = (_FFT - _WINDOW) // 2
    padded = np.pad(sharp, _FFT // 2 - side)  # silence, but for what the window would not see
    shape = np.hanning(_WINDOW)
    mel = np.log(bands(padded, shape, _HOP, n, _FFT, mel_filters(n_mel, _FFT)) + 2.0**-24)
    mel -= mel.mean(axis=0)
    return np.asarray(mel / (mel.std(axis=0, ddof=1) + 1e-5), np.float32)


def cut(samples: Samples) -> Iterator[tuple[int, Samples]]:
    """The parts of a sound and where they begin: of at most two minutes, cut where it is most
    quiet in the last 20 seconds of a part."""
    at = 0
    while len(samples) - at > PART:
        last = samples[at + PART - _QUIET : at + PART].astype(np.float64) ** 2
        loud = last[: len(last) // 1600 * 1600].reshape(-1, 1600).sum(axis=1)
        end = at + PART - _QUIET + int(loud.argmin()) * 1600 + 800
        yield at, samples[at:end]
        at = end
    yield at, samples[at:]


def values(c: SoundConfig, samples: Samples) -> dict[str, NDArray[Any]]:
    """The inputs for a part of a sound."""
    mel = log_mel(samples, c.n_mel)
    n = len(mel)
    n_out = n_rows(len(samples))
    half, quarter = -(-n // 2), -(-n // 4)
    return {
        "mel": np.pad(mel, ((0, FRAMES * n_out - n), (0, 0))),
        "heard_4": (np.arange(4 * n_out) < half).astype(np.float32)[:, None],
        "heard_2": (np.arange(2 * n_out) < quarter).astype(np.float32)[:, None],
        "waves": _waves(n_out, c.n_embd),
    }


def _waves(n: int, width: int) -> NDArray[np.float32]:
    """Sines and cosines in turn of the distances from n - 1 to 1 - n, [2 n - 1, width]."""
    turns = 10000.0 ** -(np.arange(0, width, 2) / width)
    at = np.arange(n - 1, -n, -1)[:, None] * turns
    return np.stack([np.sin(at), np.cos(at)], axis=-1).reshape(2 * n - 1, -1).astype(np.float32)


# -- LFM2-Audio ------------------------------------------------------------------------------------

_SPOKEN = ("a.position_embd.weight", "a.embd_to_logits.weight")
"""Tensors of what speaks, which this tower does not."""


def lfm2_read(file: GGUFFile) -> SoundConfig:
    """The config, whose widths are the encoder's, the adapter's, and the sizes of `_SPOKEN`."""
    spoken = [(name, dim) for name in _SPOKEN for dim in (0, 1)]
    return read_sound_config(file, [*WIDTHS, ("mm.a.mlp.1.weight", 1), *spoken])


def lfm2_rows(c: SoundConfig) -> Iterator[Row]:
    """The tensors of a file."""
    n_hidden, *spoken = c.widths[3:]
    yield from rows(c)
    yield from _pair("mm.a.mlp.0", c.n_embd)
    yield from _pair("mm.a.mlp.1", c.n_embd, n_hidden)
    yield from _pair("mm.a.mlp.3", n_hidden, c.n_out)
    yield maybe(_SPOKEN[0], *spoken[:2])
    yield maybe("a.position_embd_norm.weight", spoken[0])
    yield maybe(_SPOKEN[1], *spoken[2:])


def lfm2_forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = common.layer_norm(w, "mm.a.mlp.0", encoded(c, w, inputs), EPS)
    return common.linear(w, "mm.a.mlp.3", G.gelu_erf(common.linear(w, "mm.a.mlp.1", x)))


def lfm2_parts(c: SoundConfig, samples: Samples) -> list[Part]:
    """Parts of two minutes."""
    found = (samples[at : at + PART] for at in range(0, len(samples), PART))
    return [(values(c, part), n_rows(len(part))) for part in found if n_rows(len(part))]


LFM2AUDIO = SoundFamily(
    rows=lfm2_rows, inputs=inputs, forward=lfm2_forward, parts=lfm2_parts, rate=RATE,
    n_rows=lambda c, n: sum(n_rows(min(n - at, PART)) for at in range(0, n, PART)),
    read=lfm2_read,
)  # fmt: skip
