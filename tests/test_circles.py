"""No module imports, for types either, a module that imports it, be it through others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"weft": ROOT / "src", "weft_executorch": ROOT / "executorch/src"}


@pytest.mark.parametrize("package", SOURCES)
def test_modules_import_in_one_direction(package: str) -> None:
    files = modules(SOURCES[package], package)
    graph = {name: set(imported(name, path, files)) - {name} for name, path in files.items()}
    TopologicalSorter(graph).prepare()


def test_a_circle_of_types_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "house"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("def later():\n    from house.b import x\n")
    (folder / "b.py").write_text("if TYPE_CHECKING:\n    from house import a\n")
    files = modules(tmp_path, "house")
    graph = {name: set(imported(name, path, files)) for name, path in files.items()}
    with pytest.raises(CycleError, match=r"house\.[ab]"):
        TopologicalSorter(graph).prepare()


def modules(source: Path, package: str) -> dict[str, Path]:
    """The files of a package by the name of the module."""
    paths = sorted((source / package).rglob("*.py"))
    parts = {path: path.relative_to(source).with_suffix("").parts for path in paths}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): path for path, p in parts.items()}


def imported(name: str, path: Path, files: dict[str, Path]) -> Iterator[str]:
    """The modules that one imports, in functions and for type checkers, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{name} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from {inner if inner in files else node.module} & files.keys()
