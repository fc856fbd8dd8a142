"""The public lists: every name can be imported, none is missing, and they are sorted."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PACKAGES = ["weft", "weft.graph", "weft.quants", "weft.schedule", "weft.allocate", "weft.compiler",
            "weft.execute", "weft.llm", "weft.frontends.gguf", "weft.backends"]  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    missing = [n for n in module.__all__ if not hasattr(module, n)]
    assert not missing
    assert list(module.__all__) == sorted(module.__all__, key=in_order)
    shown = {n for n in dir(module) if not n.startswith("_")}
    shown -= set(dir(builtins)) if name == "weft" else set()  # `import *` would shadow these
    undeclared = {n for n in shown - set(module.__all__) if is_own(getattr(module, n), name)}
    assert not undeclared


def in_order(name: str) -> tuple[int, str]:
    """Constants, classes, functions; by name."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name)


MODULES = ["weft.program", "weft.torch_module", "weft.backends.cpu", "weft.graph.polynomial",
           "weft.graph.rewrite", "weft.frontends.fx", "weft.schedule.passes"]  # fmt: skip
"""Public without a package of their own."""


def annotations_of(value: object) -> str:
    """What stands in the signatures of a function, or of the public methods of a class."""
    inner = vars(value).items() if inspect.isclass(value) else [("", value)]
    fields = getattr(value, "__dataclass_fields__", {})  # there before __init__ is made
    texts = [str(field.type) for name, field in fields.items() if not name.startswith("_")]
    for name, function in inner:
        function = getattr(function, "__func__", getattr(function, "fget", function))
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            texts += [str(text) for text in inspect.unwrap(function).__annotations__.values()]
    return " ".join(texts)


def test_what_stands_in_signatures_is_public() -> None:
    """Whoever writes down the type of a value can import its name from a public module."""
    named: dict[str, str] = {}
    public: set[str] = set()
    for package in PACKAGES + MODULES:
        module = importlib.import_module(package)
        public |= set(module.__all__)
        for name in module.__all__ if package in PACKAGES else ():
            words = re.findall(r"\b[A-Z]\w+", annotations_of(getattr(module, name)))
            named |= {word: f"{package}.{name}" for word in words}
    own = [m for m in list(sys.modules.values()) if m.__name__.startswith("weft.")]
    ours = {n for m in own if "._" not in m.__name__ for n in names_of(m)}
    assert not {word: where for word, where in named.items() if word in ours - public}


def names_of(module: ModuleType) -> set[str]:
    """The names that a module lists; without a list, what it defines besides constants."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    shown = [n for n in vars(module) if not n.startswith("_") and not n.isupper()]
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return set(shown) - imported


def is_own(value: object, package: str) -> bool:
    """Whether it is a class or function that the package itself defines."""
    kind = inspect.isclass(value) or inspect.isfunction(value)
    return kind and str(getattr(value, "__module__", "")) == package


@pytest.mark.parametrize("name", ["api", "cli"])
def test_the_pages_of_names_and_commands_are_up_to_date(name: str) -> None:
    """`make docs` writes them."""
    folder = Path(__file__).parents[1] / "docs"
    process = subprocess.run(
        [sys.executable, folder / f"make_{name}.py"], capture_output=True, text=True, check=True
    )
    assert process.stdout == (folder / f"{name}.md").read_text(encoding="utf-8")


def test_the_tables_of_the_pages_are_up_to_date(tmp_path: Path) -> None:
    """`make docs` writes them."""
    folder = Path(__file__).parents[1] / "docs"
    pages = [folder / name for name in ("sampling.md", "apis.md", "gpu.md")]
    copies = [tmp_path / page.name for page in pages]
    for page, copy in zip(pages, copies, strict=True):
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, folder / "make_tables.py", *copies], check=True)
    for page, copy in zip(pages, copies, strict=True):
        assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_errors_are_public() -> None:
    import weft
    from weft import errors

    assert set(errors.__all__) <= set(weft.__all__)
