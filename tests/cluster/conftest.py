"""Workers that tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker_processes import WorkerProcess, workers
from weft.flags import FLAGS


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerProcess]]:
    """Two supervised workers."""
    with workers(2, tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.fixture(scope="module")
def soon() -> Iterator[None]:
    """A machine counts as lost after a second."""
    before = FLAGS.machine_timeout
    object.__setattr__(FLAGS, "machine_timeout", 1)
    yield
    object.__setattr__(FLAGS, "machine_timeout", before)
