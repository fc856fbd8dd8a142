"""The adapters and control vectors of a server: those that a request asks for, and those that
others get."""

from __future__ import annotations

from typing import Any

from weft.llm.adapters import Adapters
from weft.llm.control_vectors import ControlVectors
from weft.serve.errors import ApiError
from weft.serve.schema import AdapterScale, Generation

Scales = dict[str, float]


class ServedAdapters:
    """The adapters of a model by number, in the order of the command line, with their scales."""

    def __init__(self, adapters: Adapters | None, apply: bool = True) -> None:
        """Without `apply` all scales are 0 at first."""
        self._all = () if adapters is None else adapters.all
        self._scales: Scales = {a.name: a.scale if apply else 0.0 for a in self._all}

    @property
    def names(self) -> list[str]:
        """The names by which requests may call adapters as their model."""
        return list(self._scales)

    def of_request(self, body: Generation) -> Scales | None:
        """The scales of the texts of a request; None: there are no adapters. `lora` names numbers,
        and the others have scale 0; `model` names one alone; else they are as they stand.

        Raises ApiError for a number without an adapter."""
        if body.lora is not None:
            return self._numbered(body.lora) or None
        named = next((a for a in self._all if a.name == body.model), None)
        if named is not None:
            return {named.name: named.scale or 1.0}
        return self._scales or None

    def set(self, scales: list[AdapterScale]) -> None:
        """Sets the scales of requests that name none; adapters that are left out have scale 0."""
        self._scales = self._numbered(scales)

    def _numbered(self, scales: list[AdapterScale]) -> Scales:
        if scales and not self._all:
            raise ApiError(
                400, "this server has no adapters; start it with --lora FILE", "lora", "unsupported"
            )
        chosen = dict.fromkeys(self._scales, 0.0)
        for one in scales:
            if one.id >= len(self._all):
                raise ApiError(
                    400, f"there is no adapter {one.id}; the last is {len(self._all) - 1}", "lora"
                )
            chosen[self._all[one.id].name] = one.scale
        return chosen

    def listed(self) -> list[dict[str, Any]]:
        """Numbers, names, files and scales, as llama.cpp's server lists them."""
        return [
            {"id": i, "name": a.name, "path": str(a.path), "scale": self._scales[a.name],
             "task_name": "", "prompt_prefix": ""}
            for i, a in enumerate(self._all)
        ]  # fmt: skip

    def as_models(self, about: dict[str, Any]) -> list[dict[str, Any]]:
        """Adapters as models, as vLLM lists them; `about` is the model that they change."""
        return [
            about
            | {"id": a.name, "display_name": a.name, "root": str(a.path), "parent": about["id"]}
            for a in self._all
        ]


class ServedVectors:
    """The control vectors of a model by name."""

    def __init__(self, vectors: ControlVectors | None) -> None:
        self._all = () if vectors is None else vectors.all

    def of_request(self, body: Generation) -> Scales | None:
        """The scales of the texts of a request; None: as they were given to the server.

        Raises ApiError for a name without a control vector."""
        chosen = body.control_vectors
        if chosen and not self._all:
            raise ApiError(
                400, "this server has no control vectors; start it with --control-vector FILE",
                "control_vectors", "unsupported",
            )  # fmt: skip
        names = [one.name for one in self._all]
        for name in chosen or ():
            if name not in names:
                raise ApiError(
                    400, f"there is no control vector {name!r:.60}; loaded are {', '.join(names)}",
                    "control_vectors",
                )  # fmt: skip
        return chosen

    def about_model(self) -> dict[str, Any]:
        """The fields that control vectors add to the model in the list of models."""
        listed = [
            {"id": one.name, "path": str(one.path), "scale": one.scale,
             "layers": sorted(one.directions)}
            for one in self._all
        ]  # fmt: skip
        return {"control_vectors": listed} if listed else {}
