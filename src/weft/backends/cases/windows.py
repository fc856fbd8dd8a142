"""Convolutions, pooling, windows."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as g
from weft.backends.cases.case import Case, Sources, bound
from weft.backends.cases.formats import FLOATS
from weft.graph.tensor import Tensor

# f16 kernels are read exactly, and sums of many taps are in float32
CONVOLUTION = 1e-6


def window_cases() -> Iterator[Case]:
    """The cases of this file."""
    for k in ("f32", "f16"):
        yield from _convolutions(k)
    for k, x, out in (
        *(("f32", "f32", "f32"), ("f16", "f32", "f16"), ("f16", "f16", "f16")),
        *(("f16", "f32", "f32"), ("f32", "f32", "f16")),
    ):
        yield Case("IM2COL", f"{k} {x} to {out}", bound(_im2col, k, x, out), 1e-6)
    for out in ("f32", "f16"):
        yield Case("IM2COL_3D", f"to {out}", bound(_im2col_3d, out), 1e-6)
    for t in FLOATS:
        build = bound(lambda s, t: g.col2im_1d(s.normal(20, 7, dtype=t), stride=2, oc=4), t)
        yield Case("COL2IM_1D", t, build, 1e-4)
    for t in ("f32", "f16"):
        for kind in ("max", "avg"):
            yield Case("POOL_1D", f"{kind} {t}", bound(_pool_1d, t, kind))
            yield Case("POOL_2D", f"{kind} {t}", bound(_pool_2d, t, kind))
    yield Case("WIN_PART", "", lambda s: g.win_part(s.normal(6, 9, 7), 5), 0)
    yield Case("WIN_UNPART", "", lambda s: g.win_unpart(s.normal(6, 5, 5, 4), 9, 7, 5), 0)
    yield Case("GET_REL_POS", "f16", lambda s: g.get_rel_pos(s.normal(8, 9, dtype="f16"), 5, 5), 0)


def _im2col(s: Sources, k: str, x: str, out: str) -> Tensor:
    kernel, data = s.normal(3, 3, 3, 4, dtype=k), s.normal(10, 9, 3, 2, dtype=x)
    return g.im2col(kernel, data, (1, 2), (1, 1), (1, 1), dtype=out)


def _im2col_3d(s: Sources, out: str) -> Tensor:
    kernel, data = s.normal(3, 2, 2, 6), s.normal(6, 7, 5, 6)
    return g.im2col_3d(kernel, data, 3, (1, 2, 1), (1, 0, 1), (1, 1, 1), dtype=out)


def _pool_1d(s: Sources, t: str, kind: str) -> Tensor:
    return g.pool_1d(s.normal(31, 5, dtype=t), kind, 3, 2, 1)


def _pool_2d(s: Sources, t: str, kind: str) -> Tensor:
    return g.pool_2d(s.normal(15, 9, 3, dtype=t), kind, 3, 2, 2, 1, 1, 0)


def _convolutions(k: str) -> Iterator[Case]:
    def kernel(s: Sources, *ne: int) -> Tensor:
        return s.normal(*ne, dtype=k)

    def plain(s: Sources) -> Tensor:
        return g.conv_2d(kernel(s, 3, 3, 20, 19), s.normal(17, 15, 20, 2), (2, 1), (1, 1))

    def depthwise(s: Sources) -> Tensor:
        return g.conv_2d_dw(kernel(s, 3, 3, 1, 9), s.normal(17, 14, 9), padding=(1, 1))

    def volume(s: Sources) -> Tensor:
        weight, data, steps = (
            kernel(s, 3, 2, 2, 12),
            s.normal(6, 7, 5, 6),
            ((1, 2, 1), (1, 0, 1), (1, 1, 1)),
        )
        return g.conv_3d(weight, data, *steps, n_channels=3, n_batch=2, n_channels_out=4)

    def transposed_1d(s: Sources) -> Tensor:
        return g.conv_transpose_1d(kernel(s, 4, 6, 20), s.normal(31, 20), 2)

    def transposed_2d(s: Sources) -> Tensor:
        return g.conv_transpose_2d(kernel(s, 3, 3, 6, 20), s.normal(9, 7, 20), 2)

    yield Case("CONV_2D", k, plain, CONVOLUTION)
    yield Case("CONV_2D_DW", k, depthwise, CONVOLUTION)
    yield Case("CONV_3D", k, volume, CONVOLUTION)
    yield Case("CONV_TRANSPOSE_1D", k, transposed_1d, CONVOLUTION)
    yield Case("CONV_TRANSPOSE_2D", k, transposed_2d, CONVOLUTION)
