"""The public list is exactly what can be imported, and it is sorted."""

from __future__ import annotations

import importlib

import pytest

PACKAGES = ["weft", "weft.graph", "weft.quants", "weft.schedule", "weft.allocate", "weft.compiler",
            "weft.execute", "weft.llm", "weft.frontends.gguf", "weft.backends"]  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    missing = [n for n in module.__all__ if not hasattr(module, n)]
    assert not missing


def test_errors_are_public() -> None:
    import weft
    from weft import errors

    assert set(errors.__all__) <= set(weft.__all__)
