"""More towers with Whisper's encoder.

Audio Flamingo 3 (arXiv 2507.08128) is Qwen2-Audio's tower with two matrices at its end.
Qwen2.5-Omni (arXiv 2503.20215) hears parts of two seconds, whose positions begin anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.audio import whisper
from weft.llm.audio.sounds import Samples
from weft.llm.audio.spectra import RATE
from weft.llm.audio.whisper import HOP, Part, SoundConfig, SoundFamily
from weft.llm.models import common
from weft.llm.vision import blocks
from weft.llm.weights import Row, Weights, maybe, need


def _mlp_rows(c: SoundConfig) -> Iterator[Row]:
    """Two matrices."""
    for name, n_in in (("mm.a.mlp.1", c.n_embd), ("mm.a.mlp.2", c.n_out)):
        yield need(f"{name}.weight", n_in, c.n_out)
        yield maybe(f"{name}.bias", c.n_out)


# -- Audio Flamingo 3 ------------------------------------------------------------------------------


def flamingo_rows(c: SoundConfig) -> Iterator[Row]:
    yield from whisper.encoder_rows(c)
    yield from _mlp_rows(c)


def flamingo_forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = common.linear(w, "mm.a.mlp.1", whisper.averaged(c, w, inputs))
    return common.linear(w, "mm.a.mlp.2", G.gelu_erf(x))


def flamingo_parts(c: SoundConfig, samples: Samples) -> list[Part]:
    """Parts of 30 seconds, each with a spectrogram of its own."""
    whole = c.frames * HOP
    found = (samples[at : at + whole] for at in range(0, len(samples), whole))
    return [part for one in found for part in whisper.qwen_parts(c, one)]


FLAMINGO = replace(
    whisper.QWEN2AUDIO, rows=flamingo_rows, forward=flamingo_forward, parts=flamingo_parts,
    before="<sound>", after="",
)  # fmt: skip


# -- Qwen2.5-Omni ----------------------------------------------------------------------------------

FRAMES, ROWS, CHUNKS = 200, 100, 15
"""Frames and rows of the encoder of a part, and the number of parts that are computed at once."""


def omni_rows(c: SoundConfig) -> Iterator[Row]:
    yield from whisper.encoder_rows(c)
    yield need("mm.a.fc.weight", c.n_embd, c.n_out)
    yield maybe("mm.a.fc.bias", c.n_out)


def omni_inputs(c: SoundConfig) -> dict[str, Tensor]:
    """The parts, which of their frames are of the sound, and which rows see one another."""
    n = G.Sym("n_chunks", 1, CHUNKS).size
    return {
        "mel": G.input("mel", (n, c.n_mel, FRAMES), "f32"),
        "heard": G.input("heard", (n, FRAMES, 1), "f32"),
        "mask": G.input("mask", (n * ROWS, n * ROWS), "f16"),
    }


def omni_forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = G.mul(whisper.convolved(w, 1, inputs["mel"], stride=1), inputs["heard"])
    x = whisper.convolved(w, 2, G.cont(G.permute(x, 1, 0, 2, 3)), stride=2)
    positions, n = w["a.position_embd.weight"], inputs["mask"].ne[0]
    x = G.add(x, G.view_2d(positions, c.n_embd, ROWS, positions.nb[1]))
    x = G.reshape(x, c.n_embd, n)
    x = blocks.encode(c, w, x, c.n_layer, at="a", mask=inputs["mask"])
    x = whisper.halves(c, x, n // 2)
    return common.linear(w, "mm.a.fc", common.layer_norm(w, "a.post_ln", x, c.eps))


def omni_parts(c: SoundConfig, samples: Samples) -> list[Part]:
    n = -(-len(samples) // HOP)
    mel = whisper.log_mel(np.pad(samples, (0, whisper.WINDOW)), c.n_mel)[:, :n]
    out: list[Part] = []
    for at in range(0, n, FRAMES * CHUNKS):
        part = mel[:, at : at + FRAMES * CHUNKS]
        n_frames = part.shape[1]
        part = np.pad(part, ((0, 0), (0, -n_frames % FRAMES)))
        chunks = part.reshape(c.n_mel, -1, FRAMES).transpose(1, 0, 2)
        heard = (np.arange(part.shape[1]) < n_frames).astype(np.float32)
        place, n_rows = np.arange(len(chunks) * ROWS), -(-n_frames // 2)
        seen = (place[:, None] // ROWS == place // ROWS) & (place < n_rows)
        seen[place >= n_rows, 0] = True  # what is behind the sound sees something, and is not used
        values: dict[str, Any] = {
            "mel": np.ascontiguousarray(chunks), "heard": heard.reshape(-1, FRAMES, 1),
            "mask": np.where(seen, 0, -np.inf).astype(np.float16),
        }  # fmt: skip
        if n_rows > 1:
            out.append((values, n_rows // 2))
    return out


def omni_n_rows(c: SoundConfig, n: int) -> int:
    n_frames = -(-n // HOP)
    return -(-n_frames // 2) // 2


QWEN25OMNI = SoundFamily(
    rows=omni_rows, inputs=omni_inputs, forward=omni_forward, parts=omni_parts, rate=RATE,
    n_rows=omni_n_rows, before="<|audio_bos|>", after="<|audio_eos|>",
)  # fmt: skip
