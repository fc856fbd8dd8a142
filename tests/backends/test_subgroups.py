"""Kernels whose items exchange numbers in subgroups, beside the same kernels without: the bits are
the same, and those of the reference within the limit of each case.

Lavapipe's subgroups have as many items as its vectors have numbers: eight, or four."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.backend_suite import _alone, _expected
from tests.backends.webgpu_device import limited_features, webgpu
from weft.backends import make_backend
from weft.backends.cases import Case, all_cases
from weft.backends.kernels.assembly import source_of
from weft.backends.webgpu import WebGPUBackend
from weft.backends.webgpu.translation import translate
from weft.errors import DeviceError
from weft.execute.trial import disagreement, run_case

LIMITS = {
    "tile": 16, "lanes": 16, "rows": 2, "columns": 4, "wide": False, "part_cells": 32,
    "row_items": 32,
}  # fmt: skip
"""Groups of several subgroups; rows of weights have several, too."""
CASES = (
    "NORM 133", "RMS_NORM 1024", "L2_NORM 133", "NORM_SCALE centred, bias f32", "GROUP_NORM",
    "SOFT_MAX mask, slopes, sinks", "ARGMAX f32", "ARGMAX f32 equals", "CROSS_ENTROPY_LOSS",
    "REDUCE SUM f32 (0, 2)", "REDUCE MEAN f16 (1,)", "REDUCE SUM i64 (0, 2)",
    "REDUCE MAX i32 (0,)", "REDUCE MIN f32 (0, 2)", "ARG_REDUCE f32 long largest NaN",
    "ARG_REDUCE i64 long smallest", "ARG_REDUCE f32 1", "MUL_MAT f16 x1", "MUL_MAT f32 x5",
    "MUL_MAT q4_0 x1", "MUL_MAT q6_K x5", "MUL_MAT_ID f16 x1", "MUL_MAT_ID q4_0 x1",
    "FLASH_ATTN_EXT f16 x1",
)  # fmt: skip


def found(name: str) -> Case:
    (case,) = (c for c in all_cases() if f"{c.op} {c.variant}".strip() == name)
    return case


@cache
def device(*, subgroups: bool, row_items: int = 32) -> WebGPUBackend:
    limits = {**LIMITS, "subgroups": subgroups, "row_items": row_items}
    return webgpu(planes=True, activations="native", limits=limits)


def needs_subgroups() -> None:
    if not webgpu().device.has_subgroups:
        pytest.skip("the WebGPU device has no subgroups")


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_the_same(name: str) -> None:
    needs_subgroups()
    case = found(name)
    alone, together = (run_case(case, _alone(device(subgroups=s))) for s in (False, True))
    np.testing.assert_array_equal(together.view(np.uint8), alone.view(np.uint8))
    want = _expected(case)
    assert not isinstance(want, str)
    if case.format != "q6_K" and "q4" not in name:  # bytes of activations are not the reference's
        assert not disagreement(together, want, case.node().dtype, case.limit)


@pytest.mark.parametrize("row_items", [1, 4])
def test_groups_without_whole_subgroups(row_items: int) -> None:
    """Their items go through local memory."""
    needs_subgroups()
    for name in ("SOFT_MAX mask f32", "REDUCE SUM i64 (0, 2)", "ARGMAX f32 equals"):
        case, want = found(name), _expected(found(name))
        got = run_case(case, _alone(device(subgroups=True, row_items=row_items)))
        assert not isinstance(want, str)
        assert not disagreement(got, want, case.node().dtype, case.limit)


def test_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has them unless it is told otherwise; one without cannot be told to."""
    needs_subgroups()
    assert webgpu().limits.subgroups
    assert not webgpu(limits={"subgroups": False}).limits.subgroups
    limited_features(monkeypatch)
    assert not webgpu().limits.subgroups
    with pytest.raises(DeviceError, match="webgpu has no subgroups"):
        make_backend("webgpu", limits={"subgroups": True})


def test_only_kernels_that_join_numbers_use_them() -> None:
    """Modules of other kernels ask for nothing of the device."""
    source = source_of("softmax.cl")
    plain = translate(source, ["ALL_F32"], "soft_max", (16,), 64)
    shared = translate(source, ["ALL_F32", "SUBGROUPS"], "soft_max", (16,), 64)
    assert "subgroup" not in plain
    assert "subgroupShuffleXor" in shared and "@builtin(subgroup_id)" in shared
    glu = translate(source_of("glu.cl"), ["ALL_F32", "SUBGROUPS"], "glu", (64,), 0)
    assert "subgroup" not in glu
