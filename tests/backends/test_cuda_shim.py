"""CUDA devices on this processor: kernels and launches of the GPU's, without one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.backend_suite import BackendSuite
from tests.cuda_shim import compiler
from weft.backends import Backend, make_backend
from weft.backends.cases import Case

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")


class TestCuda(BackendSuite):
    """Kernels are compiled one by one, so formats other than these are left to other tests."""

    FORMATS: ClassVar = ("f32", "f16", "q4_K", "i32", "mask", "")

    @classmethod
    def wants(cls, case: Case) -> bool:
        return case.variant.split(" ")[0] in cls.FORMATS

    @classmethod
    def make(cls) -> Backend:
        return make_backend("cuda:shim")


@pytest.mark.part("devices")
class TestCudaFormats(TestCuda):
    """More formats."""

    FORMATS: ClassVar = ("bf16", "q8_0")
