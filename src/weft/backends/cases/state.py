"""Recurrences and triangular systems."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft import graph as g
from weft.backends.cases.case import Case, Sources, bound
from weft.graph.tensor import Tensor

_N, _HEADS, _TOKENS, _SEQS = 64, 2, 4, 2
"""Head size, heads, tokens of a sequence, sequences."""


def state_cases() -> Iterator[Case]:
    """The cases of this file."""
    yield Case("SSM_CONV", "", lambda s: g.ssm_conv(s.normal(3 + 9, 33, 2), s.normal(4, 33)))
    yield Case("SSM_SCAN", "rate a head", lambda s: _scan(s, 16, 24, 4))
    yield Case("SSM_SCAN", "rate a state", lambda s: _scan(s, 16, 1, 24, rates=16))
    yield Case("RWKV_WKV6", "", _rwkv6)
    yield Case("RWKV_WKV7", "", _rwkv7)
    yield Case("GATED_LINEAR_ATTN", "", _linear)
    yield Case("GATED_DELTA_NET", "", lambda s: _delta(s, 1))
    yield Case("GATED_DELTA_NET", "gate a key", lambda s: _delta(s, 16))
    for cell in ("lstm", "gru", "tanh", "relu"):
        yield Case("RNN", cell, bound(_rnn, cell, 64, 3))
        yield Case("RNN", f"{cell} reverse", bound(_rnn, cell, 33, 1, True))
    yield Case("RNN", "lstm proj", bound(_rnn, "lstm", 64, 2, False, 40))
    yield Case("LINEAR_SCAN", "many lanes", lambda s: _linear_scan(s, 37, 2))
    yield Case("LINEAR_SCAN", "one lane", lambda s: _linear_scan(s, 1, 5))
    yield Case(
        "SOLVE_TRI", "", lambda s: g.solve_tri(_triangle(s, 20, 3), s.normal(7, 20, 3)), 1e-6
    )


def _scan(s: Sources, d_state: int, dim: int, heads: int, rates: int = 1) -> Tensor:
    return g.ssm_scan(
        s.normal(d_state, dim, heads, 3),
        s.normal(dim, heads, 5, 2),
        s.uniform(-4, 2, heads, 5, 2),
        s.uniform(-1.5, -0.01, rates, heads),
        s.normal(d_state, 1, 5, 2),
        s.normal(d_state, 1, 5, 2),
        s.distinct(3, 2),
    )


def _vectors(s: Sources, count: int) -> list[Tensor]:
    return [s.normal(_N, _HEADS, _TOKENS * _SEQS, scale=0.5) for _ in range(count)]


def _decay(s: Sources) -> Tensor:
    return s.uniform(0.3, 1, _N, _HEADS, _TOKENS * _SEQS)


def _state(s: Sources) -> Tensor:
    return s.normal(_N * _N * _HEADS, _SEQS)


def _rwkv6(s: Sources) -> Tensor:
    k, v, r = _vectors(s, 3)
    return g.rwkv_wkv6(k, v, r, s.normal(_N, _HEADS), _decay(s), _state(s))


def _rwkv7(s: Sources) -> Tensor:
    r, k, v, a, b = _vectors(s, 5)
    return g.rwkv_wkv7(r, _decay(s), k, v, a, b, _state(s))


def _linear(s: Sources) -> Tensor:
    k, v, q = _vectors(s, 3)
    return g.gated_linear_attn(k, v, q, _decay(s), _state(s), scale=0.125)


def _delta(s: Sources, gates: int) -> Tensor:
    n = 16

    def some(size: int, heads: int) -> Tensor:
        return s.normal(size, heads, _TOKENS, _SEQS, scale=0.3)

    return g.gated_delta_net(
        some(n, 2),
        some(n, 2),
        some(n, 4),
        s.uniform(-2, 0, gates, 4, _TOKENS, _SEQS),
        s.uniform(0, 1, 1, 4, _TOKENS, _SEQS),
        s.normal(n, n, 4, _SEQS),
    )


def _triangle(s: Sources, n: int, count: int) -> Tensor:
    """A well-conditioned matrix: ones and more on the diagonal, little beside it."""
    rng = np.random.default_rng(5)
    a = np.tril(rng.uniform(-0.3, 0.3, (count, n, n)), -1) + np.eye(n) * rng.uniform(1, 2, (n, n))
    return s.fixed(a)


def _rnn(
    s: Sources, cell: str, units: int, n_seqs: int, reverse: bool = False, width: int = 0
) -> Tensor:
    gates = g.RnnCell[cell.upper()].gates
    is_lstm = cell == "lstm"
    return g.rnn(
        s.normal(width or units, units, gates, scale=0.2),
        s.normal(gates * units, n_seqs, 5),
        s.normal(width or units, n_seqs),
        s.normal(units, n_seqs) if is_lstm else None,
        s.normal(gates * units),
        s.normal(units, width, scale=0.2) if width else None,
        cell=cell,
        reverse=reverse,
    )


def _linear_scan(s: Sources, n: int, outer: int) -> Tensor:
    rates = s.uniform(-1, 1, n, 9, outer)
    return g.linear_scan(rates, s.normal(n, 9, outer), s.normal(n, 1, outer))
