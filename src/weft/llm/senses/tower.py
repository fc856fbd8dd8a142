"""`AnyTower`: what the towers for images and for sound have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar

from weft import graph as G
from weft.backends.base import Backend
from weft.compiler import Plan, plan_graph
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.models import open_mmproj as open_towers_at
from weft.llm.config_keys import Keys
from weft.llm.hub import local_path
from weft.llm.weights import Row, Weights, load_weights

__all__ = ["AnyTower", "family_of", "open_mmproj", "projector_of", "require_tower", "tower_weights"]

F = TypeVar("F")
_WHAT = {"vision": "images", "audio": "sound"}
_AUDIO = ("a.", "mm.a.")
"""Where the names of tensors of a tower for sound begin; the others are of one for images."""


class AnyTower(ABC):
    """The contents of an `mmproj` file for one sense, without any state; reads no weight."""

    what: ClassVar[str]
    """"images" or "sound"."""
    file: GGUFFile
    weights: Weights

    def __init__(self) -> None:
        self._plans: dict[tuple[int, ...], tuple[Sequence[Backend], Plan]] = {}

    def planned(self, backends: Sequence[Backend]) -> Plan:
        """Where the tower would be computed on these devices, worked out once."""
        key = tuple(map(id, backends))
        if key not in self._plans:
            self._plans[key] = backends, plan_graph(self.build(), backends)
        return self._plans[key][1]

    def require_width(self, n_embd: int, model: str) -> None:
        """Raises FormatError for the tower of another model than that of the name `model`."""
        if self.n_out != n_embd:
            raise FormatError(
                f"{self.file.path}: its rows have {self.n_out} numbers, but those of {model} have "
                f"{n_embd}; it belongs to another model"
            )

    @property
    @abstractmethod
    def n_out(self) -> int:
        """Width of the text model."""

    @abstractmethod
    def build(self) -> G.Graph:
        """The graph from an image or a sound to rows f32 [n, n_out], called "rows"."""


def open_mmproj(path: str | os.PathLike[str] | GGUFFile) -> GGUFFile:
    """Opens the file or folder at `path`. Raises FormatError for one that is missing or damaged,
    and for a model."""
    file = path if isinstance(path, GGUFFile) else open_towers_at(local_path(path))
    if file.architecture != "clip":
        raise FormatError(
            f"{file.path}: a {file.architecture} model is no tower for images or sound (mmproj); "
            "it belongs before mmproj, as the model"
        )
    return file


def require_tower(file: GGUFFile, sense: str) -> None:
    """Raises FormatError for a file without a tower for `sense` ("vision" or "audio")."""
    if not Keys(file).flag(f"has_{sense}_encoder", False):
        raise FormatError(f"{file.path}: this mmproj file has no tower for {_WHAT[sense]}")


def projector_of(file: GGUFFile, sense: str) -> str:
    """The kind of projector of the tower for `sense`."""
    for key in (f"clip.{sense}.projector_type", "clip.projector_type"):
        if key in file.metadata:
            return file.get_str(key)
    if sense == "vision" and "clip.has_llava_projector" in file.metadata:
        return "mlp"
    raise FormatError(f"{file.path}: there is no clip.projector_type; convert the model again")


def family_of(file: GGUFFile, sense: str, families: Mapping[str, F]) -> F:
    """The family of the tower for `sense`. Raises FormatError for one that is not known."""
    kind = projector_of(file, sense)
    if kind not in families:
        raise FormatError(
            f"{file.path}: towers of kind {kind!r} for {_WHAT[sense]} are not known; there are "
            f"{', '.join(families)}"
        )
    return families[kind]


def tower_weights(file: GGUFFile, sense: str, rows: Iterable[Row]) -> Weights:
    """The tensors of `rows`; those of a tower for the other sense may be in the file, too."""
    keys = Keys(file)
    both = keys.flag("has_vision_encoder", False) and keys.flag("has_audio_encoder", False)
    other = [name for name in file.tensors if name.startswith(_AUDIO) == (sense == "vision")]
    return load_weights(file, rows, other if both else ())
