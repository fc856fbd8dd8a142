"""Fixtures that every test may use, and where the golden vectors are."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT.parent / "shared" / "vectors"
"""The full golden vectors; a public clone does not have them."""


def pytest_configure() -> None:
    """Ctrl-C reaches tests that raise it, also where a shell started them in the background, which
    ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _ray_files() -> set[str]:
    """The names of the files of tests that start Ray clusters."""
    files = ROOT.glob("tests/*/test_*.py")
    return {path.name for path in files if "tests.ray_nodes" in path.read_text()}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first, golden vectors and what starts Ray clusters: were they the last ones,
    one worker would run them while the others wait."""
    with_ray = _ray_files()
    items.sort(
        key=lambda item: (item.path.name != "test_vectors.py", item.path.name not in with_ray)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes a file at a time; one of them takes all that start Ray clusters, whose many
    processes would keep each other waiting."""
    from xdist.scheduler import LoadFileScheduling

    with_ray = _ray_files()

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "Ray" if Path(file).name in with_ray else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder of the full golden vectors; skips the test where it is absent."""
    if not VECTORS.is_dir():
        pytest.skip("the full golden vectors (../shared/vectors) are not part of a public clone")
    return VECTORS
