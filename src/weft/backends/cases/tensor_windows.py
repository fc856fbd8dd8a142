"""Convolution, pooling and interpolation of plain tensors, as PyTorch programs use them."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as g
from weft.backends.cases.case import Case, Sources, bound
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
            yield Case(
                "CONV_ND",
                f"{name} {t}",
                bound(_convolution, t, *options),
                1e-6 if t != "bf16" else 1e-4,
            )
    for kind in PoolKind:
        for t in FLOATS:
            for name, kernel_size in (("2d", (3, 2)), ("1d", (4,)), ("3d", (2, 3, 2))):
                yield Case(
                    "POOL_ND",
                    f"{kind.name} {name} {t}",
                    bound(
                        lambda s, t, k, n: g.pool_nd(
                            k, s.normal(19, 15, 4, 3, dtype=t), n, 2, 1, ceil_mode=True
                        ),
                        t,
                        kind,
                        kernel_size,
                    ),
                    LIMITS[t] if kind is PoolKind.AVG else 0,
                )
            yield Case(
                "POOL_ND",
                f"{kind.name} channels first {t}",
                bound(
                    lambda s, t, k: g.pool_nd(
                        k, s.normal(75, 15, 6, 2, dtype=t), (1, 3, 2), (1, 2, 1), (0, 1, 1)
                    ),
                    t,
                    kind,
                ),
                LIMITS[t] if kind is PoolKind.AVG else 0,
            )
            yield Case(
                "POOL_ND",
                f"{kind.name} adaptive, channels first {t}",
                bound(
                    lambda s, t, k: g.adaptive_pool_nd(k, s.normal(75, 15, 6, dtype=t), [75, 5, 4]),
                    t,
                    kind,
                ),
                LIMITS[t] if kind is PoolKind.AVG else 0,
            )
            yield Case(
                "POOL_ND",
                f"{kind.name} adaptive {t}",
                bound(
                    lambda s, t, k: g.adaptive_pool_nd(k, s.normal(19, 15, 4, dtype=t), [5, 4]),
                    t,
                    kind,
                ),
                LIMITS[t] if kind is PoolKind.AVG else 0,
            )
    for mode in InterpolateMode:
        for t in FLOATS:
            if mode is not InterpolateMode.CUBIC:
                yield Case(
                    "INTERPOLATE",
                    f"{mode.name} channels first {t}",
                    bound(
                        lambda s, t, m: g.interpolate(
                            m, s.normal(37, 9, 7, 2, dtype=t), [37, 18, 5]
                        ),
                        t,
                        mode,
                    ),
                    10 * LIMITS[t],
                )
            yield Case(
                "INTERPOLATE",
                f"{mode.name} {t}",
                bound(
                    lambda s, t, m: g.interpolate(m, s.normal(19, 15, 4, dtype=t), [33, 11]),
                    t,
                    mode,
                ),
                10 * LIMITS[t],
            )


def _convolution(
    s: Sources,
    t: str,
    dims: int,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    groups: int,
    stride: int,
    padding: int,
    dilation: int,
    transposed: bool,
) -> Tensor:
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
