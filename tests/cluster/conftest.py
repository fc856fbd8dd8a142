"""Workers that tests of faults share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lasting import Lasting
from tests.worker_processes import WorkerProcess, workers
from weft.flags import FLAGS


@contextmanager
def _two() -> Iterator[list[WorkerProcess]]:
    with tempfile.TemporaryDirectory() as folder, workers(2, Path(folder)) as made:
        yield made


_TWO = Lasting("workers", _two)


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest) -> list[WorkerProcess]:
    """Two supervised workers, which files of the group "workers" share."""
    return _TWO.get(request)


@pytest.fixture(scope="module")
def soon() -> Iterator[None]:
    """A machine counts as lost after three seconds: a busy one may be silent for one."""
    yield from _machine_timeout(3)


@pytest.fixture
def patient() -> Iterator[None]:
    """A machine that ends, and is started again, has a minute to come back: the start of a process
    takes several seconds on a busy machine."""
    yield from _machine_timeout(60)


def _machine_timeout(seconds: int) -> Iterator[None]:
    before = FLAGS.machine_timeout
    object.__setattr__(FLAGS, "machine_timeout", seconds)
    yield
    object.__setattr__(FLAGS, "machine_timeout", before)
