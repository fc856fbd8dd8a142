"""Convolution, pooling and interpolation of plain tensors, as PyTorch programs use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft import graph as g
from weft.backends.cases.case import Build, Case, Sources, bound
from weft.backends.cases.formats import FLOATS
from weft.backends.cases.tensors import LIMITS
from weft.graph.ops import InterpolateMode, PoolKind
from weft.graph.tensor import Tensor

_CONVOLUTIONS = (
    # name, dims, x, kernel, groups, stride, padding, dilation, transposed
    ("1d", 1, (40, 8, 2), (3, 8, 7), 1, 2, 1, 1, False),
    ("2d", 2, (17, 15, 20, 2), (3, 3, 20, 19), 1, 1, 1, 1, False),
    ("2d stride 2", 2, (17, 15, 20, 2), (3, 3, 20, 19), 1, 2, 1, 1, False),
    ("2d 1x1", 2, (17, 15, 20, 2), (1, 1, 20, 32), 1, 1, 0, 1, False),
    ("2d dilated groups", 2, (17, 15, 20, 2), (3, 3, 5, 12), 4, 1, 2, 2, False),
    ("2d depthwise", 2, (37, 15, 20, 2), (3, 3, 1, 20), 20, 1, 1, 1, False),
    ("2d depthwise stride 2", 2, (37, 15, 20, 2), (5, 5, 1, 20), 20, 2, 2, 1, False),
    ("3d", 3, (9, 8, 7, 8), (3, 3, 3, 20), 1, 1, 1, 1, False),
    ("transposed 1d", 1, (20, 8, 2), (4, 7, 8), 1, 2, 1, 1, True),
    ("transposed 2d", 2, (9, 8, 8, 2), (3, 3, 7, 8), 1, 2, 1, 1, True),
    ("transposed 2d groups", 2, (9, 8, 8, 2), (3, 2, 3, 8), 4, 3, 1, 2, True),
)


def tensor_window_cases() -> Iterator[Case]:
    """The cases of this file."""
    for name, *options in _CONVOLUTIONS:
        for t in FLOATS:
            limit = 1e-6 if t != "bf16" else 1e-4
            yield Case("CONV_ND", f"{name} {t}", bound(_convolution, t, options), limit)
    for kind in PoolKind:
        for t in FLOATS:
            limit = LIMITS[t] if kind is PoolKind.AVG else 0
            for name, build in _pools(kind, t):
                yield Case("POOL_ND", f"{kind.name} {name} {t}", build, limit)
    for mode in InterpolateMode:
        for t in FLOATS:
            for name, build in _interpolations(mode, t):
                yield Case("INTERPOLATE", f"{mode.name} {name}{t}", build, 10 * LIMITS[t])


def _pools(kind: PoolKind, t: str) -> Iterator[tuple[str, Build]]:
    def x(s: Sources, *ne: int) -> Tensor:
        return s.normal(*ne, dtype=t)

    def whole(s: Sources, kernel: tuple[int, ...]) -> Tensor:
        return g.pool_nd(kind, x(s, 19, 15, 4, 3), kernel, 2, 1, ceil_mode=True)

    def channels_first(s: Sources) -> Tensor:
        return g.pool_nd(kind, x(s, 75, 15, 6, 2), (1, 3, 2), (1, 2, 1), (0, 1, 1))

    for name, kernel in (("2d", (3, 2)), ("1d", (4,)), ("3d", (2, 3, 2))):
        yield name, bound(whole, kernel)
    yield "channels first", channels_first
    yield (
        "adaptive, channels first",
        lambda s: g.adaptive_pool_nd(kind, x(s, 75, 15, 6), [75, 5, 4]),
    )
    yield "adaptive", lambda s: g.adaptive_pool_nd(kind, x(s, 19, 15, 4), [5, 4])


def _interpolations(mode: InterpolateMode, t: str) -> Iterator[tuple[str, Build]]:
    if mode is not InterpolateMode.CUBIC:
        x = 37, 9, 7, 2
        yield "channels first ", lambda s: g.interpolate(mode, s.normal(*x, dtype=t), [37, 18, 5])
    yield "", lambda s: g.interpolate(mode, s.normal(19, 15, 4, dtype=t), [33, 11])


def _convolution(s: Sources, t: str, options: Any) -> Tensor:
    dims, x, kernel, groups, stride, padding, dilation, transposed = options
    channels = 4 if dims == 3 else x[dims]
    out = kernel[3] // channels if dims == 3 else kernel[dims + 1]
    if transposed:
        out = kernel[dims] * groups
    return g.conv_nd(
        s.normal(*x, dtype=t),
        s.normal(*kernel, dtype=t, scale=0.3),
        s.normal(out, dtype=t),
        dims=dims,
        channels=channels,
        groups=groups,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
    )
