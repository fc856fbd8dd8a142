"""The options of `weft serve` with several models."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cli.command import SEVERAL, usage_error
from weft.cli.console import say
from weft.cli.groups import Group
from weft.cli.serve_options import WITHOUT_KEYS, is_in_network, page_line
from weft.errors import FormatError
from weft.options import option
from weft.schedule.profile import parse_size
from weft.tables import size_text


def _bytes(text: str | int) -> int:
    try:
        return parse_size(str(text))
    except FormatError:
        raise usage_error(f"--models-memory {text}: give a size, e.g. 8GiB") from None


class ManyFlags(Group):
    """Options of several models."""

    model_folders: list[str] | None = option(
        None, "Models that requests may choose, instead of MODEL: those of a folder, or a file; "
        "repeatable. They are loaded when a request asks for them.", "--models --models-dir",
        SEVERAL, metavar="FOLDER|FILE|NAME=FILE",
    )  # fmt: skip
    models_memory: int | None = option(
        None,
        "Most bytes of all loaded models together, as planned, e.g. 8GiB. Default: the memory "
        "that is free at the start.", panel=SEVERAL, metavar="SIZE", read=_bytes,
    )  # fmt: skip
    models_max: int | None = option(
        None, "Most models that are loaded at the same time. Default: as many as fit.",
        panel=SEVERAL, metavar="N",
    )  # fmt: skip
    models_config: Path | None = option(
        None,
        "Settings of single models, TOML. Default: models.toml in the folder, if it is there.",
        "--models-config --models-preset", SEVERAL, metavar="FILE",
    )  # fmt: skip
    keep_alive: str | None = option(
        None,
        "Unload a model so long after its last request, e.g. 5m or 300. Default: when another "
        "needs the room.", panel=SEVERAL, metavar="TIME",
    )  # fmt: skip

    def are_several(self) -> bool:
        """True if there are several models; raises a usage error for their options without."""
        if self.model_folders or self.models_config is not None:
            return True
        for flag, value in (
            ("--models-memory", self.models_memory), ("--models-max", self.models_max),
            ("--keep-alive", self.keep_alive),
        ):  # fmt: skip
            if value is not None:
                raise usage_error(f"{flag} is for several models; give --models FOLDER")
        return False


_OF_ONE = {
    "adapters": "--lora",
    "control_vectors": "--control-vector",
    "plan": "--plan",
    "metadata": "what --override-kv or --rope-scaling changes",
}
"""Arguments that are files of one model, and their options."""


def serve_many(
    api: Any,
    options: Any,
    several: ManyFlags,
    load: dict[str, Any],
    given: Mapping[str, Any],
    *,
    quiet: bool,
) -> None:
    """Serves several models until a signal ends it. `api` is `weft.serve`, `options` its
    `ServeOptions`, `load` what `Load` makes; `given` has `drafting`, `embeddings` and `type`."""
    for name, flag in _OF_ONE.items():
        if load.get(name):
            raise usage_error(f"{flag} is of one model; serve that model alone")
        load.pop(name, None)
    load.pop("control_vector_layers", None)
    drafts = given["drafting"]
    if drafts is not None and drafts.model is not None:
        raise usage_error("--draft-model is of one model; serve it alone, or see --models-config")
    many = importlib.import_module("weft.serve.many")
    settings = _settings(many, several)
    catalog = many.find_models(several.model_folders or (), settings)
    n = min(len(catalog), several.models_max or len(catalog))
    keep_alive = None if several.keep_alive is None else _seconds(many, several.keep_alive)
    recipe = many.Recipe(options, load, cache_ram=options.cache_ram // n, **given)
    fleet = many.make_fleet(
        catalog,
        many.ManyOptions(
            memory=several.models_memory, most=several.models_max, keep_alive=keep_alive
        ),
        recipe,
    )
    with api.take_address(options) as address, api.Resources(options) as resources:
        if not quiet:
            most = fleet.loader.budget
            budget = "" if most is None else f", {size_text(most)} at most"
            say(f"{len(catalog)} models{budget}: {', '.join(catalog.entries)}")
            if not options.needs_key and is_in_network(options):
                say(WITHOUT_KEYS)

        def ready(url: str) -> None:
            fleet.begin()
            if not quiet:
                say(page_line(url))
            say(f"serving {len(catalog)} models at {url}/v1; Ctrl-C stops it")

        app = many.create_many_app(fleet, resources.shared)
        api.run_server(fleet, app, resources, address, ready)


def _settings(many: Any, several: ManyFlags) -> Any:
    """The settings of the file that was given, or of `models.toml` in a folder of models."""
    path = several.models_config
    if path is None:
        there = [Path(source) / "models.toml" for source in several.model_folders or ()]
        path = next((file for file in there if file.is_file()), None)
    return many.SettingsFile() if path is None else many.read_settings(path)


def _seconds(many: Any, text: str) -> float | None:
    try:
        seconds: float | None = many.parse_duration(text)
    except ValueError as error:
        raise usage_error(f"--keep-alive {text}: {error}") from None
    return seconds
