"""The measurements of `weft calibrate`: small programs on one device, and the whole machine.

The overhead of an op is measured first and subtracted from all other times. Every figure is the
best of several runs, because disturbances only make a run slower.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from weft import graph as G
from weft import quants
from weft.backends import Backend
from weft.backends.base import UsesThreads
from weft.backends.memory import BufferType, in_host
from weft.compiler import compile
from weft.dtype import DType, find_dtype
from weft.execute.session import Session
from weft.graph.tensor import Buffer, Tensor
from weft.schedule.profile import DeviceProfile, LinkProfile, MemoryProfile, Profile
from weft.schedule.timing import work

TYPES = ("f32", "f16", "q8_0", "q4_0", "q4_K", "q6_K", "q5_K", "q5_0", "bf16", "mxfp4", "iq4_nl",
         "q2_K", "q3_K", "iq4_xs", "q4_1", "q5_1")  # fmt: skip
"""Types of weights whose products are timed, the usual ones first."""
_LIMIT, _FIGURES = 60.0, 300
"""Seconds after which nothing further is measured on a device, and the number of figures whose
time replaces them where it is longer. An ordinary device has about 50 figures."""

_CHAIN = 64
_MIB = 1 << 20
_BEYOND_CACHES = 128 * _MIB
"""Bytes of a matrix that has to be read from memory each time, as weights have."""
_FIRST = 4 * _MIB
"""Bytes of a matrix that shows whether a device is slow."""
_FEW, _MANY = 8, 128
"""Columns of the products that are timed: on slow devices, and first on others."""
_LONG = 0.5
"""Seconds of a run from which on a device is slow: it is given less to do."""
_ROUNDS = 3
"""Number of times that all products are timed, apart from each other in time."""
_BUSY = 1.5
"""The best of the rounds / the worst, above which a machine seems busy."""
_COLUMNS = tuple(1 << i for i in range(11))
"""Numbers of columns for which sending a weight is compared with using it on the host."""


def time_limit(seconds: float) -> float:
    """The seconds after which nothing further is measured on a device, if each figure takes
    `seconds`."""
    return max(_LIMIT, _FIGURES * seconds)


class _Bench:
    """Times graphs on a device, with all inputs in its memory."""

    def __init__(
        self, backend: Backend, others: Sequence[Backend], seconds: float, limit: float = math.inf
    ) -> None:
        """Each figure is measured for `seconds`, and none begins after `limit` seconds."""
        self._end = perf_counter() + limit
        self.backend = backend
        self._devices = [backend, *others]
        self._seconds = seconds
        self._random = np.random.default_rng(0)

    def leaf(self, dtype: DType, *ne: int) -> Tensor:
        """A leaf of random values."""
        rows = int(np.prod(ne[1:], dtype=np.int64))
        one = self._random.standard_normal((1, ne[0]), np.float32) * 0.1
        if dtype.block == 1:
            row = quants.to_storage(one, dtype)
        else:
            row = quants.encode(one, dtype)
        data = np.ascontiguousarray(np.repeat(row.reshape(1, -1), rows, axis=0))
        buffer = Buffer("weights", self.backend.buffer_type, data)
        return Tensor(dtype, (*ne, *[1] * (4 - len(ne))), name="x", buffer=buffer)  # type: ignore[arg-type]

    @property
    def is_over(self) -> bool:
        """True if no further figure is to be measured."""
        return perf_counter() >= self._end

    def runs(self, node: Tensor) -> bool:
        """True if the device supports a node."""
        return self.backend.supports_op(node).ok

    def seconds(self, *outputs: Tensor) -> float:
        """The best time of one run of a graph whose nodes are all on the device."""
        graph = G.Graph(*(t.as_output(f"y{i}") for i, t in enumerate(outputs)))
        program = compile(
            graph, self._devices, policy="plan",
            assign={n: 0 for n in graph.nodes if not n.op.is_view},
        )  # fmt: skip
        session = Session(program)
        spec = program.tensors[program.outputs["y0"]]
        offset = spec.offset if isinstance(spec.offset, int) else 0

        def once() -> None:
            session.execute({})
            session.read_buffer(spec.buffer, offset, 4)  # waits on devices whose runs only enqueue

        return _best(once, self._seconds)


def _best(call: Callable[[], None], seconds: float) -> float:
    call()
    best, end = float("inf"), perf_counter() + seconds
    while True:
        start = perf_counter()
        call()
        now = perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def measure_device(
    backend: Backend,
    others: Sequence[Backend],
    memory: str,
    seconds: float,
    progress: Callable[[str], None],
    limit: float,
) -> tuple[DeviceProfile, list[str], str]:
    """Measures a device, each figure for `seconds`; returns what is known, and the names of the
    figures that were left out, since `limit` seconds were over, and where rounds of products differ
    much, a sentence that says so.

    `others` are the devices behind it in the list, a cpu last (none for the cpu itself). `progress`
    is called with a text for each measurement. What has no figure counts as products with f32."""
    bench = _Bench(backend, others, seconds, limit)
    left_out: list[str] = []

    def measured(what: str, measure: Callable[[], float]) -> float | None:
        if bench.is_over:
            left_out.append(what)
            return None
        progress(what)
        return measure()

    samples = _samples(bench)
    refuses = tuple(name for name, node in samples.items() if not bench.runs(node))
    launch = start = 0.0
    if "ADD" not in refuses:
        progress("launches")
        launch, start = _launch(bench)
    overhead = start + launch
    progress("bandwidth")
    is_slow = _is_slow(bench)
    bandwidth = max(_bandwidths(bench, overhead, is_slow=is_slow))
    usual = {"softmax": "SOFT_MAX", "attention": "FLASH_ATTN_EXT"}
    rates = {
        op: measured(what, lambda op=op: _rate(bench, samples[op], overhead))  # type: ignore[misc]
        for what, op in usual.items()
        if op not in refuses
    }
    vector, attention = (rates.get(op) for op in usual.values())
    op_flops = {} if attention is None else {"FLASH_ATTN_EXT": attention}
    least = None
    if others and backend.buffer_type is not others[-1].buffer_type:
        least = measured(
            "weights sent for each batch", lambda: measure_offload(backend, others[-1], seconds)
        )
    offload_from = None if least is None else int(least)
    columns = _FEW if is_slow else _MANY
    flops, spread = _products(bench, columns, overhead, progress, left_out)
    if vector is not None:
        flops["vector"] = vector
    flops["default"] = flops.get("f32", min(flops.values()))
    device = DeviceProfile(
        backend.name, backend.kind, memory, bandwidth, flops, launch, start, op_flops,
        refuses=refuses, offload_from=offload_from,
        threads=max(backend.n_threads, backend.n_threads_batch)
        if isinstance(backend, UsesThreads) else None,
    )  # fmt: skip
    return device, left_out, _busy_text(spread)


def measure_offload(backend: Backend, host: Backend, seconds: float) -> int:
    """The least number of columns, a power of two, from which a product with a q8_0 weight of host
    memory is faster on a device, to which the weight is sent each time; 0: none up to 1024, or
    none that a slow device was given."""
    bench = _Bench(host, [], seconds)
    f32 = find_dtype("f32")
    weight = bench.leaf(find_dtype("q8_0"), 2048, 2048)

    def time_on(device: int, columns: int) -> float:
        product = G.mul_mat(weight, bench.leaf(f32, 2048, columns))
        result = G.scale(product, 2.0)  # results go back to the host, as they do in a model
        program = compile(
            G.Graph(result.as_output("y")), [backend, host], policy="plan", repack=True,
            assign={product: device, result: 1},
        )  # fmt: skip
        session = Session(program)
        return _best(lambda: session.execute({}), seconds)

    if not backend.supports_op(G.mul_mat(weight, bench.leaf(f32, 2048, 1))).ok:
        return 0
    for columns in _COLUMNS:
        there = time_on(0, columns)
        if there < time_on(1, columns):
            return columns
        if there > _LONG:
            break
    return 0


def _samples(bench: _Bench) -> dict[str, Tensor]:
    """A node for each of the usual ops of models."""
    f16, f32, i32, i64 = map(find_dtype, ("f16", "f32", "i32", "i64"))
    x = bench.leaf(f32, 1024, 512)
    q = bench.leaf(f32, 128, 32, 16)
    k, v = bench.leaf(f16, 128, 1024, 4), bench.leaf(f16, 128, 1024, 4)
    ids = bench.leaf(i32, 32)
    return {
        "ADD": G.add(x, x),
        "MUL": G.mul(x, x),
        "RMS_NORM": G.rms_norm(x, 1e-5),
        "SOFT_MAX": G.soft_max(x),
        "GLU": G.swiglu(x, x),
        "CONT": G.cont(G.transpose(x)),
        "GET_ROWS": G.get_rows(x, ids),
        "SET_ROWS": G.set_rows(x, bench.leaf(f32, 1024, 32), bench.leaf(i64, 32)),
        "ROPE": G.rope(q, bench.leaf(i32, 16), mode=G.RopeMode.NORMAL, n_dims=128),
        "FLASH_ATTN_EXT": G.flash_attn_ext(q, k, v, scale=0.1),
    }


def _launch(bench: _Bench) -> tuple[float, float]:
    """The seconds of overhead of an op among others, and of a run without its ops."""
    x = bench.leaf(find_dtype("f32"), 4096)  # the size of one token's row in a model
    one = bench.seconds(G.add(x, x))
    y = G.add(x, x)
    for _ in range(_CHAIN - 1):
        y = G.add(y, x)
    launch = max((bench.seconds(y) - one) / (_CHAIN - 1), 1e-9)
    return launch, max(one - launch, 0.0)


def _is_slow(bench: _Bench) -> bool:
    """True if a device needs long for a matrix beyond caches times a vector, judged by a small
    one."""
    node = _times_vector(bench, "f32", _FIRST)
    return bench.runs(node) and bench.seconds(node) * (_BEYOND_CACHES / _FIRST) > _LONG


def _bandwidths(bench: _Bench, overhead: float, *, is_slow: bool) -> Iterator[float]:
    """Yields the bytes per second of matrix times vector, which reads weights, and of a copy; on a
    slow device of fewer bytes, and after the limit of time of a copy alone."""
    f32 = find_dtype("f32")
    size = _FIRST if is_slow else _BEYOND_CACHES  # a slow device does not wait for memory
    for name in ("f32", "f16", "q8_0"):
        node = _times_vector(bench, name, size)
        if bench.runs(node) and not bench.is_over:
            yield work(node, {}).nbytes / max(bench.seconds(node) - overhead, 1e-9)
    node = G.scale(bench.leaf(f32, 4096, size // (4 * 4096)), 2.0)
    if not bench.runs(node):  # the device has products only; a few columns come nearest to a copy
        node = G.mul_mat(bench.leaf(f32, 4096, 4096), bench.leaf(f32, 4096, 64))
    yield work(node, {}).nbytes / max(bench.seconds(node) - overhead, 1e-9)


def _times_vector(bench: _Bench, name: str, size: int) -> Tensor:
    """A matrix of a type, of `size` bytes, times a vector."""
    dtype = find_dtype(name)
    rows = size // dtype.row_bytes(4096)
    return G.mul_mat(bench.leaf(dtype, 4096, rows), bench.leaf(find_dtype("f32"), 4096, 1))


def _products(
    bench: _Bench,
    columns: int,
    overhead: float,
    progress: Callable[[str], None],
    left_out: list[str],
) -> tuple[dict[str, float], dict[str, float]]:
    """The operations per second of products for each type of weights, the best of up to `_ROUNDS`
    rounds over all types, and by how much the rounds of each differ (best / worst). Adds the types
    for which there was no time to `left_out`; the first has its figure always."""
    rates, worst, nodes = dict[str, float](), dict[str, float](), dict[str, Tensor]()
    for name in TYPES:
        dtype = find_dtype(name)
        if dtype.block > 1 and not quants.can_encode(dtype):
            continue
        node = G.mul_mat(
            bench.leaf(dtype, 2048, 2048), bench.leaf(find_dtype("f32"), 2048, columns)
        )
        if not bench.runs(node):
            continue
        if rates and bench.is_over:
            left_out.append(f"products of {name}")
            continue
        progress(f"products of {name}")
        seconds = bench.seconds(node)
        rates[name] = worst[name] = work(node, {}).flops / max(seconds - overhead, 1e-9)
        nodes[name] = node
        if seconds > _LONG:
            columns = max(_FEW, columns // 4)
    for number in range(2, _ROUNDS + 1):
        for name, node in nodes.items():
            if not bench.is_over:
                progress(f"products of {name}, round {number} of {_ROUNDS}")
                rate = work(node, {}).flops / max(bench.seconds(node) - overhead, 1e-9)
                rates[name], worst[name] = max(rates[name], rate), min(worst[name], rate)
    return rates, {name: rate / worst[name] for name, rate in rates.items()}


def _busy_text(spread: Mapping[str, float]) -> str:
    """A sentence where rounds of products differ much, `spread` being best / worst by type; else
    empty."""
    name = max(spread, key=lambda name: spread[name], default="")
    if not name or spread[name] <= _BUSY:
        return ""
    return (
        f"products of {name} differ by a factor of {spread[name]:.1f} between rounds, so that the "
        "machine seems busy: the best round counts; calibrate again when nothing else runs"
    )


def _rate(bench: _Bench, node: Tensor, overhead: float) -> float:
    return work(node, {}).flops / max(bench.seconds(node) - overhead, 1e-9)


def measure_link(memory: BufferType, seconds: float) -> tuple[LinkProfile, LinkProfile]:
    """Measures copies from host memory to a device's memory, and back."""
    big, small = 64 * _MIB, 4096
    block = memory.allocate(big)
    data = np.zeros(big, np.uint8)

    def time_of(call: Callable[..., Any], *arguments: Any) -> float:
        def once() -> None:
            call(*arguments)

        return _best(once, seconds)

    def link(long: float, short: float) -> LinkProfile:
        return LinkProfile((big - small) / max(long - short, 1e-9), max(short, 1e-9))

    def sent(part: Any) -> None:
        block.write(0, part)
        block.read(0, 4)  # waits on devices that only enqueue

    waiting = time_of(block.read, 0, 4)
    to = link(time_of(sent, data) - waiting, time_of(sent, data[:small]) - waiting)
    back = link(time_of(block.read, 0, big), time_of(block.read, 0, small))
    return to, back


def measure_machine(
    backends: list[Backend],
    seconds: float,
    progress: Callable[[str], None],
    limit: float | None = None,
) -> Profile:
    """Measures the profile of the devices; the preferred one is first, a cpu last. `progress` is
    called with a text for each measurement. On each device nothing is begun after `limit` seconds
    (default: `time_limit`); the profile's sources name what that left out."""
    limit = time_limit(seconds) if limit is None else limit
    host = backends[-1].buffer_type
    memories: dict[str, MemoryProfile] = {}
    links: dict[tuple[str, str], LinkProfile] = {}
    profiles: list[DeviceProfile] = []
    sources = [f"measured by weft calibrate on {platform.machine()} {platform.system()}"]
    for backend in backends:
        own = backend.buffer_type
        if own.name not in memories:
            memories[own.name] = MemoryProfile(
                own.name, own.is_host, backend.memory_limit(), own.alignment, own.max_size,
                in_host(own),
            )  # fmt: skip
            if own is not host:
                progress(f"measuring {backend.name}: copies")
                to, back = measure_link(own, seconds)
                links[host.name, own.name], links[own.name, host.name] = to, back

        def show(what: str, name: str = backend.name) -> None:
            progress(f"measuring {name}: {what}")

        others = [] if backend is backends[-1] else [backends[-1]]
        profile, left_out, busy = measure_device(backend, others, own.name, seconds, show, limit)
        profiles.append(profile)
        if left_out:
            sources.append(
                f"{backend.name}: not measured within {limit:g} s: {', '.join(left_out)}"
            )
        if busy:
            sources.append(f"{backend.name}: {busy}")
    return Profile(platform.machine(), tuple(profiles), memories, links, tuple(sources))
