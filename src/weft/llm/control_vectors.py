"""Control vectors (arXiv 2310.01405): directions that are added behind layers, to steer a model.

A layer's output x becomes x + D s, where a column of D is the direction of a vector for that layer
and `s` has a scale for every vector and every token, or 0. Texts with different vectors, or none,
so share a batch and a plan, and it costs one small product a layer, however many there are.

Files are GGUF as llama.cpp's cvector-generator and repeng write them: the architecture
`controlvector`, and tensors direction.N [n_embd], which are added behind layer N; the first layer
is 0 and has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.errors import ArgumentError, FormatError, MissingFileError
from weft.frontends.gguf import GGUFFile, open_gguf
from weft.frontends.gguf.describe import CONTROL_VECTOR
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.scaled_files import ScaledFiles, ScaledSet, listed_files, made_leaf
from weft.quants import decode
from weft.records import dataclass

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ControlVector:
    """A control vector that fits the model."""

    name: str
    path: Path
    scale: float
    """The scale where a text names no control vectors."""
    directions: Mapping[int, F32]
    """By the number of the layer behind which it is added, f32 [n_embd]."""

    @property
    def n_rows(self) -> int:
        """The number of scales of a token."""
        return 1

    def arrays(self) -> Iterator[tuple[str, F32]]:
        """The directions, by the names of their leaves."""
        for il, direction in self.directions.items():
            yield _leaf_name(il), direction


class ControlVectors(ScaledSet[ControlVector]):
    """The control vectors of a model, in the order in which they were given."""

    WHAT = "control vector"
    INPUT = "vector_scales"

    def leaves(self) -> dict[str, Tensor]:
        """The directions of all vectors as leaves blk.N.direction [n_vectors, n_embd], for each
        layer N behind which one is added. A vector without a direction there has zeros."""
        leaves: dict[str, Tensor] = {}
        for il in sorted({il for one in self.all for il in one.directions}):
            given = [one.directions.get(il) for one in self.all]
            size = next(len(d) for d in given if d is not None)
            columns = [np.zeros(size, np.float32) if d is None else d for d in given]
            leaves[_leaf_name(il)] = made_leaf(_leaf_name(il), np.stack(columns, axis=1))
        return leaves

    @staticmethod
    def by_layer(leaves: Mapping[str, Tensor], n_layer: int) -> dict[int, Tensor]:
        """Those of `leaves` that are directions, by layer."""
        names = ((il, _leaf_name(il)) for il in range(n_layer))
        return {il: leaves[name] for il, name in names if name in leaves}


def _leaf_name(il: int) -> str:
    # like a weight of the layer, so that it goes to the layer's device
    return f"blk.{il}.direction"


def open_control_vectors(
    files: ScaledFiles, config: ModelConfig, layers: Sequence[int] | None = None
) -> ControlVectors:
    """Reads control vectors for a model with this config. Of `layers` (first, last) only these are
    steered, both included; a first below 1 means 1, a last below 1 the model's last.

    Raises ArgumentError for something else than files or for no layers, ContextError for two of one
    name or a scale that is no number, and FormatError for a file that is no control vector or does
    not fit the model, and for a model of one layer."""
    first, last = _layers(layers, config.n_layer)
    vectors = []
    for name, path, scale in listed_files(files, "control_vectors", ControlVectors.WHAT):
        try:
            with open_gguf(path) as file:
                found = dict(_directions(file, config))
        except FormatError as e:
            if isinstance(e, MissingFileError) or str(e).startswith(str(path)):
                raise
            raise FormatError(f"{path}: {e}") from None
        kept = {il: d for il, d in found.items() if first <= il <= last}
        vectors.append(ControlVector(name, path, scale, kept))
    return ControlVectors(vectors)


def _layers(layers: Sequence[int] | None, n_layer: int) -> tuple[int, int]:
    given = (0, 0) if layers is None else tuple(layers)
    if len(given) != 2 or not all(isinstance(n, int) for n in given):
        raise ArgumentError(
            f"control_vector_layers is {layers!r:.60}; it must be (first, last), two numbers"
        )
    first, last = max(given[0], 1), given[1] if given[1] > 0 else n_layer
    if n_layer < 2:
        raise FormatError("control vectors steer layers behind the first; the model has one layer")
    if first > min(last, n_layer - 1):
        raise ArgumentError(
            f"the layers {given[0]} to {given[1]} of control vectors are none of this model, which "
            f"has the layers 1 to {n_layer - 1} for them"
        )
    return first, last


def _directions(file: GGUFFile, config: ModelConfig) -> Iterator[tuple[int, F32]]:
    """The layers and directions of a file that fits the model. Raises FormatError for others."""
    if file.architecture != CONTROL_VECTOR:
        kind = "an adapter; give it as --lora (adapters=)" if file.kind == "adapter" else (
            f"a file of the architecture {file.architecture or 'none'}"
        )  # fmt: skip
        raise FormatError(f"this is no control vector, but {kind}")
    hint = file.metadata.get(f"{CONTROL_VECTOR}.model_hint")
    made_for = f" (it was made for {hint})" if isinstance(hint, str) and hint else ""
    for name, info in file.tensors.items():
        word, _, number = name.partition(".")
        if word != "direction" or not (number.isascii() and number.isdigit()) or len(number) > 9:
            raise FormatError(f"tensor {name} is no direction.N, which a control vector has only")
        il = int(number)
        if il < 1 or il >= config.n_layer:
            raise FormatError(
                f"it steers layer {il}, the model has the layers 1 to {config.n_layer - 1} for "
                f"that; use the model that it was made for{made_for}"
            )
        if info.n_dims != 1 or info.ne[0] != config.n_embd:
            raise FormatError(
                f"{name} has the sizes {list(info.shape)}, the model's layers give "
                f"[{config.n_embd}]; use the model that it was made for{made_for}"
            )
        direction = decode(info.data.reshape(1, -1), info.dtype).astype(np.float32).reshape(-1)
        if not np.isfinite(direction).all():
            raise FormatError(f"{name} has values that are not numbers; download it again")
        yield il, direction
    if not file.tensors:
        raise FormatError("it has no directions; make it again")
