"""Every backend of the project sits the same exam."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.backend_suite import (
    BackendSuite,
    GpuGroupSizesSuite,
    RemainingFormats,
    SlowCompilerSuite,
    _model,
    _nodes,
    _some,
)
from tests.backends.opencl_device import opencl
from weft.backends import Backend, make_backend
from weft.backends.base import Support
from weft.backends.reference import ReferenceBackend
from weft.graph.tensor import Tensor


class TestReference(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return make_backend("reference")


class FewOps(ReferenceBackend):
    """A device that has kernels of two functions only."""

    name, kind = "few", "ACCEL"

    def supports_op(self, node: Tensor) -> Support:
        few = node.op.is_view or node.op.name in ("NONE", "SQR", "SIN")
        return super().supports_op(node) if few else Support(False, "few has no kernel for it")


class TestFewOps(BackendSuite):
    """The exam finds work for devices that take little: no question is passed by doing nothing."""

    @classmethod
    def make(cls) -> Backend:
        return FewOps()

    def test_splits_and_faults_have_nodes_of_the_device(self, device: Backend) -> None:
        model = _model(device)
        chosen = [
            n for n, mine in zip(_nodes(model.graph), _some(device, model), strict=True) if mine
        ]
        assert chosen and all(node.op.name in ("SQR", "SIN") for node in chosen)


class TestCpu(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return make_backend("cpu", n_threads=2)


@pytest.mark.skipif(find_spec("scipy_openblas32") is None, reason="needs the blas extra")
class TestBlas(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return make_backend("blas", min_batch=1, n_threads=1)


class TestOpenCL(SlowCompilerSuite):
    @classmethod
    def make(cls) -> Backend:
        return opencl()


@pytest.mark.part("devices")
class TestOpenCLRemainingFormats(RemainingFormats, TestOpenCL):
    """The formats that the class above leaves out."""


@pytest.mark.part("devices")
class TestOpenCLWithTiles(GpuGroupSizesSuite):
    @classmethod
    def make(cls) -> Backend:
        return opencl(limits=cls.LIMITS, copy_weights=True)
