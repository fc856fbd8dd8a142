"""The recipe of a replica: arguments of `Service`, and the files that a machine may lack."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from weft.cluster.model_files import ModelFiles, ReadPart, describe_files, have_files
from weft.errors import WeftError
from weft.flags import FLAGS
from weft.records import dataclass
from weft.serve.options import ServeOptions
from weft.version import __version__

_OF_FRONT = ("api_key", "api_key_file", "keys", "ssl_key_file", "ssl_cert_file", "log_file",
             "files_dir")  # fmt: skip
"""Options of the server in front that no replica needs."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The arguments and files of a model, as data that is sent to other machines."""

    model: str
    options: ServeOptions
    arguments: Mapping[str, Any]
    """Further arguments of `Service`."""
    files: Mapping[str, ModelFiles]
    """The model and the other files that the arguments name, by their paths."""
    version: str = __version__
    turn: int = 0
    """Another number makes Ray Serve replace replicas whose recipe is the same otherwise."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(files.size for files in self.files.values())

    def on_this_machine(self, read: ReadPart | None) -> tuple[Path, dict[str, Any]]:
        """The model and the arguments with paths of this machine; files that it lacks are fetched
        by `read`. Raises the errors of `have_files`, and WeftError for another version of weft."""
        if self.version != __version__:
            raise WeftError(
                f"this machine has weft {__version__}, and the server {self.version}; install the "
                "same version on all machines"
            )
        cache = Path(FLAGS.cache)
        here = {path: have_files(files, cache, read) for path, files in self.files.items()}

        def moved(path: Path) -> Path:
            return here.get(str(path), path)

        arguments = cast(dict[str, Any], _mapped(dict(self.arguments), moved))
        return moved(Path(self.model)), arguments


def describe(
    model: str | os.PathLike[str], options: ServeOptions, arguments: Mapping[str, Any]
) -> Recipe:
    """A recipe of a model with the arguments of `Service`. Reads all its files once, for their
    hashes. Raises FormatError for a file that cannot be read."""
    own = {name: None for name in _OF_FRONT} | {"otel": False, "log_level": "warning"}
    cache = Path(FLAGS.cache)
    found: dict[str, ModelFiles] = {}

    def note(path: Path) -> Path:
        if path.exists() and str(path) not in found:
            found[str(path)] = describe_files(path, cache)
        return path

    path = note(Path(os.path.abspath(model)))
    kept = _mapped({k: v for k, v in arguments.items() if k != "progress"}, _absolute)
    _mapped(kept, note)
    alias = options.alias or _name(Path(model))
    replica_options = dataclasses.replace(options, alias=alias, **cast(dict[str, Any], own))
    return Recipe(str(path), replica_options, cast(dict[str, Any], kept), found)


def _name(model: Path) -> str:
    from weft.serve.service import model_name

    return model_name(model)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path)) if path.exists() else path


def _mapped(value: Any, change: Callable[[Path], Path]) -> Any:
    """A value with every path in it changed."""
    if isinstance(value, Path):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(one, change) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(one, change) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            f.name: _mapped(getattr(value, f.name), change)
            for f in dataclasses.fields(value)
            if f.init
        }
        if any(new is not getattr(value, name) for name, new in changed.items()):
            return dataclasses.replace(value, **changed)
    return value
