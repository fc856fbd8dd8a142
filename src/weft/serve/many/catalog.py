"""The models that a server can load, by name.

A folder has GGUF files, folders of Hugging Face (config.json with safetensors), and folders with
GGUF files in them, such as the shards of a model or a model with its mmproj file. Of shards the
first stands for all. A file `mmproj...` belongs to the model whose name it has behind `mmproj-`, or
to the only model of its folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from weft.errors import FormatError, MissingFileError
from weft.llm.hub import is_hub_name, local_path
from weft.records import dataclass
from weft.serve.many.settings import ModelSettings, SettingsFile

_SHARD = re.compile(r"-(\d{5})-of-\d{5}$")
MOST_MODELS = 4096
"""Maximum number of models of a server."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that can be loaded."""

    name: str
    path: Path
    settings: ModelSettings
    mmproj: Path | None = None
    """The file of the model's encoders for images and sound."""


class Catalog:
    """All models of a server, by their names and aliases."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Raises FormatError for two models of one name."""
        self.entries: dict[str, Entry] = {}
        self._names: dict[str, str] = {}
        for entry in entries:
            known = self.entries.get(entry.name)
            if known is not None and known.path.resolve() == entry.path.resolve():
                continue  # a folder and a folder in it were named
            for name in (entry.name, *entry.settings.aliases):
                other = self._names.setdefault(name, entry.name)
                if other != entry.name or (name == entry.name and name in self.entries):
                    paths = f"{self.entries[other].path} and {entry.path}"
                    raise FormatError(
                        f"two models are called {name!r}: {paths}; give one another name with "
                        "NAME=FILE, or leave out an alias"
                    )
            self.entries[entry.name] = entry

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, name: str) -> Entry | None:
        """The model that a request calls `name`: its name, an alias, with `:latest` as Ollama's
        clients write it, or with `.gguf`."""
        for one in (name, name.removesuffix(":latest"), name.removesuffix(".gguf")):
            if one in self._names:
                return self.entries[self._names[one]]
        return None


def find_models(sources: Sequence[str], settings: SettingsFile) -> Catalog:
    """The models of `sources`, each a folder, a file or NAME=FILE, and those that `settings` has a
    path for; a file may be a name (`weft.llm.hub`). Raises FormatError for a source without a
    model, for settings of a model that is not there, and for two models of one name;
    MissingFileError for a path that does not exist."""
    found: list[tuple[str, Path, Path | None]] = []
    for source in sources:
        found += _of_source(source)
    for name, own in settings.models.items():
        if own.path is not None:
            if not own.path.exists():
                raise MissingFileError(f"{own.path}: no such file or folder (models.{name})")
            found = [row for row in found if row[0] != name]
            found.append((name, own.path, None))
    if not found:
        raise FormatError(f"{', '.join(sources)}: there is no model here (GGUF or safetensors)")
    if len(found) > MOST_MODELS:
        raise FormatError(f"{len(found)} models are more than {MOST_MODELS}; give a smaller folder")
    missing = sorted(set(settings.models) - {name for name, _, _ in found})
    if missing:
        names = ", ".join(sorted(name for name, _, _ in found))[:400]
        raise FormatError(f"[models.{missing[0]}] is of no model; there are {names}")
    return Catalog(
        Entry(name, path, settings.of(name), settings.of(name).mmproj or mmproj)
        for name, path, mmproj in sorted(found, key=lambda row: row[0])
    )


def _of_source(source: str) -> list[tuple[str, Path, Path | None]]:
    path = local_path(source).expanduser()
    if path.is_dir() and not _is_model_folder(path):
        return list(_of_folder(path))
    name, equals, file = source.partition("=")
    if is_hub_name(source):
        return [(_name_of(path), path, None)]
    if path.exists() or not equals:
        if not path.exists():
            raise MissingFileError(f"{source}: no such file or folder")
        return [(_name_of(path), path, None)]
    named = local_path(file).expanduser()
    if not name or not named.exists():
        raise MissingFileError(f"{source}: there is no file {file}; write NAME=FILE")
    return [(name, named, None)]


def _of_folder(folder: Path) -> Iterator[tuple[str, Path, Path | None]]:
    """The models of a folder, and of folders in it."""
    yield from _files(folder)
    for inner in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if _is_model_folder(inner):
            yield inner.name, inner, None
        else:
            yield from _files(inner)


def _files(folder: Path) -> Iterator[tuple[str, Path, Path | None]]:
    """The GGUF files of a folder."""
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf" and p.is_file())
    towers = [p for p in files if p.name.lower().startswith("mmproj")]
    models = [p for p in files if p not in towers and _is_first(p)]
    for path in models:
        name = _name_of(path)
        own = [p for p in towers if _belongs(p, name)]
        if not own and len(models) == 1 and len(towers) == 1:
            own = towers
        yield name, path, own[0] if own else None


def _belongs(tower: Path, name: str) -> bool:
    """True if an mmproj file is named after a model, whose name may have a quantization more."""
    stem = tower.stem[len("mmproj") :].strip("-_.").lower()
    return bool(stem) and name.lower().startswith(stem)


def _is_first(path: Path) -> bool:
    shard = _SHARD.search(path.stem)
    return shard is None or int(shard[1]) == 1


def _name_of(path: Path) -> str:
    return path.name if path.is_dir() else _SHARD.sub("", path.stem)


def _is_model_folder(path: Path) -> bool:
    """True for a folder of Hugging Face with a model."""
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))
