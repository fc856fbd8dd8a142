"""Every backend of the project sits the same exam."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.backend_suite import BackendSuite
from tests.backends.opencl_device import opencl
from weft.backends import Backend, make_backend


class TestReference(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return make_backend("reference")


class TestCpu(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return make_backend("cpu", n_threads=2)


@pytest.mark.skipif(find_spec("scipy_openblas32") is None, reason="needs the blas extra")
class TestBlas(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return make_backend("blas", min_batch=1, n_threads=1)


class TestOpenCL(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return opencl()


class TestOpenCLWithTiles(BackendSuite):
    """Group sizes as on a GPU: products in tiles, several items a row."""

    @classmethod
    def make(cls) -> Backend:
        return opencl(
            limits={"tile": 32, "lanes": 8, "rows": 2, "columns": 4, "wide": False},
            copy_weights=True,
        )
