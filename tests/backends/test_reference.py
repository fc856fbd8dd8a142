"""The reference backend: its memory, its table of kernels, how it runs and how it fails."""

import numpy as np
import pytest
from reference_run import Lowered, compute

import weft.graph as g
from weft import quants
from weft.backends import HostMemory
from weft.backends.reference import REFERENCE, ReferenceBackend
from weft.backends.reference.kernel import KERNELS, kernel, needs_kernel
from weft.backends.reference.view import ArrayView
from weft.dtype import DTYPES
from weft.errors import DeviceError, OutOfMemoryError
from weft.graph.op import OPS
from weft.graph.size import Sym

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---- the table


def test_every_op_has_a_kernel() -> None:
    missing = [name for name, op in OPS.items() if needs_kernel(op) and op not in KERNELS]
    assert missing == []


def test_views_have_none() -> None:
    assert not any(op.is_view or op is OPS["NONE"] for op in KERNELS)


def test_a_second_kernel_is_refused() -> None:
    with pytest.raises(DeviceError, match="SOFT_MAX has two"):
        kernel("SOFT_MAX")(lambda call: None)


# ---- memory


def test_memory_is_private() -> None:
    memory = REFERENCE.allocate(100)
    assert memory.host() is None
    assert not REFERENCE.is_host
    assert memory.private().ctypes.data % REFERENCE.alignment == 0
    memory.write(4, np.arange(8, dtype=np.uint8))
    assert memory.read(4, 8).tolist() == list(range(8))
    assert memory.read(0, 4).tolist() == [0] * 4
    with pytest.raises(DeviceError, match=r"100\.\.101"):
        memory.read(100, 1)


def test_too_much_memory() -> None:
    with pytest.raises(OutOfMemoryError, match=str(1 << 60)):
        REFERENCE.allocate(1 << 60)


def test_alloc_size_is_that_of_the_maxima() -> None:
    n = Sym("n", 1, 7)
    assert REFERENCE.alloc_size(g.input("x", [n, 3])) == 7 * 3 * 4
    assert REFERENCE.alloc_size(g.leaf("i2_s", [128, 2])) == 2 * 32 + 32


def test_only_its_own_buffer_type() -> None:
    class Other(type(REFERENCE)):
        pass

    backend = ReferenceBackend()
    assert backend.supports_buffer_type(REFERENCE)
    assert not backend.supports_buffer_type(Other())


def test_memory_of_another_device_is_refused() -> None:
    lowered = Lowered(g.sqr(g.input("x", [4])))
    others = [HostMemory.zeros(m.nbytes) for m in lowered.memories.values()]
    with pytest.raises(DeviceError, match="tensor x is in HostMemory"):
        ReferenceBackend().lower(lowered.program, 0, others)


# ---- views


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64"])
def test_strided_elements_round_trip(dtype: str) -> None:
    size = DTYPES[dtype].bytes
    # 3 x 2 of a 5 x 4 matrix, transposed, from element (1, 1) on
    view = ArrayView(
        DTYPES[dtype],
        (2, 3, 1, 1),
        (5 * size, size, 20 * size, 20 * size),
        np.zeros(20 * size, np.uint8),
        6 * size,
    )
    values = np.arange(1, 7).reshape(1, 1, 3, 2)
    view.write(values)
    assert np.array_equal(view.read(), values)
    whole = ArrayView(
        DTYPES[dtype], (5, 4, 1, 1), (size, 5 * size, 20 * size, 20 * size), view.data
    ).read()[0, 0]
    assert np.array_equal(whole[1:3, 1:4], values[0, 0].T)
    assert np.count_nonzero(whole) == 6


def test_strided_blocks_round_trip() -> None:
    rows = normal(6, 64)
    data = quants.encode_runtime(rows, "q8_0").reshape(-1)
    # every second row
    view = ArrayView(DTYPES["q8_0"], (64, 3, 1, 1), (34, 136, 408, 408), data)
    before = quants.decode(data.reshape(6, 68), "q8_0")
    assert np.array_equal(view.read()[0, 0], before[::2])
    view.write(np.zeros((1, 1, 1, 64), np.float32))
    left = quants.decode(data.reshape(6, 68), "q8_0")
    assert not left[::2].any() and np.array_equal(left[1::2], before[1::2])


def test_a_view_outside_its_buffer() -> None:
    with pytest.raises(DeviceError, match=r"tensor w f32 .* does not fit its buffer of 12 bytes"):
        ArrayView(DTYPES["f32"], (4, 1, 1, 1), (4, 16, 16, 16), np.zeros(12, np.uint8), name="w")


# ---- what it takes


def test_supports_everything_it_computes() -> None:
    backend = ReferenceBackend()
    x = g.input("x", [2, 256])
    for node in (x, g.sqr(x), g.transpose(x), g.cast(x, "q4_K"), g.quantize(x, "q8_K")):
        assert backend.supports_op(node)


def test_refusals_are_sentences() -> None:
    backend = ReferenceBackend()
    x = g.input("x", [2, 256])
    codebook = g.leaf("iq2_xs", [256, 2], "c")
    support = backend.supports_op(g.cpy(x, codebook))
    assert not support and support.why == "results cannot be written as iq2_xs"
    # moving blocks of such a type is no encoding
    assert backend.supports_op(g.cpy(g.leaf("iq2_xs", [256, 2], "d"), codebook))


# ---- running


def test_symbolic_sizes() -> None:
    n, w = Sym("n", 1, 5), normal(4, 6)
    x = g.input("x", [n, 6])
    y = g.mul_mat(g.constant(w), x)
    z = g.scale(g.view_2d(y, 2, n.size, y.nb[1], 8), 2.0)
    lowered = Lowered(z)
    for tokens in (3, 1, 5, 3):
        data = normal(tokens, 6)
        lowered.run({"n": tokens}, x=data)
        got = lowered.view(z, {"n": tokens}).read()[0, 0]
        np.testing.assert_allclose(got, 2 * (data @ w.T)[:, 2:], rtol=1e-5)


def test_a_missing_symbol() -> None:
    lowered = Lowered(g.sqr(g.input("x", [Sym("n", 1, 5)])))
    with pytest.raises(DeviceError, match="no value for symbol n"):
        lowered.run()


def test_sizes_of_zero_do_nothing() -> None:
    x = g.input("x", [Sym("n", 0, 5), 1, 8])
    pos = g.input("pos", [Sym("n", 0, 5)], "i32")
    node = g.rope(g.soft_max(x), pos, mode="normal", n_dims=8)
    lowered = Lowered(node)
    lowered.run({"n": 0})
    assert lowered.view(node, {"n": 0}).read().size == 0


def test_in_place_and_views_share_memory() -> None:
    x = g.input("x", [3, 4])
    row = g.view_2d(x, 4, 1, x.nb[1], 16)
    doubled = g.scale(row, 2.0, inplace=True)
    lowered = Lowered(doubled)
    data = normal(3, 4)
    lowered.run(x=data)
    data[1] *= 2
    assert np.array_equal(lowered.view(x).read()[0, 0], data)


def test_failures_name_the_step() -> None:
    table = g.input("table", [3, 4])
    ids = g.input("ids", [2], "i32")
    node = g.get_rows(table, ids).named("picked")
    with pytest.raises(
        DeviceError, match=r"GET_ROWS\(table f32.*ids i32.*\) -> picked f32.*row 1..3 outside 0..2"
    ):
        compute(node, ids=np.array([1, 3], np.int32))


def test_negative_rows_are_refused() -> None:
    node = g.get_rows(g.input("table", [3, 4]), g.input("ids", [1], "i32"))
    with pytest.raises(DeviceError, match=r"row -1..-1 outside 0..2"):
        compute(node, ids=np.array([-1], np.int32))


def test_inputs_are_not_changed() -> None:
    x, y = g.input("x", [2, 3, 8]), g.input("y", [2, 3, 8])
    nodes = [g.soft_max(x), g.rms_norm(x, 1e-5), g.add(x, y), g.swiglu(x, y), g.clamp(x, -1, 1)]
    lowered = Lowered(*nodes)
    a, b = normal(2, 3, 8), normal(2, 3, 8)
    lowered.run(x=a, y=b)
    assert np.array_equal(lowered.view(x).read()[0], a)
    assert np.array_equal(lowered.view(y).read()[0], b)
