"""The committed stub says what the native module has."""

from __future__ import annotations

import ast
from pathlib import Path

from weft import _native

STUB = Path(_native.__file__).resolve().parent / "_native.pyi"
SOURCE = Path(__file__).resolve().parents[2] / "src" / "weft" / "_native.pyi"


def test_stub_names_are_those_of_the_module() -> None:
    tree = ast.parse((SOURCE if SOURCE.exists() else STUB).read_text())
    stub: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            stub[node.name] = set()
        elif isinstance(node, ast.ClassDef):
            stub[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    public = [n for n in dir(_native) if not n.startswith("_")]
    assert sorted(stub) == sorted(public), "run `make stubs`"
    for name in public:
        value = getattr(_native, name)
        if isinstance(value, type):
            members = {m for m in vars(value) if not m.startswith("_")}
            assert members <= stub[name], f"{name}: run `make stubs`"
