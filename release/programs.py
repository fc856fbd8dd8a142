"""The kernel programs that models of text commonly need on CUDA devices: the launches of their ops
are asked, with sizes that stand for all."""

from __future__ import annotations

from collections.abc import Iterator

from weft.backends.cuda.devices import limits_for
from weft.backends.cuda.ops import OWN
from weft.backends.cuda.ops.products import mul_mat_add
from weft.backends.kernels.launch import Call, Launch, View
from weft.backends.kernels.ops.bytes import CODES
from weft.backends.kernels.ops.matmul import used
from weft.dtype import find_dtype
from weft.graph.ops import FlashAttnParams
from weft.program import Layout

__all__ = ["Program", "programs"]

Program = tuple[str, tuple[str, ...]]
"""A kernel file and its defines."""

_LIMITS = limits_for(96 << 10)
_COLUMNS = (1, 2, 4, 8, 32, 64, 128)
_TOKENS = (16, 32, 64)
"""Rows of heads that take one, two and four warps of a block."""
_HEADS = {"f16": (32, 64, 128, 256), "q8_0": (128,)}
"""Sizes of heads by the type of their cache."""
_CAPPED = (256,)
_FILES = (
    "binary.cl", "copy.cl", "gather.cl", "glu.cl", "map.cl", "norm.cl", "reduce.cl", "rope.cl",
    "softmax.cl", "tensor.cl", "tensor_reduce.cl", "unary.cl",
)  # fmt: skip
_OF_F32 = ("binary.cl", "glu.cl", "norm.cl", "reduce.cl", "rope.cl", "softmax.cl", "unary.cl")
"""Files that are built for f32 alone, too."""


def programs() -> tuple[Program, ...]:
    """All of them, each once."""
    return tuple(dict.fromkeys((*_products(), *_attention(), *_shared())))


def _products() -> Iterator[Program]:
    weights = [_view(code, 512, 512, layout="planes") for code in CODES]
    weights += [_view(dtype, 512, 512) for dtype in ("f32", "f16", "bf16")]
    for w in weights:
        for n in _COLUMNS:
            x = _view("f32", 512, n)
            yield from _of("MUL_MAT", x, w, x)
            product = Call("MUL_MAT", x, (w, x), None, _LIMITS)
            yield from _made(mul_mat_add(product, Call("ADD", x, (x, x), None, _LIMITS)))
            experts = (_view("f32", 512, 1, n), _view("i32", 1, n))
            yield from _of("MUL_MAT_ID", _view("f32", 512, 1, n), w, *experts)


def _attention() -> Iterator[Program]:
    for cache, heads in _HEADS.items():
        for head in heads:
            for n in _TOKENS:
                kv = _view(cache, head, 512, 1)
                for cap in (0.0, 50.0) if head in _CAPPED and cache == "f16" else (0.0,):
                    params = FlashAttnParams(1.0, 0.0, cap)
                    q, d = _view("f32", head, n, 1), _view("f32", head, 1, n)
                    yield from _of("FLASH_ATTN_EXT", d, q, kv, kv, params=params)


def _shared() -> Iterator[Program]:
    for code in CODES:
        yield "planes.cl", (f"F={code}",)
        yield "copy.cl", used(W=_view(code, 512))
        yield "copy.cl", used(W=_view(code, 512, layout="planes"))
    yield "copy.cl", ("PUT=q8_0", "PUT_q8_0")
    yield "norm.cu", ("X=f32",)
    yield "glu.cu", ()
    yield from ((file, ()) for file in _FILES)
    yield from ((file, ("ALL_F32",)) for file in _OF_F32)


def _view(dtype: str, *ne: int, layout: Layout = "rows") -> View:
    kind, sizes = find_dtype(dtype), (*ne, 1, 1, 1)[:4]
    nb = [kind.bytes, kind.row_bytes(sizes[0])]
    for n in sizes[1:3]:
        nb.append(nb[-1] * n)
    return View(kind, sizes, tuple(nb), 0, None, layout=layout)


def _of(op: str, d: View, *src: View, params: object = None) -> Iterator[Program]:
    yield from _made(OWN[op](Call(op, d, src, params, _LIMITS)))


def _made(launches: list[Launch] | None) -> Iterator[Program]:
    for launch in launches or ():
        yield launch.file, launch.defines
