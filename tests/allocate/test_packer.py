"""The native packer, held to the slow obvious one below."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from weft.allocate.lifetime import Item
from weft.allocate.pack import ORDERS, Packing, Problem, pack
from weft.native import _native


def slow_pack(problem: Problem, order: list[int], start: Packing | None, first: int) -> Packing:
    """Each item of `order[first:]` at the lowest free offset, in the chunk that grows least."""
    n, sizes = len(order), problem.sizes
    assert problem.neighbours is not None
    limit = 2**63 - 1 if problem.limit is None else problem.limit
    offsets = [-1] * n if start is None else list(start.offsets)
    chunk_of = [0] * n if start is None else list(start.chunk_of)
    chunks: list[int] = []
    limits: list[int] = []
    for i in order[:first]:
        while len(chunks) <= chunk_of[i]:
            chunks.append(0)
            limits.append(limit)
        top = offsets[i] + sizes[i]
        chunks[chunk_of[i]] = max(chunks[chunk_of[i]], top)
        limits[chunk_of[i]] = max(limits[chunk_of[i]], top)
    placed = set(order[:first])
    for i in order[first:]:
        found: list[tuple[int, int, int]] = []  # growth, chunk, offset
        for c, size in enumerate(chunks):
            beside = [j for j in problem.neighbours[i] if j in placed and chunk_of[j] == c]
            free = 0
            for low, high in sorted((offsets[j], offsets[j] + sizes[j]) for j in beside):
                if low - free >= sizes[i]:
                    break
                free = max(free, high)
            if free + sizes[i] <= limits[c]:
                found.append((max(0, free + sizes[i] - size), c, free))
        if not found:
            found.append((0, len(chunks), 0))
            chunks.append(0)
            limits.append(max(limit, sizes[i]))
        _, chunk_of[i], offsets[i] = min(found)
        chunks[chunk_of[i]] = max(chunks[chunk_of[i]], offsets[i] + sizes[i])
        placed.add(i)
    return Packing(offsets, chunk_of, chunks, limits, [], 0)


@settings(max_examples=examples(3))
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 64)), max_size=40),
    st.sampled_from([None, 1, 40, 200]),
    st.sampled_from(sorted(ORDERS)),
    st.integers(0, 300),
    st.randoms(use_true_random=False),
)
def test_it_is_the_slow_one(
    rows: list[tuple[int, int, int]], limit: int | None, name: str, bound: int, random: object
) -> None:
    problem = Problem([Item(0, a, a + length, size) for a, length, size in rows], limit)
    order = problem.order(name)
    packing: Packing | None = None
    for _ in range(3):
        first = random.randrange(len(order) + 1) if packing else 0  # type: ignore[attr-defined]
        want = slow_pack(problem, order, packing, first)
        packing = pack(problem, order, bound, packing, first)
        assert packing.offsets == want.offsets and packing.chunk_of == want.chunk_of
        assert packing.chunks == want.chunks and packing.limits == want.limits
        tops = [offset + size for offset, size in zip(want.offsets, problem.sizes, strict=True)]
        assert packing.above == [i for i, top in enumerate(tops) if top > bound]
        assert packing.excess == sum(max(0, top - bound) for top in tops)
        tail = order[first:]
        random.shuffle(tail)  # type: ignore[attr-defined]
        order = order[:first] + tail


def test_what_is_no_item_is_refused() -> None:
    with pytest.raises(ValueError, match="a neighbour is no item"):
        _native.Packer([8, 8], [[1], [2]], 100)
    with pytest.raises(ValueError, match="a neighbour is no item"):
        _native.Packer([8, 8], [[1]], 100)
    packer = _native.Packer([8, 8], [[1], [0]], 100)
    for order in ([0], [0, 0], [0, 2], [-1, 0], [0, 1, 1]):
        with pytest.raises(ValueError, match="an order has each item once"):
            packer.pack(order, 0, 0, [], [])
    with pytest.raises(ValueError, match="an order has each item once"):
        packer.pack([0, 1], 3, 0, [], [])
