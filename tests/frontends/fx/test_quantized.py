"""Programs with quantized weights and activations, as torchao and PT2E export them."""

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")

import weft  # noqa: E402
from tests.frontends.fx.exported import Function, check, convert  # noqa: E402
from weft.errors import UnsupportedOpError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

Q = torch.ops.quantized_decomposed


class Layer(torch.nn.Module):
    """A linear layer whose weight is dequantized in every call."""

    def __init__(self, bits: int = 8, zero: int = 0, group: int = 0, dynamic: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(bits)
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
        n = 64 // group if group else 1
        self.register_buffer(
            "w", torch.randint(low, high, (16, 64), generator=generator, dtype=torch.int8)
        )
        scales = torch.rand((16, n), generator=generator) * 0.01 + 0.001
        # scales of blocks are float16
        self.register_buffer("s", scales.half().float().squeeze(-1))
        self.register_buffer("z", torch.full_like(self.s, zero, dtype=torch.int64))
        self.group, self.dynamic = group, dynamic

    def forward(self, x: Any) -> Any:
        """x: [n, 64]."""
        i8 = (-128, 127, torch.int8)
        if self.dynamic:
            s, z = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
            q = Q.quantize_per_token(x, s, z, *i8)
            x = Q.dequantize_per_token(q, s, z, *i8, torch.float32)
        if self.group:
            w = Q.dequantize_per_channel_group(
                self.w, self.s, self.z, *i8, self.group, torch.float32
            )
        else:
            w = Q.dequantize_per_channel(self.w, self.s, self.z, 0, *i8)
        return torch.nn.functional.linear(x, w)


def types(module: torch.nn.Module, *inputs: Any) -> set[str]:
    """Checks a module with activations that are not rounded; types of its leaves."""
    program = weft.from_torch(module.eval(), inputs, activations="f32")
    torch.testing.assert_close(program(*inputs), module(*inputs), rtol=1e-3, atol=1e-4)
    return {t.dtype.name for t in program.graph.leaves}


def test_bytes_become_q8_0() -> None:
    assert types(Layer(), torch.randn(3, 64)) == {"f32", "q8_0"}


def test_four_bits_in_groups_become_q4_0() -> None:
    assert types(Layer(bits=4, group=32), torch.randn(3, 64)) == {"f32", "q4_0"}


def test_a_zero_point_is_decoded() -> None:
    assert types(Layer(zero=3), torch.randn(3, 64)) == {"f32"}


def test_dynamic_activations_are_left_to_the_device() -> None:
    x = torch.randn(3, 64)
    module = Layer(dynamic=True).eval()
    converted = convert(module, x)
    assert [t.op.name for t in converted.graph.nodes if not t.op.is_view] == ["MUL_MAT"]
    exact = weft.from_torch(module, (x,), activations="f32")(x)
    torch.testing.assert_close(exact, Layer()(x), rtol=1e-3, atol=1e-4)


def test_activations_are_rounded_only_where_the_program_does_so() -> None:
    x = torch.randn(3, 64)
    found = {
        (dynamic, how): weft.from_torch(Layer(dynamic=dynamic).eval(), (x,), **options)(x)
        for dynamic in (False, True)
        for how, options in [
            ("default", {}), ("f32", {"activations": "f32"}), ("native", {"activations": "native"})
        ]
    }  # fmt: skip
    assert torch.equal(found[False, "default"], found[False, "f32"])
    assert not torch.equal(found[False, "default"], found[False, "native"])
    assert torch.equal(found[True, "default"], found[True, "native"])


def test_static_activations_are_rounded() -> None:
    def rounded(x: Any) -> Any:
        q = Q.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
        return Q.dequantize_per_tensor(q, 0.05, 3, -128, 127, torch.int8), q

    check(rounded, torch.randn(3, 64) * 3)


def test_static_activations_of_unsigned_bytes_are_rounded() -> None:
    def rounded(x: Any) -> Any:
        q = Q.quantize_per_tensor(x, 0.05, 131, 0, 255, torch.uint8)
        return Q.dequantize_per_tensor(q, 0.05, 131, 0, 255, torch.uint8), q

    check(rounded, torch.randn(3, 64) * 6)


def test_dynamic_numbers_that_are_read_are_refused() -> None:
    def numbers(x: Any) -> Any:
        s, z = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
        return Q.quantize_per_token(x, s, z, -128, 127, torch.int8)

    with pytest.raises(UnsupportedOpError, match="used as they are"):
        convert(Function(numbers), torch.randn(3, 64))


class Cast(torch.nn.Module):
    """A product with int8 numbers that are made float in every call."""

    def __init__(self, width: int, *, given: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        low, high = -128, 128
        numbers = torch.randint(low, high, (16, width), generator=generator, dtype=torch.int8)
        self.given = given
        self.register_buffer("w", numbers)

    def forward(self, x: Any, w: Any) -> Any:
        """x: [n, width]; w: [16, width]."""
        return torch.mm(x, (w if self.given else self.w).t().to(torch.float32))


@pytest.mark.parametrize(
    ("width", "given", "kinds"),
    [(256, False, {"f32", "q8_0"}), (250, False, {"f32"}), (256, True, {"f32", "i8"})],
)
def test_int8_weights_are_blocks(width: int, given: bool, kinds: set[str]) -> None:
    module = Cast(width, given=given)
    assert types(module, torch.randn(3, width), module.w.clone()) == kinds


def quantized(config: Any, *widths: int) -> torch.nn.Module:
    """Linear layers, with ReLU between them, as torchao quantizes them."""
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for n, m in itertools.pairwise(widths):
        layers += [torch.nn.Linear(n, m), torch.nn.ReLU()]
    module = torch.nn.Sequential(*layers[:-1]).eval()
    quantize_(module, config)
    return module


@pytest.mark.parametrize("rows", [(1,), (5,), (2, 3)], ids=str)
def test_dynamic_int8_is_a_product_of_bytes(rows: tuple[int, ...]) -> None:
    """Every number is that of torchao: sums of integers are exact, and so are the steps around."""
    ao = pytest.importorskip("torchao.quantization")
    if not getattr(pytest.importorskip("torchao.utils"), "_cpu_is_vnni_supported", bool)():
        pytest.skip("torchao multiplies floats on this processor")
    module = quantized(ao.Int8DynamicActivationInt8WeightConfig(), 64, 96, 40)
    x = torch.randn(*rows, 64) * torch.logspace(-3, 2, rows[0]).reshape(-1, *[1 for _ in rows])
    x[0, ..., :] = 0  # whose scale is the least one
    f = weft.from_torch(module, (x,), host=False)
    assert torch.equal(f(x), module(x))
    names = [t.op.name for t in f.graph.nodes]
    assert names.count("MUL_MAT_INT") == 2 and "MUL_MAT" not in names


def test_int8_weights_alone_run_on_a_given_device() -> None:
    ao = pytest.importorskip("torchao.quantization")
    module, x = quantized(ao.Int8WeightOnlyConfig(), 64, 40), torch.randn(3, 64)
    f = weft.from_torch(module, (x,), devices=[weft.backends.make_backend("cpu", n_threads=1)])
    torch.testing.assert_close(f(x), module(x), rtol=1e-2, atol=1e-2)


def moved(x: Any, w: Any, by: int = 128, times: int = 128) -> Any:
    unsigned = (x.to(torch.int32) + by).to(torch.uint8)
    return torch._int_mm(unsigned, w) - w.sum(0, keepdim=True, dtype=torch.int32) * times


def test_moved_bytes_are_the_product_of_signed_ones() -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((17, 32), (32, 24)))
    expected = (x.long() @ w.long()).int()
    f = weft.from_torch(Function(moved), (x, w), host=False)
    assert torch.equal(f(x, w), expected)
    assert {t.dtype.name for t in f.graph.leaves} == {"i8"}
    other = weft.from_torch(Function(lambda x, w: moved(x, w, times=127)), (x, w), host=False)
    assert torch.equal(other(x, w), expected + w.sum(0, dtype=torch.int32))
    with pytest.raises(UnsupportedOpError, match="wrap at 256"):
        weft.from_torch(Function(lambda x, w: moved(x, w, by=129)), (x, w), host=False)
