"""REDUCE, ARG_REDUCE, CUMULATE and SORT_INDICES say what PyTorch says."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from tensor_run import DEVICES, check, integers, normal, run, torch

import weft.graph as g
from weft.errors import GraphError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
AXES: Sequence[tuple[int, ...]] = [
    axes for n in range(5) for axes in itertools.combinations(range(4), n)
]
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def reduced(op: str, x: Any, dims: Sequence[int]) -> Any:
    """torch's result with sizes kept."""
    if op in ("PROD", "ANY", "ALL"):
        if op != "PROD":
            x = x != 0
        for d in dims:
            x = getattr(torch, op.lower())(x, d, keepdim=True)
        if op == "PROD" and not x.dtype.is_floating_point:
            return x.to(torch.int64)
        return x
    if not dims:
        sums = op == "SUM" and not x.dtype.is_floating_point
        return x.to(torch.int64) if sums else x
    name = {"MAX": "amax", "MIN": "amin"}.get(op, op.lower())
    return getattr(torch, name)(x, dims, keepdim=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["SUM", "MEAN", "MAX", "MIN", "PROD", "ANY", "ALL"])
def test_reduce_of_floats(op: str, device: str) -> None:
    x = normal(3, 5, 4, 67)
    x[0, 1] = 0
    for axes in AXES:
        dims = [3 - d for d in axes]
        got = run(lambda t, a=axes: g.reduce(op, t, a), x, device=device)
        check(got, reduced(op, x, dims), 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["SUM", "MAX", "MIN", "PROD", "ANY", "ALL"])
def test_reduce_of_integers(op: str, device: str) -> None:
    for dtype in INTEGERS:
        x = integers(5, 2, 3, 4, 21, low=-2, dtype=dtype)
        for axes in AXES[:8]:
            got = run(lambda t, a=axes: g.reduce(op, t, a), x, device=device)
            check(got, reduced(op, x, [3 - d for d in axes]), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_reduce_of_other_floats_and_strides(device: str) -> None:
    for dtype in FLOATS[1:]:
        x = normal(5, 300, dtype=dtype)
        for op in ("SUM", "MEAN", "MAX"):
            got = run(lambda t, o=op: g.reduce(o, t, [0]), x, device=device)
            check(got, reduced(op, x.float(), [1]).to(dtype), TOLERANCE[dtype], TOLERANCE[dtype])
    x = normal(7, 6, 50)
    for axes in ([0], [1], [2], [0, 2]):
        got = run(lambda t, a=axes: g.reduce("sum", g.permute(t, 2, 0, 1, 3), a), x, device=device)
        # ne [50, 6, 7] becomes [6, 7, 50]
        y = x.permute(2, 0, 1)
        check(got, y.sum([2 - d for d in axes], keepdim=True), 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_reduce_keeps_nan_and_sums_well(device: str) -> None:
    x = normal(4, 100)
    x[1, 77], x[2, 3], x[3, 0] = float("nan"), float("inf"), float("-inf")
    for op in ("MAX", "MIN", "SUM", "PROD", "ANY", "ALL", "MEAN"):
        for axes, dims in (([0], [1]), ([1], [0]), ([0, 1], [0, 1])):
            got = run(lambda t, o=op, a=axes: g.reduce(o, t, a), x, device=device)
            check(got, reduced(op, x, dims), 2e-5, 2e-5)
    ones = torch.full((1, 1 << 20), 0.1)
    for axes in ([0], [0, 1]):
        got = run(lambda t, a=axes: g.reduce("sum", t, a), ones, device=device)
        torch.testing.assert_close(got.reshape(()), ones.double().sum().float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("largest", [True, False])
def test_arg_reduce(largest: bool, device: str) -> None:
    find = torch.argmax if largest else torch.argmin
    for dtype in (*FLOATS, *INTEGERS):
        x = integers(6, 3, 5, 4, 33, low=-6, dtype=dtype)  # with ties
        for axis in (0, 1, 2, 3):
            got = run(lambda t, a=axis: g.arg_reduce(t, a, largest=largest), x, device=device)
            want = x.numpy() if dtype is not torch.bfloat16 else x.float().numpy()
            first = (want.argmax if largest else want.argmin)(3 - axis, keepdims=True)
            check(got, torch.from_numpy(first), exact=True)
        got = run(lambda t: g.arg_reduce(t, largest=largest), x, device=device)
        flat = x.float().numpy().reshape(-1)
        assert got.item() == (flat.argmax() if largest else flat.argmin())
    x = normal(6, 50)
    x[0, 7] = x[0, 9] = x[2, 0] = float("nan")
    check(
        run(lambda t: g.arg_reduce(t, 0, largest=largest), x, device=device),
        find(x, 1, keepdim=True),
        exact=True,
    )
    assert run(lambda t: g.arg_reduce(t, largest=largest), x, device=device).item() == find(x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["SUM", "PROD"])
def test_cumulate(op: str, device: str) -> None:
    along = torch.cumsum if op == "SUM" else torch.cumprod
    for dtype in (*FLOATS, *INTEGERS):
        if dtype.is_floating_point:
            x = 1 + normal(3, 4, 5, 40, dtype=torch.float32, scale=0.1).to(dtype)
        else:
            x = integers(4, 3, 4, 5, 40, low=-3, dtype=dtype)
        for axis in range(4):
            got = run(lambda t, a=axis: g.cumulate(op, t, a), x, device=device)
            if dtype.is_floating_point:
                want = along(x.double(), 3 - axis).to(dtype)
                check(got, want, TOLERANCE[dtype], TOLERANCE[dtype])
            else:
                check(got, along(x, 3 - axis), exact=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("descending", [True, False])
def test_sort_is_stable_and_nan_is_largest(descending: bool, device: str) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        for n in (33, 200):
            x = integers(9, 2, 3, 4, n, low=-9, dtype=dtype)
            if dtype.is_floating_point:
                x[0, 0, 0, 5] = x[0, 0, 0, 2] = float("nan")
                x[1, 0, 0, 3] = float("-inf")
                x[1, 0, 0, 1] = -0.0
            for axis in range(4):
                got = run(
                    lambda t, a=axis: g.sort_indices(t, a, descending=descending), x, device=device
                )
                want = x.sort(dim=3 - axis, descending=descending, stable=True).indices
                check(got, want, exact=True)
    large = torch.tensor([[2**62, -(2**63), 2**63 - 1, 0, 2**62 - 1]])
    got = run(lambda t: g.sort_indices(t, 0, descending=descending), large, device=device)
    check(got, large.sort(dim=1, descending=descending).indices, exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_top_k_and_its_values(device: str) -> None:
    for n, k in ((40, 3), (700, 10), (9, 9)):
        x = normal(3, 4, n)
        for axis in (0, 1):
            kept = min(k, x.shape[2 - axis])
            indices = run(
                lambda t, a=axis, m=kept: g.sort_indices(t, a, descending=True, k=m),
                x,
                device=device,
            )
            want = x.topk(kept, 2 - axis)
            check(indices, want.indices, exact=True)
            got = run(
                lambda t, a=axis, m=kept: g.gather(
                    t, g.sort_indices(t, a, descending=True, k=m), a
                ),
                x,
                device=device,
            )
            check(got, want.values, exact=True)


def test_what_has_no_result_is_refused() -> None:
    x = g.input("x", [3, 4])
    with pytest.raises(GraphError, match=r"an axis is 0\.\.3"):
        g.cumulate("sum", x, 4)
    with pytest.raises(GraphError, match="k = 5 is more than the elements"):
        g.sort_indices(x, 0, k=5)
    with pytest.raises(GraphError, match="must be f32"):
        g.reduce("mean", g.input("i", [3], "i32"), [0])
    with pytest.raises(GraphError, match="no maximum"):
        g.reduce("max", g.input("e", [3, 0]), [0])
