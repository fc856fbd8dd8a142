"""Ops on plain tensors against PyTorch's, alternating in one process.

    python benchmarks/tensors.py [--threads N] [--only conv]

Convolutions are those of ResNet-18 and MobileNetV2; the others work on 512 x 1024 numbers or an
image of 64 channels. The last rows are functions of `tensor_functions.py`, converted from PyTorch.
Times are minima of 15 runs; above 1 in the last column weft is faster. Needs torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensor_functions import functions

import weft
import weft.graph as g
from weft.backends import make_backend
from weft.compiler import compile
from weft.execute.session import Session

F = torch.nn.functional
NAMES = {torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.bool: "i8"}


@dataclass
class Row:
    """An op: its graph, the same in PyTorch, and what both read."""

    name: str
    build: Callable[..., g.Tensor] | None  # None: the reference is converted
    reference: Callable[..., Any]
    sources: tuple[torch.Tensor, ...]


CONVOLUTIONS = (
    # channels, size, channels out, kernel, stride, groups
    (3, 224, 64, 7, 2, 1),
    (64, 56, 64, 3, 1, 1),
    (64, 56, 128, 3, 2, 1),
    (128, 28, 128, 3, 1, 1),
    (256, 14, 256, 3, 1, 1),
    (512, 7, 512, 3, 1, 1),
    (3, 224, 32, 3, 2, 1),
    (32, 112, 32, 3, 1, 32),
    (96, 112, 96, 3, 2, 96),
    (96, 56, 24, 1, 1, 1),
    (576, 14, 576, 3, 1, 576),
    (576, 14, 96, 1, 1, 1),
    (960, 7, 160, 1, 1, 1),
)


def convolutions() -> Iterator[Row]:
    """Rows of the table above."""
    for c, size, out, k, s, groups in CONVOLUTIONS:
        x, w = torch.randn(1, c, size, size), torch.randn(out, c // groups, k, k)
        weight = g.constant(w.numpy(), "w")
        options = {"stride": s, "padding": k // 2, "groups": groups}
        yield Row(
            f"conv {c}x{size} to {out}, {k}x{k} / {s}" + (f" in {groups}" if groups > 1 else ""),
            lambda t, weight=weight, o=options: g.conv_nd(t, weight, dims=2, **o),
            lambda t, w=w, o=options: F.conv2d(t, w, **o),
            (x,),
        )


def others() -> Iterator[Row]:
    """Elementwise ops, reductions, indexing, windows."""
    a, b = torch.randn(512, 1024), torch.randn(512, 1024)
    for name in ("add", "lt", "remainder", "pow"):
        other = b.abs() + 0.1
        build = lambda x, y, n=name: g.binary(n, x, y)  # noqa: E731
        yield Row(name, build, getattr(torch, name), (a.abs(), other))
    for name in ("relu", "erf", "tanh", "sin", "log", "rsqrt"):
        build = lambda x, n=name: g.pointwise(n, x)  # noqa: E731
        yield Row(name, build, getattr(torch, name), (a.abs(),))
    yield Row("where", g.where, torch.where, (a > 0, a, b))
    yield Row("sum of rows", lambda x: g.reduce("sum", x, [0]), lambda x: x.sum(-1), (a,))
    yield Row("sum of columns", lambda x: g.reduce("sum", x, [1]), lambda x: x.sum(0), (a,))
    yield Row("argmax", lambda x: g.arg_reduce(x, 0), lambda x: x.argmax(-1), (a,))
    yield Row("cumsum", lambda x: g.cumulate("sum", x, 0), lambda x: x.cumsum(-1), (a,))
    yield Row("sort", lambda x: g.sort_indices(x, 0), lambda x: x.sort(-1).indices, (a,))
    at, rows = torch.randint(0, 1024, (512, 1024)), torch.randint(0, 512, (700,))
    yield Row("gather", lambda x, i: g.gather(x, i, 0), lambda x, i: x.gather(1, i), (a, at))
    yield Row("rows", lambda x, i: g.index(x, [None, i]), lambda x, i: x[i], (a, rows))
    image = torch.randn(1, 64, 112, 112)
    yield Row(
        "max pool 3x3 / 2",
        lambda x: g.pool_nd("max", x, [3, 3], 2, 1),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        (image,),
    )
    yield Row(
        "bilinear x2",
        lambda x: g.interpolate("linear", x, [224, 224]),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        (image,),
    )


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *sources: torch.Tensor) -> Any:
        return self.run(*sources)


def converted() -> Iterator[Row]:
    """Functions of `tensor_functions.py`."""
    for f in functions():
        yield Row(f.name, None, f.run, f.sources)


def prepare(row: Row, threads: int) -> Session:
    """A session whose inputs hold the row's sources."""
    backend = make_backend("cpu", n_threads=threads)
    if row.build is None:
        module = weft.from_torch(Module(row.reference), row.sources, devices=[backend])
        module(*row.sources)
        return module.session
    leaves = [g.input(f"x{i}", list(t.shape), NAMES[t.dtype]) for i, t in enumerate(row.sources)]
    session = Session(compile(g.Graph(row.build(*leaves).as_output("out")), [backend]))
    for i, t in enumerate(row.sources):
        data = t.to(torch.int8) if t.dtype is torch.bool else t
        session.input_view(f"x{i}")[:] = data.numpy().reshape(-1)
    return session


def measure(row: Row, threads: int, repeats: int = 15) -> tuple[float, float]:
    """Seconds of weft and of PyTorch."""
    session = prepare(row, threads)
    ours, theirs = [], []
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.perf_counter()
            session.execute({})
            middle = time.perf_counter()
            row.reference(*row.sources)
            ours.append(middle - start)
            theirs.append(time.perf_counter() - middle)
    return min(ours), min(theirs)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--below", type=float, default=1e9, help="print ratios below this only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'':42} {'weft us':>9} {'torch us':>9} {'ratio':>6}")
    for row in (*convolutions(), *others(), *converted()):
        if row.name.startswith(options.only):
            ours, theirs = measure(row, options.threads)
            if theirs / ours < options.below:
                print(f"{row.name:42} {ours * 1e6:9.0f} {theirs * 1e6:9.0f} {theirs / ours:6.2f}")


if __name__ == "__main__":
    main()
