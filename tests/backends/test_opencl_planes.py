"""Weights in planes on OpenCL devices: made by the device, read by products and by rows."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.backends.opencl_device import opencl
from tests.shares import share
from weft import graph as g
from weft import quants
from weft.backends import make_backend
from weft.backends.kernels import planes
from weft.backends.kernels.memory import DeviceMemory
from weft.backends.kernels.planes import FORMATS, PlanesBufferType, PlanesMemory
from weft.backends.opencl import OpenCLBackend
from weft.compiler import compile, lower_plan, plan_graph, repacked
from weft.dtype import find_dtype
from weft.execute import Session
from weft.graph import Graph, Tensor
from weft.graph.tensor import Buffer
from weft.program import Program

RANDOM = np.random.default_rng(0)
N, ROWS = 512, 40
EACH_FORMAT = share("devices", FORMATS, ("q4_0", "q8_0", "q3_K", "q6_K"))


def alone(**options: Any) -> OpenCLBackend:
    """A device that uses planes, as the only one of a list."""
    backend = opencl(planes=True, **options)
    backend.kind = "CPU"
    return backend


@pytest.fixture(scope="module")
def device() -> OpenCLBackend:
    return alone()


@pytest.fixture(scope="module")
def tiled() -> OpenCLBackend:
    """Computes as a GPU does: several items per row, and tiles for many columns."""
    return alone(limits={"tile": 32, "lanes": 4, "columns": 4, "rows": 2, "wide": False})


def blocks(name: str, *shape: int) -> NDArray[np.uint8]:
    return quants.encode(RANDOM.standard_normal(shape).astype(np.float32), name)


def program_of(graph: Graph, backend: OpenCLBackend) -> Program:
    program = compile(graph, [backend], repack=True)
    assert "planes" in {t.layout for t in program.tensors}
    return program


# ---- bytes ---------------------------------------------------------------------------------------


def loaded(
    backend: OpenCLBackend, name: str, n_blocks: int
) -> tuple[NDArray[np.uint8], PlanesMemory]:
    dtype = find_dtype(name)
    data = RANDOM.integers(0, 256, n_blocks * dtype.bytes, np.uint8)
    buffer_type = PlanesBufferType(backend.driver, backend.memory_type)
    memory = buffer_type.load(data, dtype, (n_blocks * dtype.block, 1, 1, 1))
    assert isinstance(memory, PlanesMemory)
    return data, memory


@pytest.mark.parametrize("name", EACH_FORMAT)
def test_there_and_back(name: str, device: OpenCLBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of any bits, in several pieces; whole and in parts."""
    size = find_dtype(name).bytes
    monkeypatch.setattr(planes, "_CHUNK", 30 * size + 7)
    data, memory = loaded(device, name, 101)
    assert sum(width * n for width, n in FORMATS[name].planes) == size
    n = memory.nbytes
    assert n == data.nbytes
    for start, end in ((0, n), (0, 1), (n - 1, n), (n // 3, 2 * n // 3), (size - 1, size + 1)):
        np.testing.assert_array_equal(memory.read(start, end - start), data[start:end])
    assert memory.read(5, 0).size == 0


def test_where_the_parts_are(device: OpenCLBackend) -> None:
    data, memory = loaded(device, "q8_0", 50)
    parts = data.reshape(50, 34)
    want = np.concatenate([parts[:, at].reshape(-1) for at in
                           (slice(2, 18), slice(18, 34), slice(0, 2))])  # fmt: skip
    np.testing.assert_array_equal(DeviceMemory.read(memory, 0, data.nbytes), want)
    # element i and i + 16 of a unit share a byte, whatever the format had
    data, memory = loaded(device, "q4_K", 3)
    pairs = data.reshape(3, 144)[:, 16:].reshape(3, 4, 2, 16)
    units = np.stack([pairs & 15, pairs >> 4], axis=2)  # [block, pair, unit, half, element]
    codes = (units[..., 0, :] | units[..., 1, :] << 4).reshape(-1)
    np.testing.assert_array_equal(DeviceMemory.read(memory, 0, codes.size), codes)


def test_bytes_are_counted_and_given_back() -> None:
    backend = alone()
    memory = backend.memory_type
    before = memory.in_use
    data, first = loaded(backend, "q4_0", 600_000)  # more than a piece
    assert memory.in_use == before + data.nbytes
    del first
    gc.collect()
    assert memory.in_use == before
    memory.capacity = before + data.nbytes // 2
    with pytest.raises(weft.OutOfMemoryError, match=rf"{data.nbytes} were requested"):
        loaded(backend, "q4_0", 600_000)
    memory.capacity, memory.max_size = 1 << 40, 1000
    with pytest.raises(weft.OutOfMemoryError, match="blocks of at most 1000 bytes"):
        loaded(backend, "q4_0", 600_000)
    assert memory.in_use == before


def test_the_same_array_once(device: OpenCLBackend) -> None:
    buffer_type = PlanesBufferType(device.driver, device.memory_type)
    data, dtype = blocks("q4_0", 4, 64), find_dtype("q4_0")
    ne = (64, 4, 1, 1)
    first = buffer_type.load(data, dtype, ne)
    assert buffer_type.load(data, dtype, ne) is first
    assert buffer_type.load(data.copy(), dtype, ne) is not first


def test_a_lost_device_is_sent_its_weights_again(device: OpenCLBackend) -> None:
    x = columns(1)
    w = g.constant(blocks("q4_0", ROWS, N), "w", "q4_0")
    graph = Graph(g.mul_mat(w, weft.input("x", x.shape)).as_output("y"))
    sessions = [Session(program_of(graph, device)) for _ in range(2)]
    (first,), (other,) = ([m for m in s._bound.memories if isinstance(m, PlanesMemory)]
                          for s in sessions)  # fmt: skip
    assert first is other
    want = sessions[0].run({"x": x})["y"].copy()
    device.driver.copy(first.buffer, 0, device.driver.create(first.nbytes), 0, first.nbytes)
    assert not sessions[0].run({"x": x})["y"].any()
    sessions[0].reset()
    np.testing.assert_array_equal(sessions[0].run({"x": x})["y"], want)


def test_what_memory_refuses(device: OpenCLBackend) -> None:
    data, memory = loaded(device, "q4_0", 8)
    other = device.memory_type.allocate(data.nbytes)
    with pytest.raises(weft.DeviceError, match="cannot be written; plan with repack=False"):
        memory.write(0, data)
    with pytest.raises(weft.DeviceError, match="cannot be written"):
        memory.copy_from(0, other, 0, 4)
    assert not other.copy_from(0, memory, 0, 4)  # by way of `read`, which gives blocks
    with pytest.raises(weft.DeviceError, match="of a block of 144 bytes"):
        memory.read(140, 5)
    with pytest.raises(weft.DeviceError, match="_P16 memory holds repacked weights only"):
        device._planes.allocate(64)  # type: ignore[union-attr]


# ---- kernels -------------------------------------------------------------------------------------


def check(graph: Graph, backend: OpenCLBackend, want: dict[str, Any], **inputs: Any) -> None:
    got = Session(program_of(graph, backend)).run(inputs)
    assert got.keys() == want.keys()
    for name, value in want.items():
        limit = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(got[name].reshape(value.shape), value, rtol=0, atol=limit)


def columns(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal((*shape, N)).astype(np.float32)


@pytest.mark.parametrize("name", EACH_FORMAT)
def test_every_format(name: str, device: OpenCLBackend) -> None:
    """Two matrices, each for three planes of columns."""
    data, x = blocks(name, 2, ROWS, N), columns(6, 2)
    y = g.mul_mat(g.constant(data, "w", name), weft.input("x", x.shape))
    w = quants.decode(data, name).repeat(3, axis=0).astype(np.float64)
    check(Graph(y.as_output("y")), device, {"y": x @ w.transpose(0, 2, 1)}, x=x)


@pytest.mark.parametrize("n", [1, 3, 37])
def test_columns_as_on_gpus(n: int, tiled: OpenCLBackend) -> None:
    data, x = blocks("q6_K", ROWS + 3, N), columns(n)
    y = g.mul_mat(g.constant(data, "w", "q6_K"), weft.input("x", x.shape))
    w = quants.decode(data, "q6_K").astype(np.float64)
    check(Graph(y.as_output("y")), tiled, {"y": x @ w.T}, x=x)


def test_experts(tiled: OpenCLBackend) -> None:
    data, x = blocks("q4_0", 3, ROWS, N), columns(5, 2)
    ids = RANDOM.integers(0, 3, (5, 2)).astype(np.int32)
    shapes = weft.input("x", x.shape), weft.input("ids", ids.shape, "i32")
    y = g.mul_mat_id(g.constant(data, "w", "q4_0"), *shapes)
    w = quants.decode(data, "q4_0").astype(np.float64)
    want = np.einsum("tsn,tsrn->tsr", x, w[ids])
    check(Graph(y.as_output("y")), tiled, {"y": want}, x=x, ids=ids)


def test_rows_by_index(device: OpenCLBackend) -> None:
    data = blocks("q4_K", ROWS, N)
    ids = np.array([3, 0, ROWS - 1, 3], np.int32)
    y = g.get_rows(g.constant(data, "w", "q4_K"), weft.input("ids", ids.shape, "i32"))
    graph = Graph(y.as_output("y"))
    check(graph, device, {"y": quants.decode(data, "q4_K")[ids]}, ids=ids)
    ids[2] = ROWS
    with pytest.raises(weft.DeviceError, match=rf"index {ROWS} is outside 0\.\.{ROWS - 1}"):
        Session(program_of(graph, device)).run({"ids": ids})


# ---- which weights -------------------------------------------------------------------------------


def weight(name: str = "q4_0", rows: int = ROWS, where: Any = None) -> Tensor:
    leaf = g.constant(blocks(name, rows, N), "w", name)
    assert leaf.buffer is not None
    leaf.buffer.type = where
    return leaf


def chosen(backend: OpenCLBackend, *outputs: Tensor) -> dict[str, str]:
    graph = Graph(*(t.as_output(f"out{i}") for i, t in enumerate(outputs)))
    plan = repacked([plan_graph(graph, [backend, make_backend("cpu")])])[0]
    return {leaf.name: memory.name for leaf, memory in plan.layouts.items()}


def test_weights_of_the_device(device: OpenCLBackend) -> None:
    x = weft.input("x", (3, N))
    here = device.buffer_type
    assert chosen(device, g.mul_mat(weight(where=here), x)) == {"w": f"{here.name}_P16"}
    # what blocks have no planes for, what the layout has no kernel for, and parts
    assert chosen(device, g.mul_mat(weight("tq2_0", where=here), x)) == {}
    assert chosen(device, g.out_prod(weight(rows=3, where=here), weft.input("y", (3, 8)))) == {}
    w = weight(where=here)
    half = g.view_2d(w, N, 8, w.nb[1], 0)
    assert chosen(device, g.mul_mat(w, x), g.mul_mat(half, x)) == {}


def test_a_weight_of_two_devices_stays(device: OpenCLBackend) -> None:
    w, x, data = weight(where=device.buffer_type), weft.input("x", (3, N)), columns(3)
    a, b = g.mul_mat(w, x), g.mul_mat(w, x)
    graph = Graph(a.as_output("a"), b.as_output("b"))
    pair, layouts = [device, make_backend("cpu")], []
    for on, expected in ((0, ["w"]), (1, [])):
        plan = repacked([plan_graph(graph, pair, policy="plan", assign={a: 0, b: on})])[0]
        assert [leaf.name for leaf in plan.layouts] == expected
        layouts.append(Session(lower_plan(plan)).run({"x": data})["a"].copy())
    np.testing.assert_allclose(*layouts, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("kind", "wanted"), [("GPU", True), ("IGPU", True), ("ACCEL", False)])
def test_by_kind_of_device(kind: Any, wanted: bool, device: OpenCLBackend) -> None:
    """A processor reads blocks as well, so that its weights stay where they are."""
    info = replace(device.device, kind=kind)
    for asked, expected in ((None, wanted), (True, True), (False, False)):
        backend = OpenCLBackend(info, "opencl", planes=asked)
        y = g.mul_mat(weight(where=backend.buffer_type), weft.input("x", (3, N)))
        assert bool(chosen(backend, y)) == expected


def test_a_table_on_the_host_and_a_matrix_on_the_device(device: OpenCLBackend) -> None:
    """The same bytes as an embedding in host memory and as an output on the device."""
    w = weight(where=device.buffer_type)
    assert w.buffer is not None
    table = Tensor(w.dtype, w.ne, name="table", buffer=Buffer("weights", data=w.buffer.data))
    rows = weft.input("rows", (3,), "i32")
    y = g.mul_mat(w, weft.input("x", (3, N)))
    picked = g.get_rows(table, rows)
    graph = Graph(y.as_output("y"), picked.as_output("picked"))
    plan = plan_graph(graph, [device, make_backend("cpu")], policy="plan", assign={y: 0, picked: 1})
    assert [leaf.name for leaf in repacked([plan])[0].layouts] == ["w"]
