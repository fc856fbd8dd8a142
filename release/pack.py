"""Wheels: scikit-build-core packs what is Python, as in every other build; the native module comes
on top, and the tags say for what it was compiled."""

from __future__ import annotations

import base64
import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from release.errors import run
from release.platforms import Platform

__all__ = ["pack", "python_files", "tags"]

WHEN = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes


def tags(platform: Platform, python: tuple[int, int]) -> str:
    """Python, ABI and platform of a module: the stable ABI from 3.12 on."""
    version = f"cp{python[0]}{python[1]}"
    return f"{version}-{'abi3' if python >= (3, 12) else version}-{platform.tag}"


def python_files(project: Path, folder: Path) -> Path:
    """The wheel of a project's Python files alone, by its own build backend."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        run([
            sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "wheel", "--no-deps",
            "--no-build-isolation", "-C", "wheel.cmake=false", "-C", "wheel.py-api=py3",
            "-w", made, project,
        ])  # fmt: skip
        wheel = next(Path(made).glob("*.whl"))
        return wheel.rename(folder / wheel.name)


def pack(
    plain: Path,
    native: dict[str, bytes],
    tag: str,
    folder: Path,
    metadata: Mapping[str, bytes] = {},
) -> Path:
    """The wheel `plain` with another tag, the files of `native` (path in the wheel -> bytes) and
    those of `metadata` (path below .dist-info -> bytes)."""
    name, version = plain.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(plain) as wheel:
        files = {i.filename: wheel.read(i) for i in wheel.infolist() if not i.is_dir()}
    files |= native
    files |= {f"{info}/{path}": data for path, data in metadata.items()}
    lines = [
        line for line in files[f"{info}/WHEEL"].decode().splitlines()
        if line and not line.startswith(("Root-Is-Purelib", "Tag", "Build"))
    ]  # fmt: skip
    lines += ["Root-Is-Purelib: false", f"Tag: {tag}"]
    files[f"{info}/WHEEL"] = ("\n".join(lines) + "\n").encode()
    record = f"{info}/RECORD"
    files.pop(record, None)
    rows = [f"{path},{_digest(data)},{len(data)}" for path, data in sorted(files.items())]
    files[record] = ("\n".join([*rows, f"{record},,"]) + "\n").encode()
    out = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        # the metadata last, as PEP 427 recommends
        for path in sorted(files, key=lambda p: (p.startswith(info), p)):
            entry = zipfile.ZipInfo(path, WHEN)
            entry.external_attr = (0o755 if path in native else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[path])
    return out


def _digest(data: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={value}"
