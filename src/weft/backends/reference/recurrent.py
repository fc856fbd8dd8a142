"""State-space models and linear attention: a state updated along the tokens of each sequence.

Results hold the outputs of all tokens, then the states, so that a model can store them. With K
snapshots, the state after the last token comes first, then the one before it, and so on; snapshots
before the first token are zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, check_index, f32, kernel
from weft.graph.ops import DeltaNetParams, LinearAttnParams, RnnCell, RnnParams, SsmScanParams

F64 = NDArray[np.float64]


def _write(call: Call, outputs: F64, states: F64) -> None:
    """Writes outputs, then states, in memory order."""
    both = np.concatenate([outputs.reshape(-1), states.reshape(-1)])
    call.dst.write(both.reshape(call.dst.shape))


@kernel("SSM_CONV")
def ssm_conv(call: Call) -> None:
    """Mamba's convolution: src0 `[seq, inner, taps - 1 + token]` with a kernel `[inner, taps]`.

    dst `[seq, token, inner]`."""
    x, c = call.f64(0)[0], call.f64(1)[0, 0]
    windows = np.lib.stride_tricks.sliding_window_view(x, c.shape[-1], axis=-1)
    call.dst.write(np.einsum("sitk,ik->sti", windows, c)[None])


@kernel("SSM_SCAN")
def ssm_scan(call: Call) -> None:
    """Mamba's selective scan, per head h of group g, with D = softplus(dt):

        state = state * exp(D * A) + B * x * D;   y = sum over the state dimension of state * C

    s `[slot, head, dim, state]`, x `[seq, token, head, dim]`, dt `[seq, token, head]`, A `[head,
    state]` (Mamba-2: `[head, 1]`), B and C `[seq, token, group, state]`, ids `[seq]`: the slot of s
    that each sequence starts from. Groups serve consecutive heads."""
    p: SsmScanParams = call.params
    x, dt, a = call.f64(1), call.f64(2)[0], call.f64(3)[0, 0]
    ids = call.read(6).reshape(-1)
    slots = call.f64(0)
    check_index(ids, slots.shape[0], "state slot")
    n_tokens, n_head = x.shape[1:3]
    state = slots[ids]
    b, c = (np.repeat(v, n_head // v.shape[2], axis=2) for v in (call.f64(4), call.f64(5)))
    delta = np.where(dt > 20, dt, np.log1p(np.exp(np.minimum(dt, 20))))
    y = np.empty(x.shape)
    snapshots = np.zeros((p.k, *state.shape))
    for t in range(n_tokens):
        step = delta[:, t, :, None, None]
        decay = np.exp(step * a[None, :, None, :])
        state = state * decay + b[:, t, :, None] * (x[:, t, ..., None] * step)
        y[:, t] = (state * c[:, t, :, None]).sum(-1)
        _keep(snapshots, state, n_tokens - 1 - t)
    if n_tokens == 0:
        _keep(snapshots, state, 0)
    _write(call, y, snapshots)


def _keep(snapshots: F64, state: F64, age: int) -> None:
    """Stores the state of `age` tokens before the last, if that many are kept."""
    if age < snapshots.shape[0]:
        snapshots[age] = state


def _by_sequence(x: F64, n_seq: int) -> F64:
    """`[1, all tokens, head, dim]` -> `[seq, token, head, dim]`."""
    return x.reshape(n_seq, -1, *x.shape[2:])


def _start(call: Call, i: int, n_head: int, size: int) -> F64:
    """The states of source `i`, `[seq, head, size, size]`."""
    return call.f64(i).reshape(-1, n_head, size, size)


@kernel("RWKV_WKV6")
def rwkv_wkv6(call: Call) -> None:
    """RWKV-6 (arXiv 2404.05892), state `[key, value]` per head:

    y = sum over keys of r * (tf * k v^T + state);   state = td * state + k v^T"""
    n_head, size = call.view(0).shape[2:]
    state = _start(call, 5, n_head, size)
    k, v, r, td = (_by_sequence(call.f64(i), len(state)) for i in (0, 1, 2, 4))
    first = call.f64(3).reshape(n_head, size, 1)
    y = np.empty(k.shape)
    for t in range(k.shape[1]):
        kv = k[:, t, :, :, None] * v[:, t, :, None, :]
        y[:, t] = np.einsum("shi,shij->shj", r[:, t], first * kv + state)
        state = state * td[:, t, :, :, None] + kv
    _write(call, y, state)


@kernel("RWKV_WKV7")
def rwkv_wkv7(call: Call) -> None:
    """RWKV-7 (arXiv 2503.14456), state `[value, key]` per head:

    state = state * w + v k^T + (state a) b^T;   y = state r"""
    n_head, size = call.view(0).shape[2:]
    state = _start(call, 6, n_head, size)
    r, w, k, v, a, b = (_by_sequence(call.f64(i), len(state)) for i in range(6))
    y = np.empty(k.shape)
    for t in range(k.shape[1]):
        removed = np.einsum("shij,shj->shi", state, a[:, t])
        state = (
            state * w[:, t, :, None, :]
            + v[:, t, :, :, None] * k[:, t, :, None, :]
            + removed[..., None] * b[:, t, :, None, :]
        )
        y[:, t] = np.einsum("shij,shj->shi", state, r[:, t])
    _write(call, y, state)


@kernel("GATED_LINEAR_ATTN")
def gated_linear_attn(call: Call) -> None:
    """Gated linear attention (arXiv 2312.06635), state `[key, value]` per head:

    state = g * state + k v^T;   y = scale * q state"""
    p: LinearAttnParams = call.params
    n_head, size = call.view(0).shape[2:]
    state = _start(call, 4, n_head, size)
    k, v, q, g = (_by_sequence(call.f64(i), len(state)) for i in range(4))
    y = np.empty(k.shape)
    for t in range(k.shape[1]):
        state = state * g[:, t, :, :, None] + k[:, t, :, :, None] * v[:, t, :, None, :]
        y[:, t] = np.einsum("shi,shij->shj", q[:, t], state) * f32(p.scale)
    _write(call, y, state)


@kernel("GATED_DELTA_NET")
def gated_delta_net(call: Call) -> None:
    """Gated delta rule (arXiv 2412.06464), state `[value, key]` per head:

        state = state * exp(g);  state += beta * (v - state k) k^T;  y = state q / sqrt(size)

    q, k `[seq, token, key head, size]`, v and g `[seq, token, head, size]` (g may have one number a
    head). Value head h reads key head h modulo their number."""
    p: DeltaNetParams = call.params
    v = call.f64(2)
    n_seq, n_tokens, n_head, size = v.shape
    heads = np.arange(n_head)
    q, k = (_serve(call.f64(i), n_seq, heads) for i in (0, 1))
    g, beta = call.f64(3), call.f64(4)
    state = _start(call, 5, n_head, size)[:n_seq]
    y = np.empty(v.shape)
    snapshots = np.zeros((p.k, *state.shape))
    for t in range(n_tokens):
        state = state * np.exp(g[:, t, :, None, :])
        error = v[:, t] - np.einsum("shij,shj->shi", state, k[:, t])
        state = state + (beta[:, t] * error)[..., None] * k[:, t, :, None, :]
        y[:, t] = np.einsum("shij,shj->shi", state, q[:, t]) / np.sqrt(size)
        _keep(snapshots, state, n_tokens - 1 - t)
    if n_tokens == 0:
        _keep(snapshots, state, 0)
    _write(call, y, snapshots)


def _serve(x: F64, n_seq: int, heads: NDArray[np.intp]) -> F64:
    """Queries or keys for every value head and sequence; fewer of them are shared in rotation."""
    x = x[:, :, heads % x.shape[2]]
    return np.repeat(x, n_seq // x.shape[0], axis=0)


@kernel("RNN")
def rnn(call: Call) -> None:
    """A recurrent layer: w `[gate, unit, width]`, x `[step, seq, gate * unit]`, h `[seq, width]`.

    With s = h w^T + bias for each gate, s and x in PyTorch's order of gates, per step:

        LSTM: c = sigmoid(x_f + s_f) c + sigmoid(x_i + s_i) tanh(x_g + s_g)
              h = sigmoid(x_o + s_o) tanh(c), times proj where there is one
        GRU:  n = tanh(x_n + sigmoid(x_r + s_r) s_n);  h = n + sigmoid(x_z + s_z) (h - n)
        else: h = tanh or relu of x + s"""
    p: RnnParams = call.params
    w, x, h = call.f64(0)[0], call.f64(1)[0], call.f64(2)[0, 0]
    gates = w.shape[0]
    units = x.shape[-1] // gates
    has = [call.optional(i) is not None for i in range(6)]
    c = call.f64(3)[0, 0] if has[3] else None
    bias = call.f64(4).reshape(gates, units) if has[4] else np.zeros((gates, units))
    y = np.empty((x.shape[0], *h.shape))
    steps = range(len(x))
    for t in reversed(steps) if p.reverse else steps:
        into = x[t].reshape(-1, gates, units).swapaxes(0, 1)
        s = np.einsum("guk,nk->gnu", w[:, :units], h) + bias[:, None]
        if p.cell is RnnCell.LSTM:
            assert c is not None
            i, f, g, o = into + s
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
            h = h @ call.f64(5)[0, 0].T if has[5] else h
        elif p.cell is RnnCell.GRU:
            new = np.tanh(into[2] + _sigmoid(into[0] + s[0]) * s[2])
            h = new + _sigmoid(into[1] + s[1]) * (h - new)
        else:
            z = into[0] + s[0]
            h = np.tanh(z) if p.cell is RnnCell.TANH else np.maximum(z, 0)
        y[t] = h
    _write(call, y, np.empty(0) if c is None else c)


@kernel("LINEAR_SCAN")
def linear_scan(call: Call) -> None:
    """y[i] = a[i] y[i - 1] + b[i] along the last dimension but one, from y[-1] = h."""
    a, b, y = call.f64(0), call.f64(1), call.f64(2)[:, :, 0]
    out = np.empty(a.shape)
    for i in range(a.shape[2]):
        y = a[:, :, i] * y + b[:, :, i]
        out[:, :, i] = y
    call.dst.write(out)


def _sigmoid(x: F64) -> F64:
    return 0.5 * np.tanh(0.5 * x) + 0.5
