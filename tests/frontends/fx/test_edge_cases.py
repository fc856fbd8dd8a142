"""Scalars where PyTorch lets them pass as vectors, nothing at all, and padding that takes away."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from tests.frontends.fx.exported import check  # noqa: E402
from weft.errors import DeviceError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

SCALAR = torch.tensor(-3.0)


def rows(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


PADDINGS = [
    ((2, 3, 5), (-1, 1)),
    ((2, 3, 5), (2, -1)),
    ((2, 3, 5), (-1, -2)),
    ((2, 3, 5, 6), (1, -2, -1, 2)),
]


@pytest.mark.parametrize(("shape", "ends"), PADDINGS)
def test_circular_padding_wraps_what_negative_ends_leave(
    shape: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    check(lambda x: F.pad(x, ends, mode="circular"), rows(*shape))


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: tuple(x.max(0)),
    "min": lambda x: tuple(x.min(-1)),
    "amax": lambda x: x.amax(0),
    "norms": lambda x: tuple(
        torch.linalg.vector_norm(x, p, dim=0) for p in (0, 1, 2, 3, float("inf"))
    ),
    "normalize": lambda x: F.normalize(x, dim=0),
    "cosine": lambda x: F.cosine_similarity(x, x * 2, dim=0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_scalar_is_reduced_along_its_only_dimension(name: str) -> None:
    check(REDUCTIONS[name], SCALAR)


@pytest.mark.parametrize("index", [torch.tensor(0), torch.tensor([0])])
def test_rows_of_a_scalar_are_copied(index: Any) -> None:
    source = torch.full(index.shape, 2.0)
    check(lambda x, i, s: x.index_copy(0, i, s), SCALAR, index, source)


def test_a_graph_without_nodes_runs() -> None:
    check(lambda x: x, rows(3))
    check(lambda x: (torch.ones(2), x), rows(3))


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate", "constant"])
def test_padding_of_no_images_is_no_images(mode: str) -> None:
    check(lambda x: F.pad(x, (1, 2), mode=mode), rows(0, 3, 5))
    check(lambda x: F.pad(x, (1, 2, 1, 1), mode=mode), rows(0, 3, 5, 5))


def test_bitwise_operators_of_either_spelling() -> None:
    check(
        lambda x: (
            *(x.__and__(3), x.__or__(8), x.__xor__(1), x << 1, x >> 1),
            *(x.__rshift__(torch.tensor(1)), x.__lshift__(torch.tensor([2]))),
        ),
        torch.arange(6),
    )


def test_the_angle_of_real_numbers() -> None:
    numbers = [1.0, -2.0, 0.0, -0.0, float("nan"), float("-inf")]
    check(torch.angle, torch.tensor(numbers))
    check(torch.angle, torch.tensor([3, -2, 0]))


@pytest.mark.parametrize("index", [[[0, -1], [5, 2]], [3], 4])
def test_elements_are_taken_by_their_number(index: Any) -> None:
    check(lambda x, i: x.take(i), rows(2, 3), torch.tensor(index))
    check(lambda x, i: x.t().take(i), rows(2, 3), torch.tensor(index))


def moved() -> list[Any]:
    """Functions that move the rows of a matrix around."""
    return [
        pytest.param(lambda x: x.flip(0), id="flip"),
        pytest.param(lambda x: x.flip([0, 1]), id="flip both"),
        *(
            pytest.param(lambda x, by=by: torch.roll(x, by, 0), id=f"roll {by}")
            for by in (1, -1, 2, 3, -7, 25)
        ),
        pytest.param(lambda x: torch.roll(x, 4), id="roll all"),
        pytest.param(lambda x: torch.roll(x, x.shape[0] // 2, 0), id="roll half"),
        pytest.param(lambda x: torch.roll(x, -(x.shape[0] // 2), 0), id="roll half back"),
        pytest.param(lambda x: torch.roll(x, 2 * x.shape[0] + 1, 0), id="roll round"),
        pytest.param(lambda x: torch.fft.fftshift(x, dim=0), id="fftshift"),
    ]


@pytest.mark.parametrize("function", moved())
def test_rows_of_any_number_are_moved(function: Callable[..., Any]) -> None:
    n = torch.export.Dim("n", min=2, max=20)
    program = weft.from_torch(function, (rows(8, 3),), dynamic_shapes={"x": {0: n}}, host=False)
    for size in (2, 5, 8, 20):
        assert torch.equal(program(rows(size, 3)), function(rows(size, 3)))


def test_places_in_nothing() -> None:
    for shape in ((0,), (0, 3), (2, 0)):
        function = weft.from_torch(lambda x: x.nonzero(as_tuple=True), (torch.zeros(shape),))
        found = function(torch.zeros(shape))
        assert [(len(places), places.dtype) for places in found] == [(0, torch.int64)] * len(shape)


def test_a_result_has_the_dimensions_that_were_exported() -> None:
    """PyTorch's rule for the shape says [1, n] here."""
    program = weft.from_torch(lambda x: torch.unique_consecutive(x, dim=-1), (torch.zeros(5),))
    with pytest.raises(DeviceError, match=r"has 2 dimensions .* but PyTorch returned \[1\]"):
        program(torch.zeros(5))


def test_buffers_of_double_precision_are_read_by_pytorch() -> None:
    class Offset(torch.nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.register_buffer("offset", torch.arange(n, dtype=torch.float64) / 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.offset.to(x.dtype)

    for n in (3, 5000):  # folded, and not
        module, x = Offset(n), rows(2, n)
        assert torch.equal(weft.from_torch(module, x)(x), module(x))


def test_constants_of_any_type_are_results() -> None:
    class Known(torch.nn.Module):
        """Buffers of types that weft has not, and what is computed from them alone."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("thirds", torch.arange(8.0, dtype=torch.float64).view(2, 4) / 3)
            self.register_buffer("large", torch.ones(300, 300, dtype=torch.float64))
            self.register_buffer("none", torch.ones(0, 4, dtype=torch.float64))
            self.register_buffer("wave", torch.complex(rows(2, 3), rows(2, 3)))
            self.register_buffer("small", rows(2, 3).to(torch.float8_e4m3fn))

        def forward(self, x: Any) -> Any:
            parts = (*self.thirds.unbind(1), *self.thirds.max(1).values, self.thirds[1], self.large)
            waves = (self.wave, 2 * self.wave, self.wave.unbind(1)[1], self.wave.conj())
            return 2 * x, self.thirds, self.thirds.T, self.none, *parts, *waves, self.small

    module, x = Known(), rows(2)
    program = weft.from_torch(module, x)
    for _ in range(2):
        for want, got in zip(module(x), program(x), strict=True):
            bits = (t.to(torch.float32) if t.itemsize == 1 else t for t in (got, want))
            torch.testing.assert_close(*bits, rtol=0, atol=0)
            got.zero_()  # the next call has results of its own


def ops(program: Any) -> list[str]:
    return [node.op.name for node in program.graph.nodes]


def test_what_comes_from_parameters_alone_is_computed_once() -> None:
    class Normed(torch.nn.Module):
        """A normalised weight, and a table of biases that is read by number."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(24, 16))
            self.table = torch.nn.Parameter(rows(7, 16))
            self.register_buffer("places", torch.tensor([6, 0, 3]))

        def forward(self, x: Any) -> Any:
            return self.linear(x) + self.table[self.places]

    module, x = Normed().eval(), rows(3, 24)
    program = weft.from_torch(module, x)
    assert torch.allclose(program(x), module(x), atol=1e-5)
    assert set(ops(program)) <= {"MUL_MAT", "ADD", "BINARY", "RESHAPE", "VIEW"}


def test_parts_of_buffers_are_computed_once() -> None:
    class Spread(torch.nn.Module):
        """The messages of a graph, whose edges are taken apart, in both directions."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("edges", torch.tensor([[0, 2, 1], [1, 1, 2]]))
            self.register_buffer("weights", torch.tensor([[3.0, 1.0], [2.0, 5.0], [4.0, 0.5]]))

        def forward(self, x: Any) -> Any:
            source, to = self.edges
            degree = torch.zeros(3).index_add(0, to, torch.ones(3))
            best, place = self.weights.max(1)
            scale = degree.clamp(min=1).rsqrt() * best
            return (x * scale)[source] + place[to]

    module, x = Spread().eval(), rows(3)
    program = weft.from_torch(module, x, host=False)
    assert torch.allclose(program(x), module(x), atol=1e-6)
    assert set(ops(program)) <= {"MUL", "INDEX", "CONVERT", "ADD"}


def test_parts_of_parameters_are_read_where_these_lie() -> None:
    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(rows(2, 6, 4))

        def forward(self, x: Any) -> Any:
            first, second = self.w
            return (x @ first.T) * (x @ second.T)

    module, x = Halves(), rows(3, 4)
    program = weft.from_torch(module, x)
    assert torch.allclose(program(x), module(x), atol=1e-5)
    (leaf,) = (t for t in program.graph.leaves if t.buffer is not None)
    assert leaf.buffer.data.ctypes.data == module.w.data_ptr()


def test_views_of_parameters_are_read_where_these_lie() -> None:
    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(rows(16, 24))

        def forward(self, x: Any) -> Any:
            return x @ self.w.t()

    module, x = Turned(), rows(3, 24)
    program = weft.from_torch(module, x)
    assert torch.allclose(program(x), module(x), atol=1e-5)
    (leaf,) = (t for t in program.graph.leaves if t.buffer is not None)
    assert leaf.buffer.data.ctypes.data == module.w.data_ptr()


def test_parameters_that_a_program_writes_are_read_anew() -> None:
    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = torch.nn.Parameter(torch.zeros(3), requires_grad=False)

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return x * (self.count * 2)

    program = weft.from_torch(Counted(), torch.ones(3))
    assert [float(program(torch.ones(3))[0]) for _ in range(2)] == [2, 4]


def test_padding_by_nothing_is_the_value() -> None:
    program = weft.from_torch(lambda x: F.pad(x, (0, 0, 0, 0)) + 1, rows(3, 4))
    assert "PAD_ND" not in ops(program)


@pytest.mark.parametrize(
    ("low", "has_scores"), [(-100.0, False), (-torch.inf, False), (-3e38, True)]
)
def test_constant_biases_of_attention(low: float, has_scores: bool) -> None:
    """Biases are added without scores in memory, unless they may hide keys without being -inf."""
    q, k, v = (rows(3, 2, 5, 8) for _ in range(3))
    mask = rows(3, 2, 5, 5)
    mask[1, :, 2:, 3] = mask[0, 1, 4] = low

    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.nn.Parameter(mask)

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, self.mask * 1)

    program = weft.from_torch(Biased(), (q, k, v))
    assert ("SOFT_MAX" in ops(program)) == has_scores
    assert ("FLASH_ATTN_EXT" in ops(program)) != has_scores
    expected = Biased()(q, k, v)
    assert torch.allclose(program(q, k, v), expected, atol=1e-5, equal_nan=True)


def _hidden(*shape: int) -> Any:
    """A mask whose second row, and part of the fourth, is hidden."""
    mask = torch.zeros(shape)
    mask[..., 1, :] = mask[..., 3, 2:] = -torch.inf
    return mask


MASKS = [_hidden(*lead, 5, 7) for lead in ((), (1,), (1, 1), (2, 1), (1, 4), (2, 4))]
MASKS.append(torch.tensor([0.0, -torch.inf]).view(2, 1, 1, 1).expand(2, 1, 5, 7))
MASKS.append(torch.tensor([0.0, -torch.inf]).view(2, 1, 1, 1).expand(2, 1, 1, 7))
MASKS.append(torch.tensor([0.0, -torch.inf, 0, 0, 1]).view(5, 1))


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: str(list(mask.shape)))
@pytest.mark.parametrize("form", ["added", "bool", "f16", "few heads"])
def test_a_query_that_sees_nothing_has_zeros(mask: Any, form: str) -> None:
    q, k, v = rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 6)
    if form == "bool":
        mask = mask == 0
    elif form == "f16":
        q, k, v, mask = q.half(), k.half(), v.half(), mask.half()
    elif form == "few heads":
        k, v = k[:, :2], v[:, :2]

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=k.shape[1] != q.shape[1])

    check(attend, q, k, v, mask, **({"rtol": 1e-2, "atol": 1e-2} if form == "f16" else {}))


def scan(a: Any, b: Any, h: Any) -> Any:
    states = []
    for i in range(5):
        h = a[:, i] * h + b[:, i]
        states.append(h)
    return torch.stack(states, 1), h


def test_an_unrolled_scan_keeps_its_dynamic_batch() -> None:
    a, h = torch.arange(30.0).reshape(2, 5, 3) / 30, torch.ones(2, 3)
    n = torch.export.Dim("n", max=8)
    f = weft.from_torch(scan, (a, a, h), dynamic_shapes=[{0: n}] * 3)
    more = (torch.cat([a, -a]), torch.cat([a, a]), torch.cat([h, h]))
    torch.testing.assert_close(f(*more), scan(*more))


def test_an_unrolled_scan_of_nothing() -> None:
    for shape in ((2, 5, 0), (0, 5, 3)):
        a, h = torch.ones(shape), torch.ones(shape[0], shape[2])
        torch.testing.assert_close(weft.from_torch(scan, (a, a, h))(a, a, h), scan(a, a, h))


def spelled(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def test_attention_of_an_empty_batch() -> None:
    x = torch.arange(24.0).reshape(2, 1, 3, 4) / 24
    n = torch.export.Dim("n", min=0, max=8)
    f = weft.from_torch(spelled, (x, x, x), dynamic_shapes=[{0: n}] * 3)
    for each in (x, x[:0], x[:1]):
        torch.testing.assert_close(f(each, each, each), spelled(each, each, each))
    nothing = x[:0]
    for function in (spelled, torch.nn.functional.scaled_dot_product_attention):
        g = weft.from_torch(function, (nothing, nothing, nothing))
        assert g(nothing, nothing, nothing).shape == (0, 1, 3, 4)
