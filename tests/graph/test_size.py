"""Symbolic sizes: evaluating an expression equals doing its arithmetic on integers."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import GraphError
from weft.graph.size import (
    Expr,
    Size,
    Sym,
    ceil_div,
    evaluate,
    exact_div,
    is_at_most,
    lower,
    size_max,
    size_min,
    symbols,
    upper,
)

A, B, C = Sym("a", 1, 9), Sym("b", 2, 7), Sym("c", 0, 5)

# A tree of operations, run on symbolic sizes and on integers alike.
Tree = tuple[str, "Tree | int | Sym", "Tree | int | Sym"]


def trees() -> st.SearchStrategy[Tree | int | Sym]:
    leaves = st.integers(-6, 12) | st.sampled_from([A, B, C])
    ops = st.sampled_from(["+", "-", "*", "//", "%", "min", "max"])
    return st.recursive(leaves, lambda below: st.tuples(ops, below, below), max_leaves=8)


def run(tree: Tree | int | Sym, value: Callable[[Sym], Size]) -> Size:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, Sym):
        return value(tree)
    op, left, right = tree[0], run(tree[1], value), run(tree[2], value)
    if op in ("//", "%") and (not isinstance(right, int) or right <= 0):
        right = size_max(right, 1)  # divisors are sizes: 1 or more
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "//": lambda: left // right,
        "%": lambda: left % right,
        "min": lambda: size_min(left, right),
        "max": lambda: size_max(left, right),
    }[op]()


values = st.fixed_dictionaries(
    {s.name: st.integers(s.min, s.max) for s in (A, B, C)},
)


@given(trees(), values)
def test_evaluate_equals_integer_arithmetic(
    tree: Tree | int | Sym, numbers: dict[str, int]
) -> None:
    size = run(tree, lambda s: s.size)
    want = run(tree, lambda s: numbers[s.name])
    assert evaluate(size, numbers) == want
    assert lower(size) <= want <= upper(size)


@given(trees(), trees())
def test_equal_sizes_hash_equal_and_keep_their_text(
    left: Tree | int | Sym, right: Tree | int | Sym
) -> None:
    a, b = run(left, lambda s: s.size), run(right, lambda s: s.size)
    assert a + b == b + a
    assert hash(a + b) == hash(b + a)
    assert repr(a * b) == repr(b * a)
    assert (a + b) - b == a


@given(trees(), trees(), values)
def test_exact_div_is_right_when_it_answers(
    left: Tree | int | Sym, right: Tree | int | Sym, numbers: dict[str, int]
) -> None:
    a, b = run(left, lambda s: s.size), run(right, lambda s: s.size)
    quotient = exact_div(a, b)
    divisor = evaluate(b, numbers)
    if quotient is not None and divisor:
        assert evaluate(quotient, numbers) * divisor == evaluate(a, numbers)


@given(trees(), trees(), values)
def test_at_most_never_lies(
    left: Tree | int | Sym, right: Tree | int | Sym, numbers: dict[str, int]
) -> None:
    a, b = run(left, lambda s: s.size), run(right, lambda s: s.size)
    if is_at_most(a, b):
        assert evaluate(a, numbers) <= evaluate(b, numbers)


def test_products_of_sums_divide_back() -> None:
    a, b = A.size, B.size
    assert exact_div((a + 1) * (b + 2) * 4, a + 1) == (b + 2) * 4
    assert exact_div(a * a - 1, a + 1) == a - 1
    assert exact_div(512 * a + 512, 512) == a + 1
    assert exact_div(a, 2) is None
    assert exact_div(a, 0) is None
    assert exact_div(7, 0) is None


def test_floor_division_takes_out_whole_parts() -> None:
    a = A.size
    assert (4 * a + 3) // 4 == a
    assert (4 * a + 3) % 4 == 3
    assert ceil_div(4 * a, 4) == a
    assert (4 * a + 6) // 4 == a + 1
    assert isinstance(a // 2, Expr)


def every_value(size: Size) -> list[int]:
    """The values of a size over its whole domain."""
    ranges = [range(s.min, s.max + 1) for s in (A, B, C)]
    return [
        evaluate(size, dict(zip("abc", numbers, strict=True)))
        for numbers in itertools.product(*ranges)
    ]


@given(trees())
def test_bounds_hold_over_the_whole_domain(tree: Tree | int | Sym) -> None:
    size = run(tree, lambda s: s.size)
    seen = every_value(size)
    assert lower(size) <= min(seen)
    assert upper(size) >= max(seen)


corners = st.lists(st.tuples(*[st.integers(-4, 4)] * 4), min_size=1, max_size=4)


@given(corners)
def test_bounds_of_sums_of_different_products_are_exact(
    factors: list[tuple[int, int, int, int]],
) -> None:
    # linear in each symbol, so the extremes are at corners of the domain
    a, b, c = A.size, B.size, C.size
    size: Size = 0
    for k, x, y, z in factors:
        size = size + k * (a + x) * (b + y) * (c + z)
    assert (lower(size), upper(size)) == (min(every_value(size)), max(every_value(size)))


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=5))
def test_products_of_what_is_not_negative_are_not(
    factors: list[tuple[int, int, int, int]],
) -> None:
    size: Size = 1
    for x, y, z, k in factors:
        factor = x * (A.size - 1) + y * (B.size - 2) + z * (9 - A.size) + k
        size = size * factor
    assert lower(size) >= 0
    assert is_at_most(0, size * (size + 1))


def test_what_a_division_leaves_over_is_weighed_with_it() -> None:
    a, b = A.size, B.size
    assert is_at_most(2 * (a // 2), a)
    assert is_at_most(a, 2 * (a // 2) + 1)
    assert is_at_most((a // 3) * 3 * b, a * b)
    assert not is_at_most(a, 2 * (a // 2))


def test_minima_of_what_is_ordered_are_one_side() -> None:
    a, b = A.size, B.size
    assert size_min(a, a) == a
    assert size_max(a * b, a) == a * b
    assert size_min((a + 1) // 2, a) == (a + 1) // 2
    either = size_min(a, b)
    assert is_at_most(either * 2, a + b + size_max(a, b) + 20)
    assert isinstance(either, Expr)


def test_bounds_of_expressions_with_many_symbols_take_bounded_work() -> None:
    symbols = [Sym(f"s{i}", 1, 8) for i in range(24)]
    size: Size = 1
    for s in symbols[:8]:
        size = size * (s.size - 1)
    for s in symbols[8:]:
        size = size - s.size
    assert lower(size) <= -128
    assert upper(size) >= 7**8 - 16


def test_bounds_know_common_factors() -> None:
    a = A.size
    assert lower(a * a - a) == 0
    assert upper(a * B.size) == 63
    assert is_at_most(a, a * B.size)


def test_symbols_are_found_inside_compounds() -> None:
    assert symbols(size_min(A.size, B.size) * 2 + C.size // 3) == {A, B, C}
    assert symbols(5) == set()


def test_a_missing_value_names_the_symbol() -> None:
    with pytest.raises(GraphError, match="no value for symbol a"):
        evaluate(A.size + 1, {"b": 2})


@pytest.mark.parametrize("make", [lambda: Sym("2x", 0, 1), lambda: Sym("x", 3, 2)])
def test_bad_symbols_are_refused(make: Callable[[], Sym]) -> None:
    with pytest.raises(GraphError, match="symbol"):
        make()


def test_division_by_a_zero_value_is_an_error_not_a_crash() -> None:
    with pytest.raises(GraphError, match="divides by zero"):
        evaluate(A.size // C.size, {"a": 3, "c": 0})
    with pytest.raises(GraphError, match="divides by zero"):
        _ = A.size // 0


def test_divisions_behind_each_other_are_one() -> None:
    # sizes behind several strides, as PyTorch writes them
    a, b = A.size, B.size
    half = (a + 1) // 2
    assert (half + 1) // 2 == (a + 3) // 4
    assert ((half + b) // 3 - 2) // 5 == (a + 2 * b - 11) // 30
    assert ((a // 2) * 3 + 1) // 4 != (a * 3 + 2) // 8
