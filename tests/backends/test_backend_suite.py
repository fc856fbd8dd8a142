"""Every backend of the project sits the same exam."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.backend_suite import BackendSuite
from tests.backends.opencl_device import opencl
from weft.backends import Backend, make_backend
from weft.backends.cases import Case


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
    """Group sizes as on a GPU: products in tiles, several items a row. Only the ops that look at
    them, of a few formats: PoCL takes seconds to compile a tiled product."""

    @classmethod
    def wants(cls, case: Case) -> bool:
        ops = ("MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "SOFT_MAX", "RMS_NORM")
        return case.op in ops and case.variant.split(" ")[0] in ("f32", "f16", "q4_K", "mask", "")

    @classmethod
    def make(cls) -> Backend:
        return opencl(
            limits={"tile": 32, "lanes": 8, "rows": 2, "columns": 4, "wide": False},
            copy_weights=True,
        )
