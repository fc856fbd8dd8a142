"""CUMULATE_ARG, SEARCH_SORTED and CDIST say what PyTorch says."""

import math

import pytest
from tensor_run import check, integers, normal, run, torch

import weft.graph as g
from weft.errors import GraphError

DEVICES = ["reference", "cpu"]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
NAN = float("nan")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("largest", [True, False])
def test_places_of_running_extremes(largest: bool, device: str) -> None:
    along = torch.cummax if largest else torch.cummin
    for dtype in (*FLOATS, *INTEGERS):
        x = integers(9, 3, 4, 5, 40, low=-9, dtype=dtype)  # with ties
        for axis in range(4):
            got = run(lambda t, a=axis: g.cumulate_arg(t, a, largest=largest), x, device=device)
            check(got, along(x, 3 - axis).indices, exact=True)
    x = normal(4, 1500)
    x[0, 7] = x[0, 9] = x[2, 0] = NAN
    for axis in (0, 1):
        got = run(lambda t, a=axis: g.cumulate_arg(t, a, largest=largest), x, device=device)
        check(got, along(x, 1 - axis).indices, exact=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("right", [True, False])
def test_search_in_sorted_rows(right: bool, device: str) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        rows = integers(40, 2, 3, 70, low=-40, dtype=dtype).sort(-1).values
        values = integers(60, 2, 3, 90, low=-60, dtype=dtype)
        got = run(lambda a, b: g.search_sorted(a, b, right=right), rows, values, device=device)
        check(got, torch.searchsorted(rows, values, right=right)[None], exact=True)
        one = rows[0, 0].contiguous()
        got = run(lambda a, b: g.search_sorted(a, b, right=right), one, values, device=device)
        check(got, torch.bucketize(values, one, right=right)[None], exact=True)
    rows = torch.tensor([-math.inf, -1.0, 0.0, 0.0, 2.0, math.inf, NAN])
    values = torch.tensor([-math.inf, -2.0, -0.0, 0.0, 1.0, math.inf, NAN])
    got = run(lambda a, b: g.search_sorted(a, b, right=right), rows, values, device=device)
    check(got.reshape(-1), torch.searchsorted(rows, values, right=right), exact=True)
    empty = run(lambda a, b: g.search_sorted(a, b), torch.zeros(0), values, device=device)
    assert not empty.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_distances(p: float, device: str) -> None:
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        a, b = normal(2, 1, 5, 67, dtype=dtype), normal(1, 3, 6, 67, dtype=dtype)
        a[0, 0, 1] = b[0, 2, 4]
        got = run(lambda x, y: g.cdist(x, y, p=p), a, b, device=device)
        want = torch.cdist(a.double(), b.double(), p=p).to(dtype)
        check(got, want, tolerance, tolerance)
    long = normal(2, 3000)
    got = run(lambda x: g.cdist(x, x, p=p), long, device=device)
    want = torch.cdist(
        long.double(), long.double(), p=p, compute_mode="donot_use_mm_for_euclid_dist"
    )
    check(got.reshape(2, 2), want.float(), 2e-5, 2e-5)


def test_what_has_no_result_is_refused() -> None:
    x = g.input("x", [3, 4])
    with pytest.raises(GraphError, match=r"CUMULATE_ARG: an axis is 0\.\.3"):
        g.cumulate_arg(x, 4)
    with pytest.raises(GraphError, match=r"SEARCH_SORTED: needs one row.*\(3, 4\).*\(2, 4\)"):
        g.search_sorted(x, g.input("v", [2, 4]))
    with pytest.raises(GraphError, match="SEARCH_SORTED: rows and values must have one type"):
        g.search_sorted(x, g.input("v", [3, 4], "i32"))
    with pytest.raises(GraphError, match="CDIST: rows of a and b must have one length"):
        g.cdist(x, g.input("v", [3, 5]))
    with pytest.raises(GraphError, match=r"CDIST: p = -1\.0 must not be negative"):
        g.cdist(x, x, p=-1.0)
    with pytest.raises(GraphError, match=r"CDIST: dimensions 2 and 3 .* do not broadcast"):
        g.cdist(g.input("a", [2, 3, 4]), g.input("b", [3, 3, 4]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [20, 300])
def test_the_first_of_equal_elements_are_the_largest(n: int, device: str) -> None:
    x = integers(3, 5, n, low=0, dtype=torch.float32)
    got = run(lambda t: g.top_k(t, n // 2), x, device=device)
    want = x.sort(dim=-1, descending=True, stable=True).indices[:, : n // 2]
    assert torch.equal(got.reshape(want.shape).long().sort(-1).values, want.sort(-1).values)
