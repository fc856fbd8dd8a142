"""State-space and linear-attention recurrences.

Sizes are ggml's `ne`, innermost first. The results hold the outputs of all tokens, then the new
states; `weft.graph.view` takes them apart. Every source but `ids` is f32. Sources of other types
and sizes, or with gaps in their rows, raise GraphError.
"""

from __future__ import annotations

from enum import IntEnum

from weft.dtype import DTYPES
from weft.graph.costs import state_updates
from weft.graph.node import f32, fail, fixed, make_node, member, multiple, require, require_type
from weft.graph.op import MultiplyAdds, declares
from weft.graph.params import Params
from weft.graph.size import Size, exact_div, is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass

F32 = DTYPES["f32"]


@dataclass(frozen=True, slots=True)
class SsmScanParams(Params):
    """The number of state snapshots in the result, newest first."""

    k: int = 1


@dataclass(frozen=True, slots=True)
class LinearAttnParams(Params):
    """The scale of GATED_LINEAR_ATTN."""

    scale: float


@dataclass(frozen=True, slots=True)
class DeltaNetParams(Params):
    """The number of state snapshots in the result, newest first."""

    k: int = 1


class RnnCell(IntEnum):
    """The unit of RNN, with the gates whose rows follow each other, in PyTorch's order."""

    LSTM = 0
    """Input, forget, cell and output."""
    GRU = 1
    """Reset, update and new."""
    TANH = 2
    RELU = 3
    """A NaN stays a NaN."""

    @property
    def gates(self) -> int:
        """The number of gates."""
        return {RnnCell.LSTM: 4, RnnCell.GRU: 3}.get(self, 1)


@dataclass(frozen=True, slots=True)
class RnnParams(Params):
    """The unit of RNN, and whether it walks from the last step to the first."""

    cell: RnnCell
    reverse: bool = False


@declares("SSM_CONV")
def ssm_conv(sx: Tensor, c: Tensor) -> Tensor:
    """Causal depthwise convolution of Mamba (arXiv 2312.00752); the window starts with the kept
    state.

    sx: f32 [d_conv - 1 + n_t, d_inner, n_seqs], c: f32 [d_conv, d_inner] -> [d_inner, n_t, n_seqs].
    Raises GraphError for other sizes. Equals ggml_ssm_conv."""
    op = "SSM_CONV"
    require_type(sx, ("f32",), op, "sx")
    require_type(c, ("f32",), op, "c")
    require(sx.ne[3] == 1, op, "sx must be [d_conv - 1 + n_t, d_inner, n_seqs]", sx)
    fits = c.ne[1] == sx.ne[1] and c.n_elements == c.ne[0] * c.ne[1]
    require(fits, op, "c must be [d_conv, d_inner]", sx, c)
    require(sx.is_contiguous_rows and c.is_contiguous_rows, op, "rows must be contiguous", sx, c)
    n_t = sx.ne[0] - c.ne[0] + 1
    require(is_at_most(0, n_t), op, "sx is shorter than the kept state", sx, c)
    return make_node(op, F32, (sx.ne[1], n_t, sx.ne[2]), sx, c)


@declares("SSM_SCAN", params=SsmScanParams, cost=state_updates)
def ssm_scan(
    s: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, ids: Tensor, *, k: int = 1
) -> Tensor:
    """The selective scan of Mamba 1 and 2 (arXiv 2312.00752, 2405.21060).

    s: f32 [d_state, head_dim, n_head, n_slots], x: [head_dim, n_head, n_t, n_seqs], dt: [n_head,
    n_t, n_seqs], a: [d_state or 1, n_head], b, c: [d_state, n_group, n_t, n_seqs], ids: i32
    [n_seqs] (the slot of `s` that each sequence starts from) -> f32 [elements of x + k d_state
    head_dim n_head n_seqs]: y, then k states a sequence, newest first. Raises GraphError for other
    sizes and k below 1. Equals ggml_ssm_scan."""
    op = "SSM_SCAN"
    for role, t in (("s", s), ("x", x), ("dt", dt), ("a", a), ("b", b), ("c", c)):
        require_type(t, ("f32",), op, role)
    require_type(ids, ("i32",), op, "ids")
    d_state, head_dim, n_head, _ = s.ne
    n_t, n_seqs = x.ne[2], x.ne[3]
    require(x.ne[0] == head_dim and x.ne[1] == n_head, op, "x does not fit the states", x, s)
    require(dt.ne == (n_head, n_t, n_seqs, 1), op, "dt must be [n_head, n_t, n_seqs]", dt, x)
    fits = a.ne[0] in (1, d_state) and a.ne[1] == n_head and a.n_elements == a.ne[0] * a.ne[1]
    require(fits, op, "a must be [d_state or 1, n_head]", a, s)
    require(a.ne[0] == 1 or head_dim == 1, op, "a per state needs head_dim 1", a, s)
    fits = b.ne[0] == d_state and b.ne[2] == n_t and b.ne[3] == n_seqs and multiple(n_head, b.ne[1])
    require(fits, op, "b must be [d_state, a divisor of n_head, n_t, n_seqs]", b, x, s)
    require(b.ne == c.ne, op, "b and c must have one shape", b, c)
    require(ids.n_rows == 1 and ids.ne[0] == n_seqs, op, "ids must be [n_seqs]", ids, x)
    require(s.is_contiguous, op, "s must be contiguous", s)
    for role, t in (("x", x), ("dt", dt), ("a", a), ("b", b), ("c", c)):
        require(t.is_contiguous_rows, op, f"rows of {role} must be contiguous", t)
    if k < 1:
        raise fail(op, f"k = {k} snapshots: needs 1 or more", s)
    size = x.n_elements + k * (d_state * head_dim * n_head * n_seqs)
    return make_node(op, F32, (size,), s, x, dt, a, b, c, ids, params=SsmScanParams(k))


def _wkv(op: str, state: Tensor, first: Tensor, *others: tuple[str, Tensor]) -> tuple[Size, ...]:
    """Checks sources [head, n_head, n_tokens] of one shape and returns the sizes of the result."""
    head, n_head, n_tokens, _ = first.ne
    n_seqs = state.ne[1]
    require(first.ne[3] == 1, op, "sources must be [head, n_head, n_tokens]", first)
    for role, t in others:
        require(t.ne == first.ne, op, f"{role} must have the shape of the other sources", t, first)
    for t in (first, *(t for _, t in others)):
        require_type(t, ("f32",), op, "every source")
        require(t.is_contiguous, op, "sources must be contiguous; use cont()", t)
    require_type(state, ("f32",), op, "state")
    require(state.is_contiguous, op, "state must be contiguous", state)
    fits = state.n_elements == head * head * n_head * n_seqs
    require(fits, op, "state must be [head * head * n_head, n_seqs]", state, first)
    shared = multiple(n_tokens, n_seqs)
    require(shared, op, "n_tokens must be a multiple of n_seqs", first, state)
    return (head * n_head, n_tokens + head * n_seqs)


@declares("RWKV_WKV6", cost=state_updates)
def rwkv_wkv6(k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor) -> Tensor:
    """The recurrence of RWKV 6 (arXiv 2404.05892).

    k, v, r, td: f32 [head, n_head, n_tokens], tf: [head, n_head], state: [head head n_head, n_seqs]
    -> f32 [head n_head, n_tokens + head n_seqs]. Raises GraphError for other sizes. Equals
    ggml_rwkv_wkv6."""
    op = "RWKV_WKV6"
    ne = _wkv(op, state, k, ("v", v), ("r", r), ("td", td))
    require_type(tf, ("f32",), op, "tf")
    require(tf.ne == (k.ne[0], k.ne[1], 1, 1), op, "tf must be [head, n_head]", tf, k)
    require(tf.is_contiguous, op, "tf must be contiguous", tf)
    return make_node(op, F32, ne, k, v, r, tf, td, state)


@declares("RWKV_WKV7", cost=state_updates)
def rwkv_wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> Tensor:
    """The recurrence of RWKV 7 (arXiv 2503.14456).

    r, w, k, v, a, b: f32 [head, n_head, n_tokens], state: [head head n_head, n_seqs] -> f32 [head
    n_head, n_tokens + head n_seqs]. Raises GraphError for other sizes. Equals ggml_rwkv_wkv7."""
    op = "RWKV_WKV7"
    ne = _wkv(op, state, k, ("r", r), ("w", w), ("v", v), ("a", a), ("b", b))
    return make_node(op, F32, ne, r, w, k, v, a, b, state)


@declares("GATED_LINEAR_ATTN", params=LinearAttnParams, cost=state_updates)
def gated_linear_attn(
    k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, *, scale: float
) -> Tensor:
    """Gated linear attention (arXiv 2312.06635): state = g * state + k v; y = scale q state.

    k, v, q, g: f32 [head, n_head, n_tokens], state: [head head n_head, n_seqs] -> f32 [head n_head,
    n_tokens + head n_seqs]. Raises GraphError for other sizes. Equals ggml_gated_linear_attn."""
    op = "GATED_LINEAR_ATTN"
    ne = _wkv(op, state, k, ("v", v), ("q", q), ("g", g))
    return make_node(op, F32, ne, k, v, q, g, state, params=LinearAttnParams(f32(scale)))


@declares("GATED_DELTA_NET", params=DeltaNetParams, cost=state_updates)
def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, n_states: int = 1
) -> Tensor:
    """The gated delta rule (arXiv 2412.06464) of Qwen3-Next and Kimi Linear.

    q, k: f32 [s, h_k, n_tokens, n_seqs], v: [s, h, n_tokens, n_seqs], h_k | h, g: [1 or s, h,
    n_tokens, n_seqs], beta: [1, h, n_tokens, n_seqs], state: [s, s, h, n_seqs] -> f32 [s h,
    n_tokens n_seqs + n_states s n_seqs]: outputs, then `n_states` states a sequence, newest first.
    Raises GraphError for other sizes and n_states below 1. Equals ggml_gated_delta_net."""
    op = "GATED_DELTA_NET"
    for role, t in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta), ("state", state)):
        require_type(t, ("f32",), op, role)
        require(t.is_contiguous_rows, op, f"rows of {role} must be contiguous; use cont()", t)
    s, h, n_tokens, n_seqs = v.ne
    require(q.ne == k.ne, op, "q and k must have one shape", q, k)
    fits = (
        q.ne[0] == s and q.ne[2] == n_tokens and multiple(h, q.ne[1]) and multiple(n_seqs, q.ne[3])
    )
    require(fits, op, "q and k must be [s, a divisor of h, n_tokens, n_seqs]", q, v)
    fits = g.ne[0] in (1, s) and g.ne[1:] == v.ne[1:]
    require(fits, op, "g must be [1 or s, h, n_tokens, n_seqs]", g, v)
    require(beta.ne == (1, *v.ne[1:]), op, "beta must be [1, h, n_tokens, n_seqs]", beta, v)
    fits = state.is_contiguous and exact_div(state.n_elements, s * s * h) == n_seqs
    require(fits, op, "state must be contiguous [s, s, h, n_seqs]", state, v)
    if n_states < 1:
        raise fail(op, f"n_states = {n_states} must be 1 or more", state)
    ne = (s * h, n_tokens * n_seqs + n_states * s * n_seqs)
    params = DeltaNetParams(n_states)
    return make_node(op, F32, ne, q, k, v, g, beta, state, params=params)


@declares(
    "RNN",
    params=RnnParams,
    cost=MultiplyAdds(lambda n, s, p: s[1].elements * s[0][0]),
)
def rnn(
    w: Tensor,
    x: Tensor,
    h: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    proj: Tensor | None = None,
    *,
    cell: RnnCell | str,
    reverse: bool = False,
) -> Tensor:
    """A recurrent layer over all steps: LSTM, GRU, or a plain one with tanh or relu.

    Each step adds the product of `w` with the state `h`, and `bias`, to its row of `x`, the product
    of the input with its own weights and bias; gates make the next state of it (the equations of
    PyTorch's LSTM, GRU and RNN). x: [gates units, n_seqs, n_t], w: [width, units or more, gates]
    (rows behind `units` are not read), h: [width, n_seqs], bias: [gates units]; of an LSTM alone c:
    [units, n_seqs], and proj: [units, width], which makes a state of `width` numbers of the units;
    without it the width is the number of units. -> f32 [width n_seqs n_t (+ units n_seqs)]: the
    states of all steps, each at its place in `x`, then the last `c` of an LSTM. `reverse` walks
    from the last step to the first. Raises GraphError for other sizes and types."""
    op = "RNN"
    kind = member(RnnCell, cell, op)
    gates, is_lstm = kind.gates, kind is RnnCell.LSTM
    for role, t in (("w", w), ("x", x), ("h", h), ("c", c), ("bias", bias), ("proj", proj)):
        if t is None:
            continue
        require_type(t, ("f32",), op, role)
        packed = t.is_contiguous_rows if t is x else t.is_contiguous
        require(packed, op, f"{role} must be contiguous; use cont()", t)
    _, n_seqs, n_t, outer = x.ne
    rows, width = fixed(x.ne[0], op, "the length of a row of x"), w.ne[0]
    units = rows // gates
    require(rows == units * gates and outer == 1, op, "x must be [gates units, n_seqs, n_t]", x)
    fits = w.ne[2:] == (gates, 1) and is_at_most(units, w.ne[1])
    require(fits, op, "w must be [width, units or more, gates]", w, x)
    require(h.ne == (width, n_seqs, 1, 1), op, "h must be [width, n_seqs]", h, w, x)
    if bias is not None:
        require(bias.ne == (rows, 1, 1, 1), op, "bias must be [gates units]", bias, x)
    if (c is None) is is_lstm or (proj is not None and not is_lstm):
        raise fail(op, "c is needed for an LSTM, and c and proj are for an LSTM alone", x)
    if c is not None:
        require(c.ne == (units, n_seqs, 1, 1), op, "c must be [units, n_seqs]", c, x)
    if proj is None:
        require(width == units, op, "without proj the width is the number of units", w, x)
    else:
        require(proj.ne == (units, width, 1, 1), op, "proj must be [units, width]", proj, w, x)
    size = width * n_seqs * n_t + (units * n_seqs if is_lstm else 0)
    return make_node(op, F32, (size,), w, x, h, c, bias, proj, params=RnnParams(kind, reverse))


@declares("LINEAR_SCAN", cost=2.0)
def linear_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """A linear recurrence along dimension 1: y[i] = a[i] y[i - 1] + b[i], where y[-1] is `h`.

    a, b: f32 [n, n_t, n2, n3], h: [n, 1, n2, n3] -> f32 [n, n_t, n2, n3]. Raises GraphError for
    other sizes and types, and for rows with gaps. PyTorch has it as an associative_scan."""
    op = "LINEAR_SCAN"
    for role, t in (("a", a), ("b", b), ("h", h)):
        require_type(t, ("f32",), op, role)
        require(t.is_contiguous_rows, op, f"rows of {role} must be contiguous; use cont()", t)
    require(a.ne == b.ne, op, "a and b must have one shape", a, b)
    fits = h.ne == (a.ne[0], 1, *a.ne[2:])
    require(fits, op, "h must have the shape of a, with a dimension 1 of one element", h, a)
    return make_node(op, F32, a.ne, a, b, h)
