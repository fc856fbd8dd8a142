"""More towers with Whisper's encoder.

Audio Flamingo 3 (arXiv 2507.08128) is Qwen2-Audio's tower with two matrices at its end.
Qwen2.5-Omni (arXiv 2503.20215) hears parts of two seconds, whose positions begin anew.
Ultravox stacks the rows of a sound, of which silence behind it has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft import graph as G
from weft.frontends.gguf import GGUFFile
from weft.graph.size import exact_div
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


# -- Ultravox --------------------------------------------------------------------------------------

PROJECTOR_EPS = 1e-6
"""The epsilon of the projector's norms, which no file says."""


def ultravox_read(file: GGUFFile) -> SoundConfig:
    """The config. The projector's tensors say both of its widths: files may have its inner width
    as the width of the text model."""
    c = whisper.read_sound_config(file, [("mm.a.mlp.1.weight", 1), ("mm.a.mlp.2.weight", 1)])
    return replace(c, n_out=c.widths[1])


def ultravox_rows(c: SoundConfig) -> Iterator[Row]:
    yield from whisper.encoder_rows(c)
    half = c.widths[0] // 2
    yield need("mm.a.norm_pre.weight", c.n_embd * c.stack)
    yield need("mm.a.mlp.1.weight", c.n_embd * c.stack, 2 * half)
    yield need("mm.a.norm_mid.weight", half)
    yield need("mm.a.mlp.2.weight", half, c.n_out)


def ultravox_inputs(c: SoundConfig) -> dict[str, Tensor]:
    """Frames for whole rows, which of the frames there are, and which rows are of the sound."""
    n = c.stack * G.Sym("n_rows", 1, -(-c.n_positions // c.stack)).size
    return {
        "mel": G.input("mel", (c.n_mel, 2 * n), "f32"),
        "there": G.input("there", (2 * n, 1), "f32"),
        "mask": G.input("mask", (n, n), "f16"),
    }


def ultravox_forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    there, n = inputs["there"], inputs["mask"].ne[0]
    x = G.mul(whisper.convolved(w, 1, inputs["mel"], stride=1), there)
    x = whisper.convolved(w, 2, G.cont(G.transpose(x)), stride=2)
    positions = w["a.position_embd.weight"]
    if left := -c.n_positions % c.stack:
        positions = G.pad(positions, (0, 0, 0, 0), (0, left, 0, 0))
    x = G.add(x, G.view_2d(positions, c.n_embd, n, positions.nb[1]))
    x = blocks.encode(c, w, x, c.n_layer, at="a", mask=inputs["mask"])
    x = common.layer_norm(w, "a.post_ln", x, c.eps)
    x = G.mul(x, G.cont(G.view_2d(there, 1, n, 2 * there.nb[1])))
    x = G.reshape(x, c.n_embd * c.stack, exact_div(n, c.stack) or n)
    x = common.linear(w, "mm.a.mlp.1", common.norm(w, "mm.a.norm_pre", x, PROJECTOR_EPS))
    x = common.norm(w, "mm.a.norm_mid", G.swiglu(x, swapped=True), PROJECTOR_EPS)
    return common.linear(w, "mm.a.mlp.2", x)


def ultravox_frames(n_samples: int) -> int:
    """Frames of the spectrogram of a sound."""
    return max(-(-n_samples // HOP), 2)


def ultravox_parts(c: SoundConfig, samples: Samples) -> list[Part]:
    """Parts of 30 seconds of one spectrogram. The first ends with the sound; silence behind the
    sound fills a further part and, unseen by the rows of the sound, its last stack of rows."""
    left = ultravox_frames(len(samples)) * HOP - len(samples)
    mel = whisper.log_mel(np.pad(samples, (0, left)), c.n_mel)
    out: list[Part] = []
    for at in range(0, mel.shape[1], c.frames):
        part = mel[:, at : at + c.frames]
        n_frames = part.shape[1]
        n_rows = -(-n_frames // (2 * c.stack))
        n = c.stack * n_rows
        mask = np.zeros((n, n), np.float16)
        mask[:, -(-n_frames // 2) :] = -np.inf
        there = np.arange(2 * n) < (c.frames if at else n_frames)
        values: dict[str, Any] = {
            "mel": np.pad(part, ((0, 0), (0, 2 * n - n_frames))),
            "there": there.astype(np.float32)[:, None], "mask": mask,
        }  # fmt: skip
        out.append((values, n_rows))
    return out


def ultravox_n_rows(c: SoundConfig, n: int) -> int:
    whole, left = divmod(ultravox_frames(n), c.frames)
    return whole * -(-c.n_positions // c.stack) + -(-left // (2 * c.stack))


ULTRAVOX = SoundFamily(
    rows=ultravox_rows, inputs=ultravox_inputs, forward=ultravox_forward, parts=ultravox_parts,
    rate=RATE, n_rows=ultravox_n_rows, read=ultravox_read,
)  # fmt: skip
