"""Convolutions, pooling, windows."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as g
from weft.backends.cases.case import Case, bound
from weft.backends.cases.formats import FLOATS

# f16 kernels are read exactly, and sums of many taps are in float32
CONVOLUTION = 1e-6


def window_cases() -> Iterator[Case]:
    """The cases of this file."""
    for k in ("f32", "f16"):
        yield from _convolutions(k)
    for k, x, out in (
        ("f32", "f32", "f32"),
        ("f16", "f32", "f16"),
        ("f16", "f16", "f16"),
        ("f16", "f32", "f32"),
        ("f32", "f32", "f16"),
    ):
        yield Case(
            "IM2COL",
            f"{k} {x} to {out}",
            bound(
                lambda s, k, x, out: g.im2col(
                    s.normal(3, 3, 3, 4, dtype=k),
                    s.normal(10, 9, 3, 2, dtype=x),
                    (1, 2),
                    (1, 1),
                    (1, 1),
                    dtype=out,
                ),
                k,
                x,
                out,
            ),
            1e-6,
        )
    for out in ("f32", "f16"):
        yield Case(
            "IM2COL_3D",
            f"to {out}",
            bound(
                lambda s, out: g.im2col_3d(
                    s.normal(3, 2, 2, 6),
                    s.normal(6, 7, 5, 6),
                    3,
                    (1, 2, 1),
                    (1, 0, 1),
                    (1, 1, 1),
                    dtype=out,
                ),
                out,
            ),
            1e-6,
        )
    for t in FLOATS:
        yield Case(
            "COL2IM_1D",
            t,
            bound(lambda s, t: g.col2im_1d(s.normal(20, 7, dtype=t), stride=2, oc=4), t),
            1e-4,
        )
    for t in ("f32", "f16"):
        for kind in ("max", "avg"):
            yield Case(
                "POOL_1D",
                f"{kind} {t}",
                bound(lambda s, t, k: g.pool_1d(s.normal(31, 5, dtype=t), k, 3, 2, 1), t, kind),
            )
            yield Case(
                "POOL_2D",
                f"{kind} {t}",
                bound(
                    lambda s, t, k: g.pool_2d(s.normal(15, 9, 3, dtype=t), k, 3, 2, 2, 1, 1, 0),
                    t,
                    kind,
                ),
            )
    yield Case("WIN_PART", "", lambda s: g.win_part(s.normal(6, 9, 7), 5), 0)
    yield Case("WIN_UNPART", "", lambda s: g.win_unpart(s.normal(6, 5, 5, 4), 9, 7, 5), 0)
    yield Case("GET_REL_POS", "f16", lambda s: g.get_rel_pos(s.normal(8, 9, dtype="f16"), 5, 5), 0)


def _convolutions(k: str) -> Iterator[Case]:
    yield Case(
        "CONV_2D",
        k,
        lambda s: g.conv_2d(
            s.normal(3, 3, 20, 19, dtype=k), s.normal(17, 15, 20, 2), (2, 1), (1, 1)
        ),
        CONVOLUTION,
    )
    yield Case(
        "CONV_2D_DW",
        k,
        lambda s: g.conv_2d_dw(s.normal(3, 3, 1, 9, dtype=k), s.normal(17, 14, 9), padding=(1, 1)),
        CONVOLUTION,
    )
    yield Case(
        "CONV_3D",
        k,
        lambda s: g.conv_3d(
            s.normal(3, 2, 2, 12, dtype=k),
            s.normal(6, 7, 5, 6),
            (1, 2, 1),
            (1, 0, 1),
            (1, 1, 1),
            n_channels=3,
            n_batch=2,
            n_channels_out=4,
        ),
        CONVOLUTION,
    )
    yield Case(
        "CONV_TRANSPOSE_1D",
        k,
        lambda s: g.conv_transpose_1d(s.normal(4, 6, 20, dtype=k), s.normal(31, 20), 2),
        CONVOLUTION,
    )
    yield Case(
        "CONV_TRANSPOSE_2D",
        k,
        lambda s: g.conv_transpose_2d(s.normal(3, 3, 6, 20, dtype=k), s.normal(9, 7, 20), 2),
        CONVOLUTION,
    )
