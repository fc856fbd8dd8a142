"""Fixtures that every test may use, and where the golden vectors are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT.parent / "shared" / "vectors"
"""The full golden vectors; a public clone does not have them."""


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder of the full golden vectors; skips the test where it is absent."""
    if not VECTORS.is_dir():
        pytest.skip("the full golden vectors (../shared/vectors) are not part of a public clone")
    return VECTORS
