"""The tower for sound of dots.3 Note: three convolutions over the log-mel spectrogram, and blocks
with RMS norms, rotated positions and gated layers, for parts of a minute.

What is behind a sound is zero for each convolution. A last row of which no frame is of the sound is
zero, too, and seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from weft import graph as G
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.audio.sounds import Samples
from weft.llm.audio.spectra import RATE
from weft.llm.audio.whisper import HOP, Part, SoundConfig, SoundFamily, log_mel, read_sound_config
from weft.llm.models import common
from weft.llm.vision import blocks
from weft.llm.weights import Row, Weights, maybe, need

FRAMES = 8
"""Frames of the spectrogram that become a row."""
PART = 60 * RATE
"""Samples of a part."""
_MOST = PART // HOP // FRAMES


def read(file: GGUFFile) -> SoundConfig:
    """The config, whose widths are the channels of the convolutions and the projector's width."""
    return read_sound_config(file, [("a.conv2d.1.weight", 3), ("mm.a.mlp.1.weight", 1)])


def rows(c: SoundConfig) -> Iterator[Row]:
    """The tensors of a file."""
    blocks.require_pairs(c)
    n_in, (n_conv, wide) = 1, c.widths
    for number in (1, 2, 3):
        yield need(f"a.conv2d.{number}.weight", 3, 3, n_in, n_conv)
        yield need(f"a.conv2d.{number}.bias", n_conv)
        n_in = n_conv
    yield need("a.conv_out.weight", n_conv * -(-c.n_mel // FRAMES), c.n_embd)
    for il in range(c.n_layer):
        at = f"a.blk.{il}"
        yield need(f"{at}.ln1.weight", c.n_embd)
        yield need(f"{at}.ln2.weight", c.n_embd)
        for name, n_from, n_to in (
            ("attn_q", c.n_embd, c.n_embd), ("attn_k", c.n_embd, c.n_embd),
            ("attn_v", c.n_embd, c.n_embd), ("attn_out", c.n_embd, c.n_embd),
            ("ffn_gate", c.n_embd, c.n_ff), ("ffn_up", c.n_embd, c.n_ff),
            ("ffn_down", c.n_ff, c.n_embd),
        ):  # fmt: skip
            yield need(f"{at}.{name}.weight", n_from, n_to)
            yield maybe(f"{at}.{name}.bias", n_to)
    yield need("a.post_ln.weight", c.n_embd)
    for end in ("weight", "bias"):
        yield need(f"mm.a.norm_pre.{end}", c.n_embd)
    for number, n_from, n_to in ((1, c.n_embd, wide), (3, wide, c.n_out)):
        yield need(f"mm.a.mlp.{number}.weight", n_from, n_to)
        yield need(f"mm.a.mlp.{number}.bias", n_to)


def inputs(c: SoundConfig) -> dict[str, Tensor]:
    """Frames of whole rows, which results of each convolution are of the sound, and positions."""
    n = G.Sym("n_rows", 1, _MOST).size
    return {
        "mel": G.input("mel", (c.n_mel, FRAMES * n), "f32"),
        "heard_1": G.input("heard_1", (1, 4 * n), "f32"),
        "heard_2": G.input("heard_2", (1, 2 * n), "f32"),
        "heard_3": G.input("heard_3", (1, n), "f32"),
        "positions": G.input("positions", (n,), "i32"),
    }


def forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x, n = inputs["mel"], inputs["positions"].ne[0]
    x = G.reshape(x, x.ne[0], c.n_mel, 1)
    for number in (1, 2, 3):
        bias = w[f"a.conv2d.{number}.bias"]
        x = G.conv_2d(w[f"a.conv2d.{number}.weight"], x, (2, 2), (1, 1), (1, 1))
        x = G.gelu_erf(G.add(x, G.reshape(bias, 1, 1, bias.ne[0])))
        x = G.mul(x, inputs[f"heard_{number}"])
    x = G.cont(G.permute(x, 2, 0, 1, 3))  # the bands of a channel are innermost
    x = common.linear(w, "a.conv_out", G.reshape(x, x.ne[0] * x.ne[1], n))
    rotate = partial(G.rope, pos=inputs["positions"], mode="neox", n_dims=c.n_embd // c.n_head // 2)
    x = blocks.encode(c, w, x, c.n_layer, at="a", rotated=rotate)
    x = common.layer_norm(w, "mm.a.norm_pre", common.norm(w, "a.post_ln", x, c.eps), 1e-5)
    return common.linear(w, "mm.a.mlp.3", G.gelu_erf(common.linear(w, "mm.a.mlp.1", x)))


def parts(c: SoundConfig, samples: Samples) -> list[Part]:
    out: list[Part] = []
    for at in range(0, len(samples), PART):
        part = samples[at : at + PART]
        n_frames, n = len(part) // HOP, n_rows(c, len(part))
        # silence up to the end of a part is of no use but to the frames beside it
        padded = np.pad(part, (0, min(PART - len(part), 2 * FRAMES * HOP)))
        mel = log_mel(padded, c.n_mel)
        mel = np.pad(mel, ((0, 0), (0, FRAMES)))[:, : FRAMES * n]
        mel[:, n_frames:] = 0
        values = {"mel": mel, "positions": np.arange(n, dtype=np.int32)}
        for number in (1, 2, 3):
            n_frames = -(-n_frames // 2)
            heard = np.arange(n * FRAMES >> number) < n_frames
            values[f"heard_{number}"] = heard.astype(np.float32)[None]
        out.append((values, n))
    return out


def n_rows(c: SoundConfig, n: int) -> int:
    """The number of rows of n samples; parts are of whole rows."""
    return -(-n // (FRAMES * HOP))


DOTS3NOTE = SoundFamily(
    rows=rows, inputs=inputs, forward=forward, parts=parts, n_rows=n_rows, rate=RATE,
    before="<|audio_comp_start|>", after="<|audio_comp_end|>", read=read,
)  # fmt: skip
