"""`SoundFamily`: what differs from tower to tower for sound, as data and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.audio.sounds import Samples
from weft.llm.config_keys import Keys
from weft.llm.senses.tower import projector_of
from weft.llm.weights import Row, Weights
from weft.records import dataclass

__all__ = ["Part", "SoundConfig", "SoundFamily", "read_sound_config"]


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
    act: str = "gelu_erf"
    swapped: bool = False

    @property
    def frames(self) -> int:
        """Frames of the spectrogram of a part of a sound; a row of the encoder is of two."""
        return 2 * self.n_positions


def read_sound_config(file: GGUFFile) -> SoundConfig:
    """Reads the keys `clip.audio.*`. Raises FormatError for a wrong key."""
    keys = Keys(file)
    n_embd = keys.count("audio.embedding_length")
    n_head = keys.count("audio.attention.head_count")
    if n_embd % n_head:
        raise keys.bad("audio.attention.head_count", n_head, f"a divisor of {n_embd}")
    positions = file.tensors.get("a.position_embd.weight")
    n_positions = 1500 if positions is None else positions.ne[1]
    stack = keys.count("audio.projector.stack_factor", 1, most=n_positions)
    return SoundConfig(
        projector=projector_of(file, "audio"),
        n_embd=n_embd,
        n_ff=keys.count("audio.feed_forward_length"),
        n_layer=keys.count("audio.block_count", most=1 << 10),
        n_head=n_head,
        n_out=keys.count("audio.projection_dim"),
        eps=keys.number("audio.attention.layer_norm_epsilon", 1e-5, above=0),
        n_mel=keys.count("audio.num_mel_bins", most=1 << 10),
        n_positions=n_positions,
        stack=stack,
    )


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
