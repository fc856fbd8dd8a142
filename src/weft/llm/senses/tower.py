"""`AnyTower`: what the towers for images and for sound have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from weft import graph as G
from weft.backends.base import Backend
from weft.compiler import Plan, plan_graph
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.models import open_mmproj as open_towers_at
from weft.graph.tensor import Tensor
from weft.llm.config_keys import Keys
from weft.llm.hub import local_path
from weft.llm.models.names import name_tensors
from weft.llm.weights import Row, Weights, load_weights
from weft.schedule.offload import OpOffloadLike

F = TypeVar("F")
_WHAT = {"vision": "images", "audio": "sound"}
_AUDIO = ("a.", "mm.a.")
"""Prefixes of the names of tensors of a tower for sound; the other names are of a tower for
images."""


class AnyConfig(Protocol):
    """The sizes of a tower."""

    @property
    def n_out(self) -> int:
        """Width of the text model."""


class AnyFamily(Protocol):
    """A kind of tower, as functions of the config."""

    @property
    def rows(self) -> Callable[[Any], Iterable[Row]]:
        """The tensors of a file."""

    @property
    def inputs(self) -> Callable[[Any], dict[str, Tensor]]:
        """The inputs of the graph, by name."""

    @property
    def forward(self) -> Callable[[Any, Weights, Mapping[str, Tensor]], Tensor]:
        """From the inputs to rows [n_out, n]."""


class AnyTower(ABC):
    """The contents of an `mmproj` file for one sense as config, weights and graph, without any
    state; reads no weight."""

    sense: ClassVar[Literal["vision", "audio"]]
    families: ClassVar[Mapping[str, AnyFamily]]
    family: AnyFamily
    config: AnyConfig

    def __init__(self, path: str | os.PathLike[str] | GGUFFile) -> None:
        """Opens the file at `path`. Raises FormatError for a file that is missing or damaged, and
        for a tower that is not known."""
        self.file = open_mmproj(path)
        _require_tower(self.file, self.sense)
        self.family = _family_of(self.file, self.sense, self.families)
        self.config = self._read_config()
        self.weights = _tower_weights(self.file, self.sense, self.family.rows(self.config))
        self._plans: dict[tuple[tuple[int, ...], str], tuple[Sequence[Backend], Plan]] = {}

    @abstractmethod
    def _read_config(self) -> AnyConfig:
        """The config of the file, whose family is known."""

    @property
    def what(self) -> str:
        """ "images" or "sound"."""
        return _WHAT[self.sense]

    def planned(self, backends: Sequence[Backend], op_offload: OpOffloadLike = None) -> Plan:
        """The plan of the tower on these devices, made once."""
        key = tuple(map(id, backends)), str(op_offload)
        if key not in self._plans:
            self._plans[key] = backends, plan_graph(self.build(), backends, op_offload=op_offload)
        return self._plans[key][1]

    def require_width(self, n_embd: int, model: str) -> None:
        """Raises FormatError for the tower whose width differs from the model named `model`."""
        if self.n_out != n_embd:
            raise FormatError(
                f"{self.file.path}: its rows have {self.n_out} numbers, but those of {model} have "
                f"{n_embd}; it belongs to another model"
            )

    @property
    def n_out(self) -> int:
        """Width of the text model."""
        return self.config.n_out

    def build(self) -> G.Graph:
        """The graph from the patches of an image, or the spectrogram of a part of a sound, to rows
        f32 [n, n_out], called "rows"."""
        c, family = self.config, self.family
        graph = G.Graph(family.forward(c, self.weights, family.inputs(c)).as_output("rows"))
        name_tensors(graph)
        return graph


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


def _require_tower(file: GGUFFile, sense: str) -> None:
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


def _family_of(file: GGUFFile, sense: str, families: Mapping[str, F]) -> F:
    """The family of the tower for `sense`. Raises FormatError for one that is not known."""
    kind = projector_of(file, sense)
    if kind not in families:
        raise FormatError(
            f"{file.path}: towers of kind {kind!r} for {_WHAT[sense]} are not known; there are "
            f"{', '.join(families)}"
        )
    return families[kind]


def _tower_weights(file: GGUFFile, sense: str, rows: Iterable[Row]) -> Weights:
    """The tensors of `rows`; those of a tower for the other sense may be in the file, too."""
    keys = Keys(file)
    both = keys.flag("has_vision_encoder", False) and keys.flag("has_audio_encoder", False)
    other = [name for name in file.tensors if name.startswith(_AUDIO) == (sense == "vision")]
    return load_weights(file, rows, other if both else ())
