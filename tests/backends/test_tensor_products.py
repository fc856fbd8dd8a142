"""MUL_MAT_INT multiplies whole numbers as PyTorch does, and wraps around where they overflow."""

import pytest
from tensor_run import check, integers, run, torch

import weft.graph as g
from tests.targets import BUT_PRODUCTS
from weft.backends import make_backend
from weft.errors import GraphError

DEVICES = ["reference", "cpu"]
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def product(w, x, dtype=None):
    """What PyTorch says: computed in int64, then made narrower."""
    return (x.long() @ w.long().mT).to(dtype or w.dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products_of_whole_numbers(dtype, device: str) -> None:
    limits = torch.iinfo(dtype)
    for high in (9, limits.max):  # the latter overflow
        w = integers(high, 2, 1, 5, 67, low=-high, dtype=dtype)
        x = integers(high, 1, 3, 7, 67, low=-high, dtype=dtype)
        check(run(g.mul_mat_int, w, x, device=device), product(w, x), exact=True)
        rows = run(g.mul_mat_int, w[0, 0], x, device=device)
        check(rows, product(w[0, 0], x), exact=True)
    w[..., 0] = x[..., 0] = limits.min
    check(run(g.mul_mat_int, w, x, device=device), product(w, x), exact=True)


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize(
    ("k", "m", "n"), [(1, 1, 1), (63, 5, 3), (300, 37, 101), (768, 70, 7), (128, 70, 270)]
)
def test_products_of_all_bytes(k: int, m: int, n: int, target: str) -> None:
    """The lowest byte, which has no counterpart, is among both sources."""
    w, x = (integers(128, 2, rows, k, low=-128, dtype=torch.int8) for rows in (m, n))
    w[0, 0], x[0, 0], w[1, -1], x[1, -1] = -128, -128, 127, -128
    cpu = make_backend("cpu", n_threads=2, target=target)
    got = run(lambda a, b: g.mul_mat_int(a, b, "i32"), w, x, device=cpu)
    check(got, product(w, x, torch.int32), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_wider_results_and_views(device: str) -> None:
    w, x = torch.full((3, 2000), -128, dtype=torch.int8), integers(128, 4, 2000, dtype=torch.int8)
    for dtype in (torch.int16, torch.int32, torch.int64):
        name = str(dtype).replace("torch.int", "i")
        got = run(lambda a, b, to=name: g.mul_mat_int(a, b, to), w, x, device=device)
        check(got, product(w, x, dtype), exact=True)
    w, x = integers(99, 40, 3, low=-99), integers(99, 40, 5, low=-99)
    got = run(lambda a, b: g.mul_mat_int(a.T, b.T), w, x, device=device)
    check(got, product(w.T, x.T), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_add_up_is_nought(device: str) -> None:
    w, x = torch.zeros(3, 0, dtype=torch.int32), torch.zeros(2, 0, dtype=torch.int32)
    check(run(g.mul_mat_int, w, x, device=device), torch.zeros(2, 3, dtype=torch.int32), exact=True)


def test_what_has_no_result_is_refused() -> None:
    x = g.input("x", [3, 4], "i16")
    with pytest.raises(GraphError, match="MUL_MAT_INT: w and x must have one type"):
        g.mul_mat_int(x, g.input("v", [3, 4], "i32"))
    with pytest.raises(GraphError, match=r"MUL_MAT_INT: w must be .* i64 \(v f32"):
        g.mul_mat_int(g.input("v", [3, 4]), x)
    with pytest.raises(GraphError, match="MUL_MAT_INT: the result must be i16 or wider, got i8"):
        g.mul_mat_int(x, x, "i8")
    with pytest.raises(GraphError, match="MUL_MAT_INT: rows of x and w must have one length"):
        g.mul_mat_int(x, g.input("v", [3, 5], "i16"))
    with pytest.raises(GraphError, match="MUL_MAT_INT: dimensions 2 and 3 of x and w do not"):
        g.mul_mat_int(g.input("a", [2, 3, 4], "i16"), g.input("b", [3, 3, 4], "i16"))
