"""What a wheel has of others: a bill of materials (CycloneDX, PEP 770) and their licences."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from release.errors import ReleaseError
from release.notes import versions

__all__ = ["PAGE", "Component", "components", "inside", "sbom"]

PAGE = Path("src/weft/serve/page/static/vendor")
_ROW = re.compile(r"^\| `([^`]+)` \| (\S+)[^|]*\| ([\d.]+) \| ([^,|]+), ([^|]+)\|", re.MULTILINE)
_SPDX = {
    "MIT": "MIT", "BSD 3-clause": "BSD-3-Clause", "Apache 2.0 or MPL 2.0": "Apache-2.0 OR MPL-2.0"
}  # fmt: skip


@dataclass(frozen=True)
class Component:
    """A work of others: `licences` are files of the repository, `file` is its copy in the wheel,
    `version` is empty where parts were taken over and changed."""

    name: str
    version: str
    spdx: str
    about: str
    licences: tuple[Path, ...]
    kind: str = "generic"
    file: Path | None = None


def _own(name: str) -> tuple[Path, ...]:
    return (Path("licenses") / f"{name}.LICENSE",)


def components(root: Path) -> list[Component]:
    """Every work of others in a wheel that `make wheels` makes, but for the C++ library that comes
    with zig (`inside`). Raises ReleaseError for a row of the page's README that it cannot read."""
    try:
        nanobind = version("nanobind")
    except PackageNotFoundError:
        raise ReleaseError("nanobind is missing; pip install --group build") from None
    found = [
        Component("nanobind", nanobind, "BSD-3-Clause", "in the native module, which it binds",
                  _own("nanobind"), "pypi"),
        Component("robin-map", "", "MIT", "in the native module, as a part of nanobind",
                  _own("robin-map")),
        Component("ggml", "", "MIT", "block formats, their tables and their quantizers",
                  _own("ggml")),
        Component("llama.cpp", "", "MIT", "the types of its mixes, by tensor", _own("ggml")),
        Component("ik_llama.cpp", "", "MIT", "block formats of its types", _own("ik_llama.cpp")),
        Component("BitNet", "", "MIT", "the format i2_s", _own("bitnet")),
    ]  # fmt: skip
    for file, package, number, licence, texts in _ROW.findall(
        (root / PAGE / "README.md").read_text("utf-8")
    ):
        if licence not in _SPDX:
            raise ReleaseError(f"{PAGE}/README.md: the licence {licence!r} of {package} is unknown")
        licences = tuple(PAGE / name for name in re.findall(r"`([^`]+)`", texts))
        about = "in the page of weft serve"
        found.append(
            Component(package, number, _SPDX[licence], about, licences, "npm", PAGE / file)
        )
    return found


def sbom(weft: str, parts: Sequence[Component], root: Path | None = None) -> str:
    """The bill of materials of weft's version `weft`, as CycloneDX 1.6 in JSON; the same bytes for
    the same parts. With `root` it has the hashes of files."""
    listed = [_listed(part, root) for part in parts]
    main = {
        "type": "library", "bom-ref": "weft", "name": "weft", "version": weft,
        "purl": f"pkg:pypi/weft@{weft}", "licenses": [{"expression": "MIT"}],
    }  # fmt: skip
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": main}, "components": listed,
        "dependencies": [{"ref": "weft", "dependsOn": [part["bom-ref"] for part in listed]}],
    }  # fmt: skip
    return json.dumps(bill, indent=1)


def _listed(part: Component, root: Path | None) -> dict[str, Any]:
    name = part.name.replace("@", "%40")
    purl = f"pkg:{part.kind}/{name}{f'@{part.version}' if part.version else ''}"
    row: dict[str, Any] = {
        "type": "library", "bom-ref": part.name, "name": part.name, "description": part.about,
        "licenses": [{"expression": part.spdx}], "purl": purl,
    }  # fmt: skip
    if part.version:
        row["version"] = part.version
    if part.file and root:
        digest = hashlib.sha256((root / part.file).read_bytes()).hexdigest()
        row["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return row


def inside(root: Path) -> dict[str, bytes]:
    """Files for .dist-info of a wheel that zig compiled: the bill of materials, and the licence of
    the C++ library. Raises ReleaseError where zig or that licence is missing."""
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise ReleaseError("ziglang is missing; pip install --group wheels")
    text = Path(spec.origin).parent / "lib/libcxx/LICENSE.TXT"
    if not text.is_file():
        raise ReleaseError(f"{text} is missing, the licence of the C++ library in wheels")
    library = Component(
        "libcxx", f"zig-{version('ziglang')}", "Apache-2.0 WITH LLVM-exception",
        "the C++ library (libc++, libc++abi, libunwind), linked statically", (),
    )  # fmt: skip
    bill = sbom(versions(root)["weft"], [*components(root), library], root)
    return {
        "sboms/weft.cdx.json": bill.encode(),
        "licenses/libcxx.LICENSE": text.read_bytes(),
    }
