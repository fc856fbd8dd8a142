"""The tower of Qwen3-Omni and Qwen3-ASR (arXiv 2509.17765): three convolutions over each second of
the log-mel spectrogram, whose rows attend to one another within windows of eight seconds.

Positions begin anew in every second. What is behind a sound in its last second is zero for the
convolutions, and is not seen by attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

CHUNK, CHUNKS = 100, 8
"""Number of frames of the spectrogram that the convolutions see at once (a chunk), and number of
chunks whose rows attend to one another."""
LEAST = RATE // 2
"""Samples to which a shorter sound is padded with silence."""


def _halved(n: int, times: int = 3) -> int:
    """The size of n behind convolutions that halve it."""
    for _ in range(times):
        n = -(-n // 2)
    return n


ROWS = _halved(CHUNK)
"""Rows of a chunk."""


def read(file: GGUFFile) -> SoundConfig:
    """The config, whose width is the number of channels of the convolutions."""
    return read_sound_config(file, [("a.conv2d.1.weight", 3)])


def rows(c: SoundConfig) -> Iterator[Row]:
    """The tensors of a file."""
    n_in, (n_conv,) = 1, c.widths
    for number in (1, 2, 3):
        yield need(f"a.conv2d.{number}.weight", 3, 3, n_in, n_conv)
        yield need(f"a.conv2d.{number}.bias", 1, 1, n_conv)
        n_in = n_conv
    yield need("a.conv_out.weight", n_in * _halved(c.n_mel), c.n_embd)
    yield maybe("a.conv_out.bias", c.n_embd)
    yield need("a.position_embd.weight", c.n_embd, c.n_positions)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il, at="a")
    yield need("a.post_ln.weight", c.n_embd)
    yield need("a.post_ln.bias", c.n_embd)
    for number, n_out in ((1, c.n_embd), (2, c.n_out)):
        yield need(f"mm.a.mlp.{number}.weight", c.n_embd, n_out)
        yield maybe(f"mm.a.mlp.{number}.bias", n_out)


def inputs(c: SoundConfig) -> dict[str, Tensor]:
    """The chunks of a window, and which of its rows are of the sound."""
    n = G.Sym("n_chunks", 1, CHUNKS).size
    return {
        "mel": G.input("mel", (n, c.n_mel, CHUNK), "f32"),
        "mask": G.input("mask", (n * ROWS, n * ROWS), "f16"),
    }


def forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = inputs["mel"]
    n = x.ne[2]
    x = G.reshape(x, CHUNK, c.n_mel, 1, n)
    for number in (1, 2, 3):
        x = G.conv_2d(w[f"a.conv2d.{number}.weight"], x, (2, 2), (1, 1), (1, 1))
        x = G.gelu_erf(G.add(x, w[f"a.conv2d.{number}.bias"]))
    x = G.cont(G.permute(x, 2, 0, 1, 3))  # the bands of a channel are innermost
    x = G.reshape(x, c.widths[0] * _halved(c.n_mel), ROWS, n)
    positions = w["a.position_embd.weight"]
    x = common.linear(w, "a.conv_out", x)
    x = G.add(x, G.view_2d(positions, c.n_embd, ROWS, positions.nb[1]))
    x = G.reshape(x, c.n_embd, n * ROWS)
    x = blocks.encode(c, w, x, c.n_layer, at="a", mask=inputs["mask"])
    x = common.linear(w, "mm.a.mlp.1", common.layer_norm(w, "a.post_ln", x, c.eps))
    return common.linear(w, "mm.a.mlp.2", G.gelu_erf(x))


def parts(c: SoundConfig, samples: Samples) -> list[Part]:
    mel = log_mel(np.pad(samples, (0, max(LEAST - len(samples), 0))), c.n_mel)
    out: list[Part] = []
    for at in range(0, mel.shape[1], CHUNK * CHUNKS):
        window = mel[:, at : at + CHUNK * CHUNKS]
        n_rows = _n_rows(window.shape[1])
        window = np.pad(window, ((0, 0), (0, -window.shape[1] % CHUNK)))
        chunks = window.reshape(c.n_mel, -1, CHUNK).transpose(1, 0, 2)
        mask = np.zeros((len(chunks) * ROWS,) * 2, np.float16)
        mask[:, n_rows:] = -np.inf
        out.append(({"mel": np.ascontiguousarray(chunks), "mask": mask}, n_rows))
    return out


def _n_rows(n_frames: int) -> int:
    """The number of rows of a window of frames."""
    whole, left = divmod(n_frames, CHUNK)
    return whole * ROWS + _halved(left)


QWEN3AUDIO = SoundFamily(
    rows=rows, inputs=inputs, forward=forward, parts=parts,
    n_rows=lambda c, n: _n_rows(max(n, LEAST) // HOP), rate=RATE,
    before="<|audio_start|>", after="<|audio_end|>", read=read,
)  # fmt: skip
