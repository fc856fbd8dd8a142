"""The parts of recurrent layers: a causal convolution, a selective scan and the gated delta rule.
Each reads a state from one slot of the layer's table and writes the new state to another."""

from __future__ import annotations

import math

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, RecurrentConfig
from weft.llm.models.step import Step

__all__ = ["beside", "convolve", "delta_rule", "recurs", "require_recurrent", "scan", "unit"]

_EPS = 1e-6
_SIZE = 4  # bytes of a float32


def recurs(c: ModelConfig, il: int) -> bool:
    """True if layer `il` is recurrent; a layer that drafts never is."""
    return c.recurrent is not None and c.recurrent.layers[il]


def require_recurrent(c: ModelConfig) -> RecurrentConfig:
    """The sizes of recurrent layers, which `configure` has set."""
    assert c.recurrent is not None
    return c.recurrent


def convolve(step: Step, il: int, x: Tensor, kernel: Tensor) -> Tensor:
    """Convolves each channel of x [n_channels, n_tokens] with its kernel [d_conv, n_channels]. The
    state has the inputs before the first token."""
    r, n, n_seqs = require_recurrent(step.config), step.n_seq_tokens, step.n_seqs
    assert step.slots is not None and step.cache.states is not None
    kept, table = r.d_conv - 1, step.cache.states.conv[il]
    before = G.reshape(G.get_rows(table, step.slots[0]), kept, r.n_channels, n_seqs)
    across = G.cont(G.transpose(G.reshape(x, r.n_channels, n, n_seqs)))
    inputs = G.concat(before, across, 0)  # [kept + n, n_channels, n_seqs]
    nb = inputs.nb
    last = G.view_3d(inputs, kept, r.n_channels, n_seqs, nb[1], nb[2], n * _SIZE)
    last = G.reshape(G.cont(last), r.conv_size, n_seqs)
    step.writes.append(G.set_rows(table, last, step.slots[1]))
    y = G.ssm_conv(inputs, kernel)
    return G.reshape(y, r.n_channels, x.ne[1])


def scan(step: Step, il: int, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Computes Mamba's selective scan over x [d_inner, n_tokens], with time steps dt [n_head,
    n_tokens] and b, c [d_state, n_group, n_tokens]; returns [d_inner, n_tokens]."""
    r, n, n_seqs, n_tokens = require_recurrent(step.config), step.n_seq_tokens, step.n_seqs, x.ne[1]
    assert step.slots is not None and step.cache.states is not None
    table = step.cache.states.state[il]
    states = G.reshape(table, r.d_state, r.head_dim, r.n_head, table.ne[1])
    heads = G.reshape(x, r.head_dim, r.n_head, n, n_seqs)
    dt = G.reshape(dt, r.n_head, n, n_seqs)
    b, c = (G.reshape(t, r.d_state, r.n_group, n, n_seqs) for t in (b, c))
    both = G.ssm_scan(states, heads, dt, a, b, c, step.slots[0])
    at = r.d_inner * n_tokens * _SIZE
    state = G.view_2d(both, r.state_size, n_seqs, r.state_size * _SIZE, at)
    step.writes.append(G.set_rows(table, state, step.slots[1]))
    return G.view_2d(both, r.d_inner, n_tokens, r.d_inner * _SIZE, 0)


def unit(x: Tensor) -> Tensor:
    """The columns of x [d, ...], divided by their length."""
    d = x.ne[0]
    assert isinstance(d, int)
    return G.scale(G.rms_norm(x, _EPS / d), 1.0 / math.sqrt(d))


def delta_rule(
    step: Step, il: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> Tensor:
    """Updates the states of a gated delta net and reads them, for q, k, v [d, heads, n_tokens], g
    [1 or d, n_head, n_tokens] and beta [n_head, n_tokens]; returns [d, n_head, n_tokens]."""
    r, n, n_seqs = require_recurrent(step.config), step.n_seq_tokens, step.n_seqs
    assert step.slots is not None and step.cache.states is not None
    d, n_tokens, table = r.head_dim, v.ne[2], step.cache.states.state[il]
    state = G.reshape(G.get_rows(table, step.slots[0]), d, d, r.n_head, n_seqs)
    q, k, v, g = (G.reshape(t, t.ne[0], t.ne[1], n, n_seqs) for t in (q, k, v, g))
    both = G.gated_delta_net(q, k, v, g, G.reshape(beta, 1, r.n_head, n, n_seqs), state)
    at = r.d_inner * n_tokens * _SIZE
    last = G.view_2d(both, r.state_size, n_seqs, r.state_size * _SIZE, at)
    step.writes.append(G.set_rows(table, last, step.slots[1]))
    y = G.view_2d(both, r.d_inner, n_tokens, r.d_inner * _SIZE, 0)
    return G.reshape(y, d, r.n_head, n_tokens)


def beside(x: Tensor, n: int) -> Tensor:
    """Each head of x [d, n_head, n_tokens], `n` times beside itself."""
    d, n_head, n_tokens, _ = x.ne
    if n == 1:
        return x
    assert isinstance(d, int) and isinstance(n_head, int)
    wide = G.repeat(G.reshape(x, d, 1, n_head, n_tokens), (d, n, n_head, n_tokens))
    return G.reshape(wide, d, n * n_head, n_tokens)
