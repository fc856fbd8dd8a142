"""Devices of a worker in another process sit the exam of all backends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from tests.backend_suite import BackendSuite
from tests.cluster.worker_processes import WorkerProcess
from weft.backends import Backend, make_backend


@pytest.fixture(scope="module", autouse=True)
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(tmp_path_factory.mktemp("cache")) as process:
        TestRemoteCpu.address = process.address
        yield process


class TestRemoteCpu(BackendSuite):
    address: ClassVar[str]

    @classmethod
    def make(cls) -> Backend:
        return make_backend(f"remote:{cls.address}/cpu")
