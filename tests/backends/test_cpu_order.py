"""Nodes side by side: branches share stages, and nothing that clashes changes places."""

from __future__ import annotations

import numpy as np

import weft
from weft import graph as g
from weft.backends.cpu.order import side_by_side


def _value(name: str) -> weft.Tensor:
    return weft.input(name, (4, 32))


def test_branches_stand_side_by_side() -> None:
    x = _value("x")
    q1 = g.scale(x, 2.0)
    q2 = g.scale(q1, 2.0)
    k1 = g.scale(x, 3.0)
    k2 = g.scale(k1, 3.0)
    assert side_by_side([q1, q2, k1, k2]) == [q1, k1, q2, k2]


def test_a_view_follows_its_source() -> None:
    x = _value("x")
    a = g.scale(x, 2.0)
    b = g.scale(a, 2.0)
    flat = g.reshape(b, 128)
    c = g.scale(flat, 2.0)
    other = g.scale(x, 3.0)
    ordered = side_by_side([a, b, flat, c, other])
    assert ordered.index(b) < ordered.index(flat) < ordered.index(c)
    assert ordered.index(other) == 1


def test_readers_and_writers_of_a_cache_keep_their_order() -> None:
    x = _value("x")
    data = np.zeros((4, 64), np.float32)
    cache = weft.constant(data, "cache")
    part = weft.constant(data[:2], "part")
    before = g.scale(cache, 2.0)
    late = x
    for _ in range(3):
        late = g.scale(late, 2.0)
    write = g.cpy(g.reshape(late, 2, 64), part)
    after = g.scale(cache, 3.0)
    again = g.cpy(g.reshape(g.scale(x, 5.0), 2, 64), part)
    in_order = (before, write, after, again)
    graph = weft.Graph(*(t.as_output(f"out{i}") for i, t in enumerate(in_order)))
    ordered = side_by_side(graph.nodes)
    places = [ordered.index(t) for t in in_order]
    assert places == sorted(places)


def test_a_node_moves_up_only_so_far() -> None:
    """A tensor that is used at the end of a long graph is not computed at its beginning."""
    x = _value("x")
    chain = [x]
    for _ in range(40):
        chain.append(g.scale(chain[-1], 2.0))
    late = g.scale(x, 3.0)
    ordered = side_by_side([*chain[1:], late])
    assert 25 < ordered.index(late) < 40
