"""Towers with Whisper's encoder (arXiv 2212.04356): two convolutions over the log-mel spectrogram
and blocks with learned positions, for parts of 30 seconds.

Voxtral (arXiv 2507.13264) computes whole parts, silence at the end included, and stacks four rows
to one. Qwen2-Audio (arXiv 2407.10759) averages two rows to one, and silence behind a sound is not
seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.llm.audio.sounds import Samples
from weft.llm.audio.spectra import RATE, bands, hann, mel_filters
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.senses.tower import projector_of
from weft.llm.vision import blocks
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass

MOST_HEADS = 1 << 8
"""Maximum number of heads of an encoder, some of which store the scores of each."""
WINDOW, HOP = 400, 160
"""Samples of a window, and from one to the next."""


@dataclass(frozen=True, slots=True)
class SoundConfig:
    """The sizes of a tower for sound."""

    projector: str
    """The kind of tower and projector, e.g. "voxtral"."""
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_out: int
    """Width of the text model."""
    eps: float
    n_mel: int
    """Bands of the spectrogram."""
    n_positions: int
    """Learned positions: rows of the encoder for a part of a sound."""
    stack: int = 1
    """Rows of the encoder that become one row."""
    widths: tuple[int, ...] = ()
    """Widths that no key says; each kind says of what."""
    act: str = "gelu_erf"
    swapped: bool = False

    @property
    def frames(self) -> int:
        """Frames of the spectrogram of a part of a sound; a row of the encoder is of two."""
        return 2 * self.n_positions


def read_sound_config(
    file: GGUFFile, widths: Sequence[tuple[str, int]] = (), *, layers: bool = True
) -> SoundConfig:
    """Reads the keys `clip.audio.*`, and `widths` from the tensor and dimension of each; without
    `layers` the tower has none, for which files say 0. Raises FormatError for a wrong key."""
    keys = Keys(file)
    least = 1 if layers else 0
    n_embd = keys.count("audio.embedding_length")
    n_head = keys.count("audio.attention.head_count", least=least, most=MOST_HEADS) or 1
    if n_embd % n_head:
        raise keys.bad("audio.attention.head_count", n_head, f"a divisor of {n_embd}")
    positions = file.tensors.get("a.position_embd.weight")
    n_positions = 1500 if positions is None else positions.ne[1]
    stack = keys.count("audio.projector.stack_factor", 1, most=n_positions)
    return SoundConfig(
        projector=projector_of(file, "audio"),
        n_embd=n_embd,
        n_ff=keys.count("audio.feed_forward_length", least=least),
        n_layer=keys.count("audio.block_count", least=least, most=1 << 10),
        n_head=n_head,
        n_out=keys.count("audio.projection_dim"),
        eps=keys.number("audio.attention.layer_norm_epsilon", 1e-5, above=0),
        n_mel=keys.count("audio.num_mel_bins", most=1 << 10),
        n_positions=n_positions,
        stack=stack,
        widths=tensor_sizes(file, widths),
    )


def tensor_sizes(file: GGUFFile, places: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """A size of each tensor; 1 if it is missing, which is told with all that are missing."""
    found = ((file.tensors.get(name), dim) for name, dim in places)
    return tuple(1 if tensor is None else tensor.ne[dim] for tensor, dim in found)


Part: TypeAlias = tuple[dict[str, NDArray[Any]], int]
"""The values of a graph's inputs for a part of a sound, and how many of its rows count."""


@dataclass(frozen=True, slots=True)
class SoundFamily:
    """A kind of tower for sound."""

    rows: Callable[[SoundConfig], Iterable[Row]]
    inputs: Callable[[SoundConfig], dict[str, Tensor]]
    forward: Callable[[SoundConfig, Weights, Mapping[str, Tensor]], Tensor]
    """Computes rows [n_out, n] from the inputs."""
    parts: Callable[[SoundConfig, Samples], Sequence[Part]]
    n_rows: Callable[[SoundConfig, int], int]
    """Number of rows of a sound with this number of samples."""
    rate: int
    """Samples per second."""
    before: str = ""
    after: str = ""
    """Text in front of a sound and behind it."""
    read: Callable[[GGUFFile], SoundConfig] = read_sound_config
    """Reads the keys of a file. Raises FormatError for a wrong key."""


def log_mel(samples: NDArray[np.float32], n_mel: int) -> NDArray[np.float32]:
    """The spectrogram of samples [n] as f32 [n_mel, n / HOP]: the logarithm of the power in each
    band, at most 8 powers of ten below the largest, about from -1 to 1."""
    padded = np.pad(samples.astype(np.float64), WINDOW // 2, mode="reflect")
    filters = mel_filters(n_mel, WINDOW)
    out = bands(padded, hann(WINDOW), HOP, len(samples) // HOP, WINDOW, filters).T
    out = np.log10(np.maximum(out, 1e-10))
    return np.asarray((np.maximum(out, out.max() - 8) + 4) / 4, np.float32)


def encoder_rows(c: SoundConfig) -> Iterator[Row]:
    """The tensors of the encoder."""
    for number, n_in in ((1, c.n_mel), (2, c.n_embd)):
        yield need(f"a.conv1d.{number}.weight", 3, n_in, c.n_embd)
        yield need(f"a.conv1d.{number}.bias", 1, c.n_embd)
    yield need("a.position_embd.weight", c.n_embd, c.n_positions)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il, at="a")
    yield need("a.post_ln.weight", c.n_embd)
    yield need("a.post_ln.bias", c.n_embd)


def encoded(
    c: SoundConfig, w: Weights, mel: Tensor, mask: Tensor | None = None, *, extra: bool = False
) -> Tensor:
    """Rows [n_embd, n] of a spectrogram [2 n, n_mel]; with `extra`, of one that has a frame more,
    which the last row sees. Keys are seen where `mask` f16 [n, n] is 0."""
    x = convolved(w, 1, mel, stride=1)
    n_frames = x.ne[1] - extra
    x = G.view_2d(x, c.n_embd, n_frames, x.nb[1])
    x = convolved(w, 2, G.cont(G.transpose(x)), stride=2)
    positions = w["a.position_embd.weight"]
    x = G.add(x, G.view_2d(positions, c.n_embd, x.ne[1], positions.nb[1]))
    return blocks.encode(c, w, x, c.n_layer, at="a", mask=mask)


def convolved(w: Weights, number: int, x: Tensor, stride: int) -> Tensor:
    """Rows [n_embd, n / stride] of columns x [n, channels]."""
    kernel, bias = w[f"a.conv1d.{number}.weight"], w[f"a.conv1d.{number}.bias"]
    columns = G.im2col(kernel, x, (stride, 0), (1, 0), (1, 0), is_2d=False)
    n_in, n_out = kernel.ne[0] * kernel.ne[1], kernel.ne[2]
    y = G.mul_mat(G.reshape(kernel, n_in, n_out), columns)
    return G.gelu_erf(G.add(y, G.reshape(bias, n_out)))


def in_parts(c: SoundConfig, samples: Samples) -> NDArray[np.float32]:
    """The spectrogram [n_mel, n] of whole parts, with silence behind the sound."""
    whole = c.frames * HOP
    return log_mel(np.pad(samples, (0, -len(samples) % whole)), c.n_mel)


# -- Voxtral ---------------------------------------------------------------------------------------


def voxtral_rows(c: SoundConfig) -> Iterator[Row]:
    if c.n_positions % c.stack:
        raise FormatError(f"{c.n_positions} positions of the tower are no multiple of {c.stack}")
    yield from encoder_rows(c)
    for name, n_in in (("mm.a.mlp.1", c.n_embd * c.stack), ("mm.a.mlp.2", c.n_out)):
        yield need(f"{name}.weight", n_in, c.n_out)
        yield maybe(f"{name}.bias", c.n_out)


def voxtral_forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = common.layer_norm(w, "a.post_ln", encoded(c, w, inputs["mel"]), c.eps)
    x = G.reshape(x, c.n_embd * c.stack, c.n_positions // c.stack)
    return common.linear(w, "mm.a.mlp.2", G.gelu_erf(common.linear(w, "mm.a.mlp.1", x)))


def voxtral_parts(c: SoundConfig, samples: Samples) -> list[Part]:
    mel = in_parts(c, samples)
    n = c.n_positions // c.stack
    return [
        ({"mel": np.ascontiguousarray(mel[:, at : at + c.frames])}, n)
        for at in range(0, mel.shape[1], c.frames)
    ]


VOXTRAL = SoundFamily(
    rows=voxtral_rows, inputs=lambda c: {"mel": G.input("mel", (c.n_mel, c.frames), "f32")},
    forward=voxtral_forward, parts=voxtral_parts,
    n_rows=lambda c, n: -(-n // (c.frames * HOP)) * (c.n_positions // c.stack), rate=RATE,
    before="[BEGIN_AUDIO]",
)  # fmt: skip


# -- Qwen2-Audio -----------------------------------------------------------------------------------


def qwen_rows(c: SoundConfig) -> Iterator[Row]:
    yield from encoder_rows(c)
    yield need("mm.a.fc.weight", c.n_embd, c.n_out)
    yield maybe("mm.a.fc.bias", c.n_out)


def qwen_inputs(c: SoundConfig) -> dict[str, Tensor]:
    """Frames, with one more than the rows need, and which rows are of the sound."""
    n = 2 * G.Sym("n_rows", 1, max(c.n_positions // 2, 1)).size
    return {
        "mel": G.input("mel", (c.n_mel, 2 * n + 1), "f32"),
        "mask": G.input("mask", (n, n), "f16"),
    }


def averaged(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    """Rows of the encoder, two averaged to one, and normed."""
    x = encoded(c, w, inputs["mel"], inputs["mask"], extra=True)
    return common.layer_norm(w, "a.post_ln", halves(c, x, inputs["mask"].ne[0] // 2), c.eps)


def halves(c: SoundConfig, x: Tensor, n: Size) -> Tensor:
    """The means of two neighbours among rows x [n_embd, 2 n], [n_embd, n]."""
    first, second = (G.view_2d(x, c.n_embd, n, 2 * x.nb[1], offset) for offset in (0, x.nb[1]))
    return G.scale(G.add(G.cont(first), G.cont(second)), 0.5)


def qwen_forward(c: SoundConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    return common.linear(w, "mm.a.fc", averaged(c, w, inputs))


def qwen_lengths(c: SoundConfig, n_samples: int) -> Iterator[int]:
    """Rows of the encoder that are of the sound, for each part."""
    whole = c.frames * HOP
    for at in range(0, n_samples, whole):
        n_frames = -(-min(n_samples - at, whole) // HOP)
        n = -(-n_frames // 2)
        if n > 1:  # less than a row of what comes out is too short to be heard
            yield n


def qwen_parts(c: SoundConfig, samples: Samples) -> list[Part]:
    mel = np.pad(in_parts(c, samples), ((0, 0), (0, 1)))
    parts: list[Part] = []
    for i, n in enumerate(qwen_lengths(c, len(samples))):
        even, at = n + n % 2, i * c.frames
        last = even * 2 + 1
        values = mel[:, at : at + last].copy()
        if last > c.frames:
            values[:, c.frames :] = 0  # of the next part
        mask = np.zeros((even, even), np.float16)
        mask[:, n:] = -np.inf
        parts.append(({"mel": values, "mask": mask}, n // 2))
    return parts


QWEN2AUDIO = SoundFamily(
    rows=qwen_rows, inputs=qwen_inputs, forward=qwen_forward, parts=qwen_parts,
    n_rows=lambda c, n: sum(length // 2 for length in qwen_lengths(c, n)), rate=RATE,
    before="<|audio_bos|>", after="<|audio_eos|>",
)  # fmt: skip
