"""Planning speed: a llama-like graph over three devices, placed, split and given memory.

    python benchmarks/planning.py [--nodes 1000 5000 20000] [--repeat 5] [--symbolic]

Prints, per size and allocation policy, the best of the repeats in milliseconds.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import time
from collections.abc import Callable

from weft.allocate import allocate, validate
from weft.backends.base import YES, Support
from weft.backends.null import NullBackend, NullBufferType
from weft.dtype import find_dtype
from weft.graph.graph import Graph
from weft.graph.node import input, leaf
from weft.graph.op import find_op
from weft.graph.size import Size, Sym
from weft.graph.tensor import Buffer, Tensor
from weft.schedule import Schedule, optimize_splits, schedule

F32 = find_dtype("f32")
N_EMBD, N_HEAD, N_FF, N_CTX, N_VOCAB = 512, 8, 1408, 2048, 4096


class Device(NullBackend):
    """Takes everything but TOP_K-like ops on the first two devices."""

    def supports_op(self, node: Tensor) -> Support:
        """Refuses one op of each layer on GPUs, so that the planner has something to decide."""
        if self.kind == "GPU" and node.op.name == "ARGSORT":
            return Support(False, "no sorting")
        return YES


def devices() -> list[Device]:
    """Two GPUs with memory of their own, and a CPU."""
    return [
        Device("gpu0", "GPU", NullBufferType("gpu0", "gpu0", alignment=128, is_host=False)),
        Device("gpu1", "GPU", NullBufferType("gpu1", "gpu1", alignment=128, is_host=False)),
        Device("cpu", "CPU", NullBufferType("cpu", "cpu", alignment=32)),
    ]


def node(op: str, ne: tuple[Size, ...], *src: Tensor, view_of: Tensor | None = None) -> Tensor:
    """A node without parameters: nothing here looks at them."""
    full = (*ne, *([1] * (4 - len(ne))))
    view = None if view_of is None else view_of.view_src or view_of
    return Tensor(F32, full[:4], op=find_op(op), src=src, view_src=view)


def llama(n_nodes: int, backends: list[Device], n: Size) -> Graph:
    """About `n_nodes` nodes: layers of attention and feed-forward, a third on each device."""
    n_layers = max(1, (n_nodes - 5) // 35)

    def weight(layer: int, *ne: int) -> Tensor:
        device = backends[min(layer * 3 // n_layers, 2)]
        return leaf("q4_0", ne, "w", buffer=Buffer("weights", device.buffer_type))

    tokens, pos = input("tokens", [n], "i32"), input("pos", [n], "i32")
    mask = input("mask", [n, N_CTX])
    idx = input("idx", [n], "i64")
    embd = leaf("q4_0", (N_EMBD, N_VOCAB), "e", buffer=Buffer("weights", backends[2].buffer_type))
    x = node("GET_ROWS", (N_EMBD, n), embd, tokens)
    head = N_EMBD // N_HEAD
    outputs: list[Tensor] = []
    for i in range(n_layers):
        device = backends[min(i * 3 // n_layers, 2)]
        h = node("MUL", (N_EMBD, n), node("RMS_NORM", (N_EMBD, n), x), weight(i, N_EMBD))
        rows = []
        for _ in range(3):
            m = node("MUL_MAT", (N_EMBD, n), weight(i, N_EMBD, N_EMBD), h)
            rows.append(node("RESHAPE", (head, N_HEAD, n), m, view_of=m))
        q = node("ROPE", (head, N_HEAD, n), rows[0], pos)
        k = node("ROPE", (head, N_HEAD, n), rows[1], pos)
        views = []
        for new in (k, rows[2]):
            cache = leaf("f32", (N_EMBD, N_CTX), "kv", buffer=Buffer("any", device.buffer_type))
            flat = node("RESHAPE", (N_EMBD, n), new, view_of=new)
            outputs.append(node("SET_ROWS", (N_EMBD, N_CTX), flat, idx, cache, view_of=cache))
            view = node("VIEW", (head, N_HEAD, N_CTX), cache, view_of=cache)
            views.append(node("PERMUTE", (head, N_CTX, N_HEAD), view, view_of=cache))
        q = node("PERMUTE", (head, n, N_HEAD), q, view_of=q)
        kq = node("SOFT_MAX", (N_CTX, n, N_HEAD), node("MUL_MAT", (N_CTX, n, N_HEAD), views[0], q))
        kq.src = (kq.src[0], mask)
        kqv = node("MUL_MAT", (head, n, N_HEAD), views[1], kq)
        kqv = node("CONT", (N_EMBD, n), node("PERMUTE", (head, N_HEAD, n), kqv, view_of=kqv))
        out = node("MUL_MAT", (N_EMBD, n), weight(i, N_EMBD, N_EMBD), kqv)
        x = node("ADD", (N_EMBD, n), out, x)
        h = node("MUL", (N_EMBD, n), node("RMS_NORM", (N_EMBD, n), x), weight(i, N_EMBD))
        gate = node("MUL_MAT", (N_FF, n), weight(i, N_EMBD, N_FF), h)
        up = node("MUL_MAT", (N_FF, n), weight(i, N_EMBD, N_FF), h)
        act = node("MUL", (N_FF, n), node("UNARY", (N_FF, n), gate), up)
        x = node("ADD", (N_EMBD, n), node("MUL_MAT", (N_EMBD, n), weight(i, N_FF, N_EMBD), act), x)
    logits = node("MUL_MAT", (N_VOCAB, n), embd, node("RMS_NORM", (N_EMBD, n), x))
    order = node("ARGSORT", (N_VOCAB, n), logits)
    return Graph(*outputs, logits.as_output("logits"), order.as_output("order"))


def best_of(repeat: int, run: Callable[[], object]) -> float:
    """Shortest time of a call, in milliseconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000, 20000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--symbolic", action="store_true", help="n_tokens is a symbol")
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    machine = platform.processor() or platform.machine()
    print(f"{machine}, Python {platform.python_version()}, {commit}")
    print(
        "nodes  splits  schedule  ggml memory  best memory  validate    ggml MB   best MB  bound MB"
    )
    for n_nodes in args.nodes:
        backends = devices()
        n: Size = Sym("n_tokens", 1, 512).size if args.symbolic else 512
        graph = llama(n_nodes, backends, n)

        def place(graph: Graph = graph, backends: list[Device] = backends) -> Schedule:
            return optimize_splits(schedule(graph, backends))

        made = place()
        plans = {policy: allocate(made, policy) for policy in ("ggml", "best")}
        ms = [
            best_of(args.repeat, place),
            best_of(args.repeat, lambda made=made: allocate(made, "ggml")),
            best_of(args.repeat, lambda made=made: allocate(made, "best")),
            best_of(args.repeat, lambda made=made, plan=plans["best"]: validate(made, plan)),
        ]
        sizes = [plans["ggml"].total, plans["best"].total, plans["best"].lower_bound]
        print(
            f"{len(graph.nodes):>5}  {len(made.splits):>6}"
            f"  {ms[0]:>5.1f} ms  {ms[1]:>8.1f} ms  {ms[2]:>8.1f} ms {ms[3]:>6.1f} ms"
            + "".join(f"  {size / 1e6:>8.2f}" for size in sizes)
        )


if __name__ == "__main__":
    main()
