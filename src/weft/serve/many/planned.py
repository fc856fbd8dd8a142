"""The bytes that a model needs, known before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.frontends.models import open_model
from weft.llm.planning.draft_options import DraftOptions
from weft.llm.planning.prepare import prepare
from weft.serve.many.catalog import Entry
from weft.serve.memory import PlannedBytes, planned_bytes
from weft.serve.model_card import ModelCard
from weft.serve.options import ServeOptions
from weft.serve.sizes import open_served


class Recipe:
    """How the models of a server are loaded: the command line, and what settings change of it."""

    def __init__(
        self,
        options: ServeOptions,
        load: Mapping[str, Any],
        *,
        drafting: DraftOptions | None,
        embeddings: bool = False,
        type: str | None = None,
        cache_ram: int | None = None,
    ) -> None:
        """`load` has further arguments of `Service`; `cache_ram` is the share of each model of
        `options.cache_ram` (None: all of it)."""
        self.options = options
        self._load = dict(load)
        self._drafting = drafting
        self._embeddings = embeddings
        self._type = type
        self._cache_ram = options.cache_ram if cache_ram is None else cache_ram

    def options_of(self, entry: Entry) -> ServeOptions:
        """The options of a model's own server."""
        own, base = entry.settings, self.options
        return replace(
            base, alias=entry.name, cache_ram=self._cache_ram,
            parallel=own.parallel or base.parallel, max_tokens=own.max_tokens or base.max_tokens,
            system=own.system or base.system,
            chat_template=own.chat_template or base.chat_template,
            chat_template_kwargs={**base.chat_template_kwargs, **own.chat_template_kwargs},
            sampling={**base.sampling, **own.sampling},
        )  # fmt: skip

    def arguments(self, entry: Entry) -> dict[str, Any]:
        """The arguments of its `Service`."""
        own = entry.settings
        load = {
            **self._load, "drafting": self._drafting, "mmproj": entry.mmproj, "type": self._type,
            "embeddings": self._embeddings if own.embeddings is None else own.embeddings,
            **own.arguments,
        }  # fmt: skip
        if own.lora:
            load["adapters"] = dict(own.lora)
        return load

    def plan(self, entry: Entry) -> PlannedBytes:
        """The bytes of the model's contexts. Nothing is loaded. Raises the errors of `Service`
        that a file or an option has."""
        given = self.arguments(entry)
        opening, sizes = open_served(entry.path, self.options_of(entry), given, planned=True)
        given.pop("fallback", None)
        plans = []
        if sizes.embedding is not None:
            plans.append(prepare(opening.model, must_fit=False, **given | sizes.embedding))
        if sizes.writing is not None:
            plans += opening.plans(must_fit=False, **given | sizes.writing)
        return planned_bytes(plans)


def card_of(entry: Entry) -> ModelCard:
    """The facts about a model from its file. Raises FormatError for a broken file."""
    senses = () if entry.mmproj is None else ("vision",)
    return ModelCard(entry.name, open_model(entry.path), senses=senses)
