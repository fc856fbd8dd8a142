"""Convolution of data with channels innermost, in sizes that reach every edge of its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from weft import graph as g
from weft.backends.cases.case import Case, Sources, bound
from weft.graph.ops import Activation
from weft.graph.tensor import Tensor

_CASES = (
    # name, x [c, w, h, n], channels out (0: depthwise), kernel, stride, padding, dilation, parts:
    # b bias, r residual, c clamp, f another function, s scale, p more padding behind,
    # v views with gaps
    ("3x3", (20, 17, 15, 2), 19, (3, 3), 1, 1, 1, "b"),
    ("3x3 of 3 channels", (3, 23, 18, 1), 32, (3, 3), 2, 1, 1, "bc"),
    ("7x7 stride 2", (3, 31, 30, 1), 64, (7, 7), 2, 3, 1, "b"),
    ("1x1", (24, 13, 11, 2), 40, (1, 1), 1, 0, 1, "br"),
    ("1x1 stride 2", (33, 14, 15, 1), 70, (1, 1), 2, 0, 1, ""),
    ("1x1 one pixel", (150, 1, 1, 3), 131, (1, 1), 1, 0, 1, "bc"),
    ("7x7 map", (96, 7, 7, 1), 160, (3, 3), 1, 1, 1, "brc"),
    ("3x3 squares", (36, 13, 12, 2), 52, (3, 3), 1, 1, 1, "brc"),
    ("3x3 squares of few channels", (32, 16, 13, 1), 32, (3, 3), 1, 1, 1, "brf"),
    ("3x3 squares in three vectors", (33, 12, 14, 1), 96, (3, 3), 1, 1, 1, "p"),
    ("3x3 squares of views", (37, 14, 15, 1), 64, (3, 3), 1, (2, 0), 1, "brv"),
    ("scaled", (40, 13, 9, 3), 70, (1, 1), 1, 0, 1, "brfs"),
    ("scaled stride 2", (300, 7, 6, 2), 33, (1, 1), 2, 0, 1, "sv"),
    ("more zeros behind", (5, 14, 12, 2), 21, (3, 3), 2, 0, 1, "bcp"),
    ("no zeros but behind", (3, 22, 19, 1), 16, (3, 3), 2, 0, 1, "p"),
    ("function", (24, 11, 10, 1), 35, (3, 3), 2, 1, 1, "bf"),
    ("deep", (700, 5, 4, 1), 37, (1, 1), 1, 0, 1, "r"),
    ("dilated", (9, 19, 16, 1), 17, (3, 2), (1, 2), (3, 1), (2, 3), "bv"),
    ("one channel out", (5, 9, 8, 2), 1, (3, 3), 1, 1, 1, "brv"),
    ("one channel", (1, 12, 9, 1), 1, (3, 3), 1, 1, 1, "b"),
    ("wide padding", (6, 4, 3, 1), 12, (3, 3), 2, 4, 1, "bcv"),
    ("views", (21, 10, 9, 2), 33, (1, 1), 1, 0, 1, "brcv"),
    ("depthwise 3x3", (37, 15, 14, 2), 0, (3, 3), 1, 1, 1, "bc"),
    ("depthwise 3x3 stride 2", (32, 17, 15, 1), 0, (3, 3), 2, 1, 1, "br"),
    ("depthwise 3x3 map", (96, 7, 7, 1), 0, (3, 3), 1, 1, 1, "brc"),
    ("depthwise of many channels", (150, 4, 3, 1), 0, (3, 3), 1, 1, 1, "bc"),
    ("depthwise 5x5", (19, 12, 14, 1), 0, (5, 5), 2, 2, 1, "bv"),
    ("depthwise 5x5 stride 2", (33, 15, 14, 1), 0, (5, 5), 2, 1, 1, "bfp"),
    ("depthwise 7x7", (35, 17, 9, 2), 0, (7, 7), 1, 3, 1, "b"),
    ("depthwise dilated", (40, 11, 13, 1), 0, (3, 2), (1, 3), (2, 0), (2, 1), "rv"),
    ("depthwise wide padding", (7, 2, 1, 2), 0, (3, 3), 1, 3, 1, ""),
)


def conv_last_cases() -> Iterator[Case]:
    """The cases of this file."""
    for name, *options in _CASES:
        yield Case("CONV_2D_LAST", name, bound(_convolution, options), 1e-10)


def _convolution(s: Sources, options: Any) -> Tensor:
    ne, out, kernel, stride, padding, dilation, parts = options
    groups = 1 if out else ne[0]
    out = out or ne[0]
    steps = {"stride": stride, "padding": padding, "dilation": dilation}
    x = _of(s, ne, "v" in parts)
    weight = s.normal(out, ne[0] // groups, *kernel, scale=0.3)
    bias = s.normal(out) if "b" in parts else None
    low, high = (-0.3, 0.8) if "c" in parts else (-inf, inf)
    scale = s.normal(ne[0], 1, 1, ne[3]) if "s" in parts else None
    function = Activation.HARDSWISH if "f" in parts else Activation.CLAMP
    if "p" in parts:
        steps["padding_after"] = padding + 1

    def build(residual: Tensor | None) -> Tensor:
        return g.conv_2d_last(
            x, weight, bias, residual, scale, groups=groups, **steps, function=function, low=low,
            high=high,
        )  # fmt: skip

    if "r" not in parts:
        return build(None)
    sizes = tuple(n for n in build(None).ne if isinstance(n, int))
    return build(_of(s, sizes, "v" in parts))


def _of(s: Sources, ne: tuple[int, ...], gaps: bool) -> Tensor:
    """Normal numbers of these sizes; with gaps, the middle of a larger tensor."""
    c, w, h, n = ne
    if not gaps:
        return s.normal(*ne)
    whole = s.normal(c + 3, w + 1, h + 2, n)
    nb = [4, (c + 3) * 4, (c + 3) * (w + 1) * 4, (c + 3) * (w + 1) * (h + 2) * 4]
    return g.view(whole, ne, nb, 2 * 4 + nb[1] + nb[2])
