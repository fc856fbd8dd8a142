"""Every backend of the project sits the same exam."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

import pytest

from tests.backend_suite import BackendSuite, _model, _nodes, _some
from tests.backends.opencl_device import opencl
from weft.backends import Backend, make_backend
from weft.backends.base import Support
from weft.backends.cases import Case
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


class TestOpenCL(BackendSuite):
    """Of ops that read formats, a format of each kind; golden cases try one case of each. PoCL
    takes seconds to compile attention."""

    FORMATS: ClassVar = ("f32", "f16", "q8_0", "q4_K", "iq3_s", "")

    @classmethod
    def wants(cls, case: Case) -> bool:
        some = ("f16", "") if case.op == "FLASH_ATTN_EXT" else cls.FORMATS
        return case.format in some

    @classmethod
    def make(cls) -> Backend:
        return opencl()


@pytest.mark.part("devices")
class TestOpenCLFormats(TestOpenCL):
    """The other formats."""

    @classmethod
    def wants(cls, case: Case) -> bool:
        return not super().wants(case)


@pytest.mark.part("devices")
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
            limits={
                "tile": 32,
                "lanes": 8,
                "rows": 2,
                "columns": 4,
                "wide": False,
                "part_cells": 32,
            },
            copy_weights=True,
        )
