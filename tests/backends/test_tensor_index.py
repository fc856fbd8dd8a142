"""GATHER, SCATTER, INDEX, INDEX_PUT and PAD_ND say what PyTorch says."""

from typing import Any

import pytest
from tensor_run import DEVICES, check, integers, normal, run, torch

import weft.graph as g
from weft.errors import GraphError, WeftError

TYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16,
    torch.int32, torch.int64,
)  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_gather(device: str) -> None:
    for dtype in TYPES:
        x = normal(4, 5, 6, 7, dtype=dtype, scale=9)
        for axis in range(4):
            shape = [3, 4, 5, 6]
            shape[3 - axis] = 11
            at = integers(x.shape[3 - axis], *shape, dtype=torch.int32 if axis == 1 else None)
            got = run(lambda t, i, a=axis: g.gather(t, i, a), x, at, device=device)
            check(got, x.gather(3 - axis, at.long()), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_gather_of_views_and_from_the_end(device: str) -> None:
    x, at = normal(7, 6, 5), integers(5, 4, 6, 7, low=-5)
    got = run(lambda t, i: g.gather(g.permute(t, 2, 1, 0, 3), i, 2), x, at, device=device)
    y = x.permute(2, 1, 0)
    check(got, y.gather(0, at % 5), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_scatter(device: str) -> None:
    for dtype in TYPES:
        x = normal(4, 5, 6, 7, dtype=dtype, scale=9)
        source = normal(6, 6, 6, 8, dtype=dtype, scale=9)
        for axis in range(4):
            shape = [3, 4, 5, 6]
            n = x.shape[3 - axis]
            shape[3 - axis] = n - 1
            # different places along the axis, so that the order does not matter
            at = torch.randperm(n, generator=torch.Generator().manual_seed(axis))[: n - 1]
            view = [1, 1, 1, 1]
            view[3 - axis] = n - 1
            at = at.reshape(view).expand(shape).contiguous()
            got = run(lambda t, i, s, a=axis: g.scatter(t, i, s, a), x, at, source, device=device)
            check(got, x.scatter(3 - axis, at, source), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_scatter_add_counts_twice_what_comes_twice(device: str) -> None:
    for dtype in (torch.float32, torch.int8, torch.int32, torch.int64):
        x = integers(9, 4, 5, 6, low=-9, dtype=dtype)
        for axis in range(3):
            shape = [4, 5, 6]
            shape[2 - axis] = 17
            at = integers(x.shape[2 - axis], *shape)
            source = integers(5, *shape, dtype=dtype)
            got = run(
                lambda t, i, s, a=axis: g.scatter(t, i, s, a, "add"), x, at, source, device=device
            )
            check(got, x.scatter_add(2 - axis, at, source), exact=True)


def places(x: Any, indices: list[Any]) -> tuple[Any, ...]:
    """Indices by dimension, innermost first, as PyTorch takes them."""
    full = [*indices, *[None] * (x.dim() - len(indices))]
    return tuple(slice(None) if i is None else i for i in full[::-1])


CASES: list[tuple[str, tuple[int, ...], list[tuple[int, ...] | None]]] = [
    ("rows", (9, 33), [None, (7,)]),
    ("rows of a matrix of indices", (9, 33), [None, (4, 5)]),
    ("columns", (9, 33), [(5,)]),
    ("middle axis", (3, 4, 5, 6), [None, (8,)]),
    ("outermost axis", (3, 4, 5, 6), [None, None, None, (8,)]),
    ("two neighbours", (5, 6, 7), [None, (8,), (8,)]),
    ("two that broadcast", (5, 6, 7), [(8,), (4, 1)]),
    ("apart", (5, 6, 7), [(8,), None, (8,)]),
    ("apart in four", (3, 4, 5, 6), [None, (8,), None, (8,)]),
    ("all", (3, 4, 5, 6), [(2, 8), (8,), (2, 1), (1, 1)]),
    ("three of four", (3, 4, 5, 6), [None, (9,), (9,), (9,)]),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("what", "shape", "sizes"), CASES, ids=[c[0] for c in CASES])
def test_index(what: str, shape: Any, sizes: Any, device: str) -> None:
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.int8):
        x = normal(*shape, dtype=dtype, scale=9)
        indices = [
            None if s is None else integers(shape[-1 - d], *s, low=-shape[-1 - d])
            for d, s in enumerate(sizes)
        ]
        indices = [t.int() if t is not None and d % 2 else t for d, t in enumerate(indices)]
        some = [t for t in indices if t is not None]

        def build(t: g.Tensor, *leaves: g.Tensor) -> g.Tensor:
            rest = iter(leaves)
            return g.index(t, [None if s is None else next(rest) for s in sizes])

        got = run(build, x, *some, device=device)
        longs = [None if t is None else t.long() for t in indices]
        check(got, x[places(x, longs)], exact=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("what", "shape", "sizes"), CASES, ids=[c[0] for c in CASES])
def test_index_put(what: str, shape: Any, sizes: Any, accumulate: bool, device: str) -> None:
    for dtype in (torch.float32, torch.int32, torch.int8):
        x = integers(9, *shape, dtype=dtype)
        indices = [
            None if s is None else integers(shape[-1 - d], *s, low=-shape[-1 - d])
            for d, s in enumerate(sizes)
        ]
        some = [t for t in indices if t is not None]
        where = places(x, indices)
        values = integers(9, *x[where].shape, low=-9, dtype=dtype)
        if not accumulate:
            # one value everywhere, so that the order does not matter
            values = values.flatten()[:1].reshape([1] * values.dim())

        def build(t: g.Tensor, v: g.Tensor, *leaves: g.Tensor) -> g.Tensor:
            rest = iter(leaves)
            at = [None if s is None else next(rest) for s in sizes]
            return g.index_put(t, at, v, accumulate=accumulate)

        got = run(build, x, values, *some, device=device)
        check(got, put(x, where, values, accumulate), exact=True)


def put(x: Any, where: Any, values: Any, accumulate: bool) -> Any:
    at = [None if isinstance(w, slice) else w for w in where]
    return torch.ops.aten.index_put(x, at, values, accumulate)


@pytest.mark.parametrize("device", DEVICES)
def test_an_index_outside_is_named(device: str) -> None:
    x = normal(5, 6)
    for bad in (6, -7, 2**40):
        at = torch.tensor([[0, 1, bad]])
        for build in (
            lambda t, i: g.gather(t, i, 0),
            lambda t, i: g.scatter(t, i, t, 0),
            lambda t, i: g.index(t, [i]),
            lambda t, i: g.index_put(t, [i], g.constant(torch.zeros(1, 1).numpy())),
        ):
            with pytest.raises(WeftError, match=rf"index {bad} is outside -6 \.\. 5"):
                run(build, x, at, device=device)


PADS = [
    ("constant", (2, 1, 0, 3), (0, 4, 1, 0)),
    ("constant", (-2, 1, 0, -1), (3, -4, 0, 0)),
    ("reflect", (3, 2, 0, 0), (1, 4, 0, 0)),
    ("reflect", (-1, 2, 1, 0), (3, -2, 1, 0)),
    ("replicate", (3, 7, 2, 0), (9, 0, 1, 0)),
    ("replicate", (-2, 7, 2, 0), (9, -1, 1, 0)),
    ("circular", (7, 2, 0, 0), (1, 6, 0, 0)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mode", "left", "right"), PADS)
def test_pad(mode: str, left: tuple[int, ...], right: tuple[int, ...], device: str) -> None:
    for dtype in TYPES:
        x = normal(2, 3, 6, 7, dtype=dtype, scale=9)
        got = run(lambda t: g.pad_nd(t, left, right, mode, -3.0), x, device=device)
        pads = [n for pair in zip(left, right, strict=True) for n in pair]
        if mode == "constant":
            check(got, torch.nn.functional.pad(x, pads, value=-3.0), exact=True)
            continue
        # torch pads the innermost three dimensions of five, floats only
        wide = x[None].double()
        dims = 2 if pads[4:] == [0] * 4 else 3
        wide = x.double() if dims == 2 else wide
        want = torch.nn.functional.pad(wide, pads[: 2 * dims], mode=mode).to(dtype)
        check(got, want.reshape(want.shape[-4:]), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_pad_with_infinity_and_of_views(device: str) -> None:
    x = normal(4, 5)
    got = run(
        lambda t: g.pad_nd(g.transpose(t), (1, 0), (0, 2), value=float("-inf")), x, device=device
    )
    check(got, torch.nn.functional.pad(x.T, (1, 0, 0, 2), value=float("-inf")), exact=True)


def test_shapes_are_checked() -> None:
    x = g.input("x", [4, 5, 6, 7])
    at = g.input("i", [9, 9], "i64")
    with pytest.raises(GraphError, match="too large in dimension 1"):
        g.gather(x, g.input("j", [4, 5, 9, 7], "i64"), 0)
    with pytest.raises(GraphError, match="more than 4 dimensions"):
        g.index(x, [at])
    with pytest.raises(GraphError, match="at least one index"):
        g.index(x, [None, None])
    with pytest.raises(GraphError, match="must be i32 or i64"):
        g.index(x, [x])
    with pytest.raises(GraphError, match="do not broadcast"):
        g.index_put(g.input("y", [5, 6]), [None, g.input("k", [3], "i64")], g.input("v", [2, 6]))
    with pytest.raises(GraphError, match="needs 8 elements"):
        g.pad_nd(x, (7,), (0,), "reflect")
    with pytest.raises(GraphError, match="taken away"):
        g.pad_nd(x, (-5,), (-5,))
