"""Matrix products: weights decoded exactly, activations unchanged, sums in float64.

ggml's own kernels first round the activations to the weights' companion type (such as q8_0 or f16).
Where a program does that as a step of its own (QUANTIZE), the blocks are decoded here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.elementwise import activated
from weft.backends.reference.kernel import Call, check_index, kernel
from weft.graph.ops import ActivationParams, CdistParams, SolveTriParams

F64 = NDArray[np.float64]


def product(a: F64, b: F64) -> F64:
    """`b @ a.T` per batch, a `[n3, n2, m, k]`, b `[N3, N2, n, k]` -> `[N3, N2, n, m]`.

    N2 and N3 are multiples of n2 and n3: consecutive batches of b share one of a (grouped-query
    attention)."""
    (n3, n2, m, k), (big3, big2, n, _) = a.shape, b.shape
    grouped = b.reshape(n3, big3 // max(n3, 1), n2, big2 // max(n2, 1), n, k)
    out: F64 = grouped @ a[:, None, :, None].swapaxes(-1, -2)
    return out.reshape(big3, big2, n, m)


@kernel("MUL_MAT")
def mul_mat(call: Call) -> None:
    """dst[n, m] = sum over k of src1[n, k] * src0[m, k], plus the row src2[m] if there is one.

    The function that the record names is applied to the result."""
    out, bias = product(call.f64(0), call.f64(1)), call.optional(2)
    if bias is not None:
        out = out + bias.f64()
    p: ActivationParams | None = call.params
    call.dst.write(out if p is None else activated(out, p.op, p.low, p.high))


@kernel("MUL_MAT_ID")
def mul_mat_id(call: Call) -> None:
    """Mixture of experts: dst[token, slot] = src0[ids[token, slot]] @ src1[token, slot].

    src0 `[expert, m, k]`; src1 `[token, slot, k]`, or one slot that all share; only the experts
    named in `ids` are decoded."""
    experts, b = call.view(0), call.f64(1)[0]
    ids = call.read(2)[0, 0]
    check_index(ids, experts.ne[2], "expert")
    whole = experts.read()[0] if experts.dtype.name == "i2_s" else None
    out = np.zeros(call.dst.shape[1:])
    for expert in np.unique(ids):
        weights = whole[expert] if whole is not None else experts.decode(experts.units[0, expert])
        token, slot = np.nonzero(ids == expert)
        out[token, slot] = b[token, slot % b.shape[1]] @ weights.astype(np.float64).T
    call.dst.write(out[None])


@kernel("OUT_PROD")
def out_prod(call: Call) -> None:
    """dst[n, m] = sum over k of src1[k, n] * src0[k, m]."""
    call.dst.write(product(call.f64(0).swapaxes(-1, -2), call.f64(1).swapaxes(-1, -2)))


@kernel("SOLVE_TRI")
def solve_tri(call: Call) -> None:
    """X with A X = B, A lower triangular `[n, n]`, B `[n, k]`, by forward substitution."""
    p: SolveTriParams = call.params
    if not (p.left and p.lower) or p.uni:
        raise ValueError("only left, lower, non-unit systems are defined")
    a, x = call.f64(0), call.f64(1)
    for row in range(a.shape[-1]):
        solved = a[..., row : row + 1, :row] @ x[..., :row, :]
        x[..., row, :] = (x[..., row, :] - solved[..., 0, :]) / a[..., row, row, None]
    call.dst.write(x)


@kernel("CDIST")
def cdist(call: Call) -> None:
    """The p-norm of the difference of each row of src0 from each row of src1."""
    p: CdistParams = call.params
    d = np.abs(call.f64(0)[..., :, None, :] - call.f64(1)[..., None, :, :])
    if p.p == 0:
        out = np.count_nonzero(d, axis=-1).astype(np.float64)
    elif p.p == np.inf:
        out = d.max(axis=-1, initial=0.0)
    else:
        out = (d**p.p).sum(axis=-1) ** (1 / p.p)
    call.dst.write(out)


@kernel("MUL_MAT_INT")
def mul_mat_int(call: Call) -> None:
    """dst[n, m] = sum over k of src1[n, k] * src0[m, k], of whole numbers that wrap around."""
    w, x = (call.read(i).astype(np.int64) for i in range(2))
    call.dst.write(x @ w.swapaxes(-1, -2))
