"""The files of the page, read once and packed once."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from weft.records import dataclass

__all__ = ["FOLDER", "START", "PageFile", "page_files"]

FOLDER = Path(__file__).resolve().parent / "static"
START = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types by the ends of names. Other files of the folder (licences) are not served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    media_type: str
    plain: bytes
    packed: bytes
    """The same with gzip."""
    tag: str
    """Changes with the content (`ETag`)."""


@cache
def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its path in the folder, such as `parts/view.js`."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> PageFile:
    plain = path.read_bytes()
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return PageFile(TYPES[path.suffix], plain, gzip.compress(plain, 9, mtime=0), tag)
