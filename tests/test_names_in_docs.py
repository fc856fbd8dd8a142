"""Docstrings and docs/layout.md name files that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/weft"
FOLDERS = (
    PACKAGE, PACKAGE / "llm", ROOT, ROOT / "native", ROOT / "native/include", ROOT / "native/src",
    ROOT / "executorch", ROOT / "executorch/src/weft_executorch",
)  # fmt: skip
"""The folders from which paths in docs/layout.md start."""
PATH = re.compile(r"/|\.(py|cpp|h|md|toml|fbs|cmake)$")
ELSEWHERE = {"release/cubins.py", "llm/models/FILE.py", "frontends/hf/families/FILE.py"}
"""Names of files outside the package, and patterns of names."""


def docstrings(path: Path) -> Iterator[str]:
    """Every text that stands alone in a module: docstrings, also of fields."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def test_docstrings_name_modules_that_exist() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    known = [f"/{path.relative_to(ROOT).as_posix()}" for path in modules]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules
        for text in docstrings(path)
        for name in re.findall(r"(?<![\w./*-])[\w/]+\.py\b", text)
        if name not in ELSEWHERE and not any(each.endswith(f"/{name}") for each in known)
    ]
    # The lists in the docstrings of packages are of their own folders.
    wrong += [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules
        if path.name == "__init__.py"
        for text in docstrings(path)
        for name in re.findall(r"^([\w/]+\.py) ", text, re.MULTILINE)
        if not (path.parent / name).exists()
    ]
    assert not wrong, "\n".join(wrong)


def test_the_layout_names_paths_that_exist() -> None:
    text = (ROOT / "docs/layout.md").read_text(encoding="utf-8")
    wrong = []
    for section in text.split("\n## ")[1:]:
        paths = [each for each in re.findall(r"`([^`\s]+)`", section) if PATH.search(each)]
        # A name stands for a file of a folder that the same section names.
        folders = {found for each in paths for found in places(each, FOLDERS) if found.is_dir()}
        folders |= {found for each in paths for found in places(each, folders) if found.is_dir()}
        wrong += [
            f"{section.splitlines()[0]}: {each}"
            for each in paths
            if not places(each, folders.union(FOLDERS))
        ]
    assert not wrong, "\n".join(wrong)


def places(name: str, folders: Collection[Path]) -> list[Path]:
    """The files and folders of this name, or fitting this pattern, in `folders`."""
    return [found for folder in folders for found in folder.glob(name.rstrip("/"))]
