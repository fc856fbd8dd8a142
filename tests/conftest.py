"""Fixtures that every test may use, and where the golden vectors are."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT.parent / "shared" / "vectors"
"""The full golden vectors; a public clone does not have them."""


def pytest_configure() -> None:
    """Ctrl-C reaches tests that raise it, also where a shell started them in the background, which
    ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Golden vectors come first: were the longest tests the last ones, one worker would run them
    while the others wait."""
    items.sort(key=lambda item: item.path.name != "test_vectors.py")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder of the full golden vectors; skips the test where it is absent."""
    if not VECTORS.is_dir():
        pytest.skip("the full golden vectors (../shared/vectors) are not part of a public clone")
    return VECTORS
