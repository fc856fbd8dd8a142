"""The functions that `tensors.py` converts from PyTorch, and what they read.

Most work on 512 x 1024 numbers, images have 64 channels; a name says where not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

F = torch.nn.functional


@dataclass
class Function:
    """A function of tensors."""

    name: str
    run: Callable[..., Any]
    sources: tuple[torch.Tensor, ...]


def functions() -> Iterator[Function]:
    """The rows, family by family."""
    generator = torch.Generator().manual_seed(1)
    yield from _elementwise(generator)
    yield from _whole_numbers(generator)
    yield from _casts(generator)
    yield from _reductions(generator)
    yield from _along_axes(generator)
    yield from _indexing(generator)
    yield from _norms(generator)
    yield from _moves(generator)
    yield from _windows(generator)


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def _below(generator: torch.Generator, n: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, n, shape, generator=generator)


def _elementwise(generator: torch.Generator) -> Iterator[Function]:
    a, b = _normal(generator, 512, 1024), _normal(generator, 512, 1024)
    for name in ("sin", "cos", "tan", "exp", "exp2", "expm1", "sigmoid", "floor", "round"):
        yield Function(name, getattr(torch, name), (a,))
    for name in ("log2", "log10", "log1p", "sqrt"):
        yield Function(name, getattr(torch, name), (a.abs(),))
    for name in ("asin", "acos", "atanh"):
        yield Function(name, getattr(torch, name), (torch.tanh(a),))
    for name in ("atan", "sinh", "cosh", "asinh", "erfc"):
        yield Function(name, getattr(torch, name), (a,))
    yield Function("sin to 1000", torch.sin, (500 * a,))
    yield Function("gelu", lambda x: F.gelu(x), (a,))
    yield Function("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (a,))
    for name in ("silu", "mish", "softplus", "elu", "hardswish", "leaky_relu"):
        yield Function(name, getattr(F, name), (a,))
    yield Function("clamp", lambda x: x.clamp(-1, 1), (a,))
    yield Function("pow 1.7", lambda x: x**1.7, (a.abs(),))
    yield Function("pow 3", lambda x: x**3, (a,))
    yield Function("2 to the", lambda x: 2.0**x, (a,))
    yield Function("atan2", torch.atan2, (a, b))
    yield Function("floor divide", torch.floor_divide, (a, b.abs() + 0.1))
    yield Function("maximum", torch.maximum, (a, b))
    yield Function("add row", lambda x, y: x + y, (a, b[0]))
    yield Function("add column", lambda x, y: x + y, (a, b[:, :1].contiguous()))
    yield Function("masked_fill", lambda x, m: x.masked_fill(m, -1.0), (a, b > 0))
    half = a.to(torch.float16)
    yield Function("add f16", torch.add, (half, b.to(torch.float16)))
    yield Function("exp f16", torch.exp, (half,))


def _whole_numbers(generator: torch.Generator) -> Iterator[Function]:
    for dtype, name in ((torch.int64, "i64"), (torch.int32, "i32"), (torch.int8, "i8")):
        a = (_below(generator, 100, 512, 1024) - 50).to(dtype)
        b = _below(generator, 100, 512, 1024).to(dtype) + 1
        for op in ("add", "mul", "lt", "maximum", "floor_divide", "remainder"):
            yield Function(f"{op} {name}", getattr(torch, op), (a, b))
        yield Function(f"add 3 {name}", lambda x: x + 3, (a,))
        yield Function(f"and {name}", torch.bitwise_and, (a, b))
        yield Function(f"abs {name}", torch.abs, (a,))
    m, o = _normal(generator, 512, 1024) > 0, _normal(generator, 512, 1024) > 0
    yield Function("logical and", torch.logical_and, (m, o))
    yield Function("logical not", torch.logical_not, (m,))


def _casts(generator: torch.Generator) -> Iterator[Function]:
    a = _normal(generator, 512, 1024)
    kinds = {
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "i64": torch.int64,
        "i32": torch.int32,
        "i8": torch.int8,
        "bool": torch.bool,
    }
    for one, other in (
        *(("f32", name) for name in ("f16", "bf16", "i64", "i32", "i8", "bool")),
        *((name, "f32") for name in ("f16", "bf16", "i64", "i32", "i8", "bool")),
        *(("i64", "i32"), ("i32", "i64"), ("bool", "i64"), ("i64", "bool")),
    ):
        to = kinds[other]
        yield Function(f"{one} to {other}", lambda x, to=to: x.to(to), (a.to(kinds[one]),))


def _reductions(generator: torch.Generator) -> Iterator[Function]:
    a = _normal(generator, 512, 1024)
    image = _normal(generator, 8, 64, 32, 32)
    for name in ("sum", "mean", "amax", "prod", "var"):
        yield Function(f"{name} of all", getattr(torch, name), (a,))
    yield Function("max of columns", lambda x: x.amax(0), (a,))
    yield Function("min of rows", lambda x: x.amin(-1), (a,))
    yield Function("mean of images", lambda x: x.mean((2, 3)), (image,))
    yield Function("mean of channels", lambda x: x.mean(1), (image,))
    yield Function("var of rows", lambda x: x.var(-1), (a,))
    yield Function("norm of rows", lambda x: x.norm(dim=-1), (a,))
    yield Function("logsumexp of rows", lambda x: x.logsumexp(-1), (a,))
    whole = _below(generator, 100, 512, 1024)
    yield Function("sum of all i64", torch.sum, (whole,))
    yield Function("sum of rows i32", lambda x: x.sum(-1), (whole.to(torch.int32),))
    yield Function("max of rows i64", lambda x: x.amax(-1), (whole,))
    yield Function("sum of all bool", torch.sum, (a > 0,))
    yield Function("any of all", torch.any, (a > 9,))
    yield Function("all of rows", lambda x: x.all(-1), (a < 9,))


def _along_axes(generator: torch.Generator) -> Iterator[Function]:
    a = _normal(generator, 512, 1024)
    yield Function("argmax of all", torch.argmax, (a,))
    yield Function("argmax of columns", lambda x: x.argmax(0), (a,))
    yield Function("argmin of rows", lambda x: x.argmin(-1), (a,))
    yield Function(
        "argmax of rows i64", lambda x: x.argmax(-1), (_below(generator, 99, 512, 1024),)
    )
    yield Function("max of rows, both", lambda x: x.max(-1), (a,))
    yield Function("cumsum of columns", lambda x: x.cumsum(0), (a,))
    yield Function("cumsum of a line", lambda x: x.cumsum(0), (a.reshape(-1),))
    yield Function("cumprod of rows", lambda x: x.cumprod(-1), (a,))
    yield Function(
        "cumsum of rows i64", lambda x: x.cumsum(-1), (_below(generator, 99, 512, 1024),)
    )
    yield Function("sort of rows", lambda x: x.sort(-1), (a,))
    yield Function("sort of columns", lambda x: x.sort(0), (a,))
    yield Function("argsort i64", lambda x: x.argsort(-1), (_below(generator, 9999, 512, 1024),))
    yield Function("sort of short rows", lambda x: x.sort(-1), (a.reshape(-1, 32),))
    yield Function("sort of a line", lambda x: x.sort(), (a.reshape(-1),))
    yield Function("top 10 of rows", lambda x: x.topk(10), (a,))
    yield Function("top 200 of rows", lambda x: x.topk(200), (a,))
    yield Function("top 50 of a line", lambda x: x.topk(50), (a.reshape(-1),))


def _indexing(generator: torch.Generator) -> Iterator[Function]:
    a, b = _normal(generator, 512, 1024), _normal(generator, 512, 1024)
    across, along = _below(generator, 512, 512, 1024), _below(generator, 1024, 512, 1024)
    rows, columns = _below(generator, 512, 700), _below(generator, 1024, 700)
    yield Function("gather of columns", lambda x, i: x.gather(0, i), (a, across))
    yield Function("index_select rows", lambda x, i: x.index_select(0, i), (a, rows))
    yield Function("index_select columns", lambda x, i: x.index_select(1, i), (a, columns))
    yield Function("elements", lambda x, i, j: x[i, j], (a, across, along))
    yield Function("scatter", lambda x, i, y: x.scatter(1, i, y), (a, along, b))
    yield Function("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), (a, along, b))
    yield Function("scatter_add columns", lambda x, i, y: x.scatter_add(0, i, y), (a, across, b))
    values = _normal(generator, 700, 1024)
    yield Function("index_add rows", lambda x, i, y: x.index_add(0, i, y), (a, rows, values))
    yield Function("index_put rows", lambda x, i, y: x.index_put((i,), y), (a, rows, values))
    yield Function(
        "index_put elements, added",
        lambda x, i, j, y: x.index_put((i, j), y, accumulate=True),
        (a, across, along, b),
    )
    table = _normal(generator, 32000, 256)
    tokens = _below(generator, 32000, 4, 512)
    yield Function("embedding", lambda i, w: F.embedding(i, w), (tokens, table))


def _norms(generator: torch.Generator) -> Iterator[Function]:
    a, image = _normal(generator, 512, 1024), _normal(generator, 8, 64, 32, 32)
    scores = _normal(generator, 8, 128, 512)
    for name in ("softmax", "log_softmax"):
        run = getattr(F, name)
        yield Function(f"{name} of rows", lambda x, run=run: run(x, dim=-1), (a,))
        yield Function(f"{name} of columns", lambda x, run=run: run(x, dim=0), (a,))
        yield Function(f"{name} of the middle", lambda x, run=run: run(x, dim=1), (scores,))
    weight, bias = _normal(generator, 1024), _normal(generator, 1024)
    yield Function("layer_norm", lambda x, w, b: F.layer_norm(x, (1024,), w, b), (a, weight, bias))
    yield Function("rms_norm", lambda x, w: F.rms_norm(x, (1024,), w), (a, weight))
    w, b = _normal(generator, 64), _normal(generator, 64)
    yield Function("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), (image, w, b))
    mean, variance = _normal(generator, 64), _normal(generator, 64).abs() + 0.5
    yield Function(
        "batch_norm",
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        (image, mean, variance, w, b),
    )


def _moves(generator: torch.Generator) -> Iterator[Function]:
    a, b = _normal(generator, 512, 1024), _normal(generator, 512, 1024)
    image, heads = _normal(generator, 8, 64, 32, 32), _normal(generator, 8, 128, 8, 64)
    yield Function("cat rows", lambda x, y: torch.cat((x, y), 0), (a, b))
    yield Function("cat columns", lambda x, y: torch.cat((x, y), 1), (a, b))
    yield Function("stack last", lambda x, y: torch.stack((x, y), -1), (a, b))
    yield Function("transpose", lambda x: x.t().contiguous(), (a,))
    yield Function("transpose f16", lambda x: x.t().contiguous(), (a.to(torch.float16),))
    yield Function("transpose i64", lambda x: x.t().contiguous(), (a.to(torch.int64),))
    yield Function("heads out", lambda x: x.permute(0, 2, 1, 3).contiguous(), (heads,))
    yield Function("to channels last", lambda x: x.permute(0, 2, 3, 1).contiguous(), (image,))
    yield Function("reverse of all", lambda x: x.permute(3, 2, 1, 0).contiguous(), (image,))
    yield Function("flip", lambda x: x.flip(-1), (a,))
    yield Function("roll", lambda x: x.roll(3, -1), (a,))
    yield Function("repeat", lambda x: x.repeat(2, 2), (a,))
    yield Function("every second", lambda x: x[:, ::2].contiguous(), (a,))


def _windows(generator: torch.Generator) -> Iterator[Function]:
    image, small = _normal(generator, 1, 64, 112, 112), _normal(generator, 8, 64, 32, 32)
    for mode in ("nearest", "bicubic"):
        up = lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode)  # noqa: E731
        yield Function(f"{mode} x2", up, (image,))
    yield Function(
        "bilinear x2, corners",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        (image,),
    )
    yield Function(
        "bilinear to half", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), (image,)
    )
    yield Function("max pool 2x2", lambda x: F.max_pool2d(x, 2), (image,))
    yield Function("max pool 3x3 / 1", lambda x: F.max_pool2d(x, 3, 1, 1), (image,))
    yield Function("avg pool 2x2", lambda x: F.avg_pool2d(x, 2), (image,))
    yield Function("avg pool 3x3 / 1", lambda x: F.avg_pool2d(x, 3, 1, 1), (image,))
    yield Function("adaptive avg to 1", lambda x: F.adaptive_avg_pool2d(x, 1), (small,))
    yield Function("adaptive avg to 7", lambda x: F.adaptive_avg_pool2d(x, 7), (image,))
    yield Function("adaptive max to 7", lambda x: F.adaptive_max_pool2d(x, 7), (image,))
    for mode in ("constant", "reflect", "replicate", "circular"):
        pad = lambda x, mode=mode: F.pad(x, (1, 1, 1, 1), mode=mode)  # noqa: E731
        yield Function(f"pad {mode}", pad, (image,))
