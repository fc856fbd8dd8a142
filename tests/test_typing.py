"""The public API as a type checker sees it: mypy in strict mode reads a user's code."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_user_code_is_typed() -> None:
    api = pytest.importorskip("mypy.api")
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    report, _, status = api.run([*options, *cache, str(ROOT / "tests" / "typed_user_code.py")])
    assert status == 0, report
