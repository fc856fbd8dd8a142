"""The options of `weft serve` with several models."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import SEVERAL, usage_error
from weft.cli.console import say
from weft.errors import FormatError
from weft.llm.planning.draft_options import DraftOptions
from weft.records import dataclass
from weft.schedule.profile import parse_size
from weft.tables import size_text

__all__ = [
    "KeepAlive",
    "Models",
    "ModelsConfig",
    "ModelsMax",
    "ModelsMemory",
    "Several",
    "many_options",
    "serve_many",
]


def _bytes(text: str | int) -> int:
    try:
        return parse_size(str(text))
    except FormatError:
        raise usage_error(f"--models-memory {text}: give a size, e.g. 8GiB") from None


Models = Annotated[
    list[str] | None,
    typer.Option(
        "--models", "--models-dir", metavar="FOLDER|FILE|NAME=FILE", rich_help_panel=SEVERAL,
        help="Models that requests may choose, instead of MODEL: those of a folder, or a file; "
        "repeatable. They are loaded when a request asks for them.",
    ),
]  # fmt: skip
ModelsMemory = Annotated[
    int | None,
    typer.Option(
        "--models-memory", parser=_bytes, metavar="SIZE", rich_help_panel=SEVERAL,
        help="Most bytes of all loaded models together, as planned, e.g. 8GiB. Default: the "
        "memory that is free at the start.",
    ),
]  # fmt: skip
ModelsMax = Annotated[
    int | None,
    typer.Option(
        "--models-max", metavar="N", rich_help_panel=SEVERAL,
        help="Most models that are loaded at the same time. Default: as many as fit.",
    ),
]  # fmt: skip
ModelsConfig = Annotated[
    Path | None,
    typer.Option(
        "--models-config", "--models-preset", metavar="FILE", rich_help_panel=SEVERAL,
        help="Settings of single models, TOML. Default: models.toml in the folder, if it is "
        "there.",
    ),
]  # fmt: skip
KeepAlive = Annotated[
    str | None,
    typer.Option(
        "--keep-alive", metavar="TIME", rich_help_panel=SEVERAL,
        help="Unload a model so long after its last request, e.g. 5m or 300. Default: when "
        "another needs the room.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Several:
    """The options of several models as they were typed."""

    sources: Sequence[str]
    memory: int | None
    most: int | None
    config: Path | None
    keep_alive: str | None


def many_options(
    sources: Sequence[str] | None,
    memory: int | None,
    most: int | None,
    config: Path | None,
    keep_alive: str | None,
) -> Several | None:
    """The options of several models; None: the command line has one."""
    if sources or config is not None:
        return Several(sources or (), memory, most, config, keep_alive)
    for flag, value in (
        ("--models-memory", memory), ("--models-max", most), ("--keep-alive", keep_alive),
    ):  # fmt: skip
        if value is not None:
            raise usage_error(f"{flag} is for several models; give --models FOLDER")
    return None


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
    several: Several,
    load: dict[str, Any],
    *,
    drafts: DraftOptions | None,
    embeddings: bool,
    weight_type: str | None,
    mmproj: Path | None,
    alias: str | None,
    quiet: bool,
) -> None:
    """Serves several models until a signal ends it. `api` is `weft.serve`, `options` its
    `ServeOptions`, `load` the result of `load_arguments`."""
    for name, flag in _OF_ONE.items():
        if load.get(name):
            raise usage_error(f"{flag} is of one model; serve that model alone")
        load.pop(name, None)
    load.pop("control_vector_layers", None)
    given: dict[str, Any] = {"--mmproj": mmproj, "--alias": alias}
    if drafts is not None:
        given["--draft-model"] = drafts.model
    for flag, value in given.items():
        if value is not None:
            raise usage_error(f"{flag} is of one model; serve it alone, or see --models-config")
    many = importlib.import_module("weft.serve.many")
    settings = _settings(many, several)
    catalog = many.find_models(several.sources, settings)
    n = min(len(catalog), several.most or len(catalog))
    keep_alive = None if several.keep_alive is None else _seconds(many, several.keep_alive)
    recipe = many.Recipe(
        options, load, drafting=drafts, embeddings=embeddings, type=weight_type,
        cache_ram=options.cache_ram // n,
    )  # fmt: skip
    fleet = many.make_fleet(
        catalog,
        many.ManyOptions(memory=several.memory, most=several.most, keep_alive=keep_alive),
        recipe,
    )
    with api.take_address(options) as address, api.House(options) as house:
        if not quiet:
            budget = (
                "" if fleet.loader.budget is None else f", {size_text(fleet.loader.budget)} at most"
            )
            say(f"{len(catalog)} models{budget}: {', '.join(catalog.entries)}")
            if not options.needs_key and options.host not in ("127.0.0.1", "localhost", "::1"):
                say("warning: without --api-key everybody in the network may use this server")

        def ready(url: str) -> None:
            fleet.begin()
            say(f"serving {len(catalog)} models at {url}/v1; Ctrl-C stops it")

        def make_app(shared: Any) -> Any:
            return many.create_many_app(fleet, shared)

        api.run_server(fleet, ready, address, house, make_app)


def _settings(many: Any, several: Several) -> Any:
    """The settings of the file that was given, or of `models.toml` in a folder of models."""
    path = several.config
    if path is None:
        there = [Path(source) / "models.toml" for source in several.sources]
        path = next((file for file in there if file.is_file()), None)
    return many.SettingsFile() if path is None else many.read_settings(path)


def _seconds(many: Any, text: str) -> float | None:
    try:
        seconds: float | None = many.parse_duration(text)
    except ValueError as error:
        raise usage_error(f"--keep-alive {text}: {error}") from None
    return seconds
