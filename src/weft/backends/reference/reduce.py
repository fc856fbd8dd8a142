"""Reductions, sorting, generators and masks. Sums are taken in float64."""

from __future__ import annotations

import numpy as np

from weft.backends.reference.kernel import Call, f32, kernel
from weft.graph import ops as g


@kernel("SUM")
def sum_all(call: Call) -> None:
    """The sum of every element."""
    call.dst.write(call.f64(0).sum(keepdims=True))


@kernel("SUM_ROWS")
def sum_rows(call: Call) -> None:
    """The sum of each row."""
    call.dst.write(call.f64(0).sum(-1, keepdims=True))


@kernel("MEAN")
def mean(call: Call) -> None:
    """The mean of each row."""
    call.dst.write(call.f64(0).mean(-1, keepdims=True))


@kernel("CUMSUM")
def cumsum(call: Call) -> None:
    """Running sums along each row."""
    call.dst.write(call.f64(0).cumsum(-1))


@kernel("ARGMAX")
def argmax(call: Call) -> None:
    """The index of each row's largest element, the last one of equals; a NaN is never the
    largest."""
    a = call.read(0)
    reversed_rows = np.where(np.isnan(a), -np.inf, a)[..., ::-1]
    index = a.shape[-1] - 1 - reversed_rows.argmax(-1)
    call.dst.write(index.reshape(call.dst.shape))


@kernel("COUNT_EQUAL")
def count_equal(call: Call) -> None:
    """The number of elements that agree in src0 and src1."""
    call.dst.write(np.full(call.dst.shape, np.count_nonzero(call.read(0) == call.read(1))))


@kernel("ARGSORT")
def argsort(call: Call) -> None:
    """The order of each row; equal elements keep their order."""
    p: g.ArgsortParams = call.params
    a = call.read(0)
    call.dst.write(np.argsort(a if p.order is g.SortOrder.ASC else -a, axis=-1, kind="stable"))


@kernel("TOP_K")
def top_k(call: Call) -> None:
    """The indices of each row's k largest elements, largest first (ggml leaves the order open)."""
    p: g.TopKParams = call.params
    call.dst.write(np.argsort(-call.read(0), axis=-1, kind="stable")[..., : p.k])


@kernel("ARANGE")
def arange(call: Call) -> None:
    """The numbers start, start + step and so on."""
    p: g.ArangeParams = call.params
    call.dst.write(f32(p.start) + f32(p.step) * np.arange(call.dst.ne[0]))


@kernel("TIMESTEP_EMBEDDING")
def timestep_embedding(call: Call) -> None:
    """Sinusoidal embedding of each timestep: cosines, sines, and a zero when `dim` is odd."""
    p: g.TimestepParams = call.params
    half = p.dim // 2
    freqs = np.exp(-np.log(p.max_period) * np.arange(half) / half)
    angle = call.f64(0).reshape(-1, 1) * freqs
    out = np.zeros((angle.shape[0], call.dst.ne[0]))
    out[:, :half], out[:, half : 2 * half] = np.cos(angle), np.sin(angle)
    call.dst.write(out)


@kernel("TRI")
def tri(call: Call) -> None:
    """One triangle of each matrix; zeros elsewhere."""
    p: g.TriParams = call.params
    row, column = np.ogrid[: call.dst.ne[1], : call.dst.ne[0]]
    keep = {
        g.TriKind.UPPER_DIAG: column >= row,
        g.TriKind.UPPER: column > row,
        g.TriKind.LOWER_DIAG: column <= row,
        g.TriKind.LOWER: column < row,
    }[p.kind]
    call.dst.write(np.where(keep, call.read(0), 0))


@kernel("DIAG")
def diag(call: Call) -> None:
    """Each row of src0 as the diagonal of a matrix."""
    call.dst.write(np.where(np.eye(call.dst.ne[0], dtype=bool), call.read(0), 0))


@kernel("DIAG_MASK_INF")
def diag_mask_inf(call: Call) -> None:
    """-inf right of the diagonal n_past, as causal masks need it."""
    call.dst.write(np.where(_visible(call), call.read(0), -np.inf))


@kernel("DIAG_MASK_ZERO")
def diag_mask_zero(call: Call) -> None:
    """Zeros right of the diagonal n_past."""
    call.dst.write(np.where(_visible(call), call.read(0), 0))


def _visible(call: Call) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    p: g.DiagMaskParams = call.params
    row, column = np.ogrid[: call.dst.ne[1], : call.dst.ne[0]]
    visible: np.ndarray[tuple[int, int], np.dtype[np.bool_]] = column <= p.n_past + row
    return visible


@kernel("CROSS_ENTROPY_LOSS")
def cross_entropy_loss(call: Call) -> None:
    """-mean over rows of sum(labels * log_softmax(logits))."""
    logits, labels = call.f64(0), call.f64(1)
    shifted = logits - logits.max(-1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    n_rows = logits.size // logits.shape[-1]
    call.dst.write(np.full(call.dst.shape, -(labels * log_softmax).sum() / n_rows))
