"""Versions, tags and release notes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from release.errors import ReleaseError

__all__ = ["check_tag", "notes", "versions"]

_CITED = re.compile(r"^version: (\S+)$", re.MULTILINE)
_HEADING = re.compile(r"^## +\[?v?([^\s\]]+)\]?.*$", re.MULTILINE)


def versions(root: Path) -> dict[str, str]:
    """The version of each distribution; raises ReleaseError where weft-executorch has another than
    weft, or asks for another weft, or where CITATION.cff names another."""
    found = {}
    for folder in ("", "executorch"):
        file = root / folder / "pyproject.toml"
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        found[project["name"]] = project["version"]
        for requirement in project["dependencies"]:
            name, _, wanted = requirement.partition("==")
            if name == "weft" and wanted != found["weft"]:
                raise ReleaseError(f"{file} asks for weft {wanted}; weft has {found['weft']}")
    if len(set(found.values())) != 1:
        raise ReleaseError(f"the distributions have different versions: {found}")
    citation = root / "CITATION.cff"
    cited = _CITED.search(citation.read_text("utf-8"))
    if cited is None or cited[1] != found["weft"]:
        raise ReleaseError(
            f"{citation} has the version {cited and cited[1]}; weft has {found['weft']}"
        )
    return found


def check_tag(tag: str, root: Path) -> str:
    """The version of a tag such as v0.1.0; raises ReleaseError where pyproject.toml has another."""
    version = versions(root)["weft"]
    if tag != f"v{version}":
        raise ReleaseError(
            f"the tag is {tag}, and pyproject.toml has version {version}: tag v{version}, or "
            "change the version in pyproject.toml and executorch/pyproject.toml"
        )
    return version


def notes(changelog: str, version: str, draft: bool = False) -> str:
    """The section of a version, without its heading; raises ReleaseError where there is none, where
    it is empty, or where its heading still says `unreleased` and it is not asked for as a draft."""
    headings = list(_HEADING.finditer(changelog))
    for i, heading in enumerate(headings):
        if heading.group(1) != version:
            continue
        if "unreleased" in heading.group(0) and not draft:
            raise ReleaseError(
                f"CHANGELOG.md calls {version} unreleased; write its date there, or add --draft"
            )
        end = headings[i + 1].start() if i + 1 < len(headings) else len(changelog)
        text = changelog[heading.end() : end].strip()
        if not text:
            raise ReleaseError(f"CHANGELOG.md says nothing of {version}")
        return text + "\n"
    known = ", ".join(h.group(1) for h in headings) or "no version"
    raise ReleaseError(f"CHANGELOG.md has no section {version!r}; it has {known}")
