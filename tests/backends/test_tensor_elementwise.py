"""BINARY, MAP, WHERE and CONVERT say what PyTorch says, NaN and infinity included."""

from collections.abc import Callable
from typing import Any

import pytest
from tensor_run import DEVICES, SPECIAL, check, integers, normal, run, torch

import weft.graph as g
from weft.errors import GraphError, WeftError

BINARY: dict[str, Callable[..., Any]] = {
    "ADD": torch.add,
    "SUB": torch.sub,
    "MUL": torch.mul,
    "DIV": torch.div,
    "FLOOR_DIV": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "TRUNC_DIV": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "REMAINDER": torch.remainder,
    "FMOD": torch.fmod,
    "POW": torch.pow,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "ATAN2": torch.atan2,
    "EQ": torch.eq,
    "NE": torch.ne,
    "LT": torch.lt,
    "LE": torch.le,
    "GT": torch.gt,
    "GE": torch.ge,
    "LOGICAL_AND": torch.logical_and,
    "LOGICAL_OR": torch.logical_or,
    "LOGICAL_XOR": torch.logical_xor,
    "BIT_AND": torch.bitwise_and,
    "BIT_OR": torch.bitwise_or,
    "BIT_XOR": torch.bitwise_xor,
    "SHIFT_LEFT": torch.bitwise_left_shift,
    "SHIFT_RIGHT": torch.bitwise_right_shift,
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
ON_BITS = ("BIT_AND", "BIT_OR", "BIT_XOR", "SHIFT_LEFT", "SHIFT_RIGHT")
ON_FLOATS = ("DIV", "ATAN2")
SHIFTS = ("SHIFT_LEFT", "SHIFT_RIGHT")

# torch rounds each step to 16 bits, weft the result
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def binary(op: str) -> Callable[..., g.Tensor]:
    return lambda a, b: g.binary(op, a, b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [op for op in BINARY if op not in ON_BITS])
def test_binary_of_floats(op: str, device: str) -> None:
    for dtype in FLOATS:
        a, b = normal(3, 1, 1500, dtype=dtype, scale=3), normal(3, 4, 1, dtype=dtype, scale=2)
        if op == "POW":
            a = a.abs()
        got = run(binary(op), a, b, device=device)
        check(got, BINARY[op](a, b), TOLERANCE[dtype], TOLERANCE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [op for op in BINARY if op not in ON_BITS])
def test_binary_of_special_numbers(op: str, device: str) -> None:
    a = torch.tensor(SPECIAL)
    got = run(binary(op), a[:, None], a[None], device=device)
    want = BINARY[op](a[:, None], a[None])
    if op in ("REMAINDER", "FMOD"):
        # of a quotient beyond float32 torch gives a NaN where it works in vectors
        beyond = torch.isinf(a[:, None] / a[None]) & torch.isfinite(a[:, None]) & (a[None] != 0)
        got, want = got.reshape(want.shape)[~beyond], want[~beyond]
    check(got, want, 2e-6, 1e-37)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [op for op in BINARY if op not in ON_FLOATS])
def test_binary_of_integers(op: str, device: str) -> None:
    for dtype in INTEGERS:
        a, b = integers(120, 5, 1, 33, low=-120, dtype=dtype), integers(9, 5, 7, 1, dtype=dtype)
        b = torch.where(b == 0, -3, b).to(dtype)
        if op in SHIFTS:
            b = b.abs() % 7
        if op == "POW":
            a = a % 5 - 2
        check(run(binary(op), a, b, device=device), BINARY[op](a, b), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_integers_wrap(device: str) -> None:
    low = torch.tensor([-(2**63), 2**63 - 1])
    for op in ("ADD", "SUB", "MUL"):
        check(run(binary(op), low, low.flip(0), device=device), BINARY[op](low, low.flip(0)))
    small = torch.tensor([-128, 127, -128], dtype=torch.int8)
    other = torch.tensor([-1, 1, 2], dtype=torch.int8)
    for op in ("ADD", "MUL", "FLOOR_DIV", "TRUNC_DIV", "REMAINDER"):
        if device == "reference" and op in ("FLOOR_DIV", "TRUNC_DIV"):
            continue
        got = run(binary(op), small, other, device=device)
        want = BINARY[op](small.to(torch.int64), other.to(torch.int64)).to(torch.int8)
        check(got, want, exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_dividing_integers_by_zero_is_an_error(device: str) -> None:
    a = torch.tensor([1, 2, 3])
    with pytest.raises(WeftError, match="divided by 0"):
        run(binary("FLOOR_DIV"), a, torch.tensor([1, 0, 1]), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_binary_reads_any_strides(device: str) -> None:
    a, b = normal(6, 5, 4), normal(4, 5, 6)
    got = run(lambda a, b: g.binary("SUB", g.permute(a, 2, 1, 0, 3), b), a, b, device=device)
    check(got, a.permute(2, 1, 0) - b, exact=True)
    # a source narrower than a row, both ways
    c = normal(4, 1, 6)
    got = run(lambda a, c: g.binary("MUL", g.permute(a, 2, 1, 0, 3), c), a, c, device=device)
    check(got, a.permute(2, 1, 0) * c, exact=True)


MAP: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "abs": (torch.abs, ()),
    "neg": (torch.neg, ()),
    "sign": (torch.sign, ()),
    "clamp": (lambda x: torch.clamp(x, -0.75, 2), (-0.75, 2.0)),
    "round_even": (torch.round, ()),
    "exp2": (torch.exp2, ()),
    "log2": (torch.log2, ()),
    "log10": (torch.log10, ()),
    "log1p": (torch.log1p, ()),
    "rsqrt": (torch.rsqrt, ()),
    "reciprocal": (torch.reciprocal, ()),
    "tan": (torch.tan, ()),
    "asin": (torch.asin, ()),
    "acos": (torch.acos, ()),
    "atan": (torch.atan, ()),
    "sinh": (torch.sinh, ()),
    "cosh": (torch.cosh, ()),
    "asinh": (torch.asinh, ()),
    "acosh": (torch.acosh, ()),
    "atanh": (torch.atanh, ()),
    "erf": (torch.erf, ()),
    "erfc": (torch.erfc, ()),
    "elu": (torch.nn.functional.elu, (1.0, 1.0, 1.0)),
    "celu": (lambda x: torch.nn.functional.celu(x, 1.7), (1.7, 1.0, 1 / 1.7)),
    "selu": (torch.nn.functional.selu, (1.6732632423543772, 1.0507009873554805, 1.0)),
    "softplus": (lambda x: torch.nn.functional.softplus(x, 1.5, 10), (1.5, 10.0)),
    "softshrink": (lambda x: torch.nn.functional.softshrink(x, 0.4), (0.4,)),
    "hardshrink": (lambda x: torch.nn.functional.hardshrink(x, 0.4), (0.4,)),
    "threshold": (lambda x: torch.nn.functional.threshold(x, 0.2, -7.0), (0.2, -7.0)),
    "hardsigmoid": (torch.nn.functional.hardsigmoid, ()),
    "mish": (torch.nn.functional.mish, ()),
    "log_sigmoid": (torch.nn.functional.logsigmoid, ()),
    "leaky_relu": (lambda x: torch.nn.functional.leaky_relu(x, 0.1), (0.1,)),
    "pow": (lambda x: torch.pow(x, 2.5), (2.5,)),
    "gelu": (torch.nn.functional.gelu, ()),
    "gelu_tanh": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), ()),
    "logical_not": (torch.logical_not, ()),
    "is_nan": (torch.isnan, ()),
    "is_inf": (torch.isinf, ()),
    "is_finite": (torch.isfinite, ()),
    "floor": (torch.floor, ()),
    "ceil": (torch.ceil, ()),
    "trunc": (torch.trunc, ()),
    "exp": (torch.exp, ()),
    "expm1": (torch.expm1, ()),
    "tanh": (torch.tanh, ()),
    "sigmoid": (torch.sigmoid, ()),
    "silu": (torch.nn.functional.silu, ()),
    "hardswish": (torch.nn.functional.hardswish, ()),
    "sqrt": (torch.sqrt, ()),
    "log": (torch.log, ()),
    "sin": (torch.sin, ()),
    "cos": (torch.cos, ()),
    "square": (torch.square, ()),
    "relu": (torch.relu, ()),
    "relu6": (torch.nn.functional.relu6, ()),
}
KINDS = {"celu": "elu", "selu": "elu"}
UNSURE_AT_THE_ENDS = {
    # of an infinity torch's vectors give a NaN here, its scalars a number
    "mish": (float("-inf"),),
    "silu": (float("-inf"),),
    "gelu": (float("inf"), float("-inf"), -7.25),
    "gelu_tanh": (float("inf"), float("-inf"), -7.25),
    "hardswish": (float("-inf"), 3e38),
    "log_sigmoid": (),
}


def mapped(name: str) -> Callable[[g.Tensor], g.Tensor]:
    _, parameters = MAP[name]
    return lambda x: g.pointwise(KINDS.get(name, name), x, *parameters)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MAP)
def test_map_of_floats(name: str, device: str) -> None:
    for dtype in FLOATS:
        x = normal(4, 700, dtype=dtype, scale=2)
        got = run(mapped(name), x, device=device)
        # in float32: torch's own 16-bit kernels round in between
        want = MAP[name][0](x.float())
        check(got, want if want.dtype is torch.bool else want.to(dtype), TOLERANCE[dtype], 1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MAP)
def test_map_of_special_numbers(name: str, device: str) -> None:
    special = [v for v in SPECIAL if v not in UNSURE_AT_THE_ENDS.get(name, ())]
    x = torch.tensor(special)
    if name in ("sin", "cos", "tan"):
        x = x[x.abs() < 1e30]
    check(run(mapped(name), x, device=device), MAP[name][0](x), 3e-6, 1e-37)


@pytest.mark.parametrize("device", DEVICES)
def test_map_of_integers(device: str) -> None:
    for dtype in INTEGERS:
        x = integers(100, 6, 70, low=-100, dtype=dtype)
        for name, want in (
            ("abs", x.abs()),
            ("neg", -x),
            ("sign", x.sign()),
            ("bit_not", ~x),
            ("logical_not", x == 0),
        ):
            got = run(lambda t, n=name: g.map_elements(n, t), x, device=device)
            check(got, want, exact=True)
        got = run(lambda t: g.map_elements("clamp", t, -7, float("inf")), x, device=device)
        check(got, x.clamp(min=-7), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_where(device: str) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.float64):
        condition = integers(2, 4, 1, 37).bool()
        a, b = normal(1, 5, 37, dtype=dtype, scale=9), normal(4, 5, 1, dtype=dtype, scale=9)
        check(run(g.where, condition, a, b, device=device), torch.where(condition, a, b))


@pytest.mark.parametrize("device", DEVICES)
def test_convert(device: str) -> None:
    # opencl devices refuse f64
    types = (*FLOATS, *INTEGERS, *([] if device == "opencl" else [torch.float64]))
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
    for source in types:
        x = normal(3, 5, 70, dtype=torch.float32, scale=30).to(source)
        for to in types:
            text = str(to).removeprefix("torch.")
            dtype = names.get(text, text.replace("int", "i"))
            got = run(lambda t, d=dtype: g.convert(t, d), x, device=device)
            check(got, x.to(to), exact=True)
        got = run(lambda t: g.convert(t, "i8", boolean=True), x, device=device)
        check(got, x.bool(), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_results_may_take_over_the_memory_of_sources(device: str) -> None:
    x, row, condition = normal(6, 2500), normal(2500), integers(2, 6, 1).bool()

    def build(x: g.Tensor, row: g.Tensor, condition: g.Tensor) -> g.Tensor:
        y = g.map_elements("abs", x)
        y = g.binary("add", y, g.binary("mul", row, row))
        y = g.binary("sub", g.map_elements("neg", row), y)  # the second source is taken over
        y = g.where(condition, g.map_elements("clamp", y, -3, 3), y)
        return g.binary("max", y, g.binary("min", y, y))

    y = -row - (x.abs() + row * row)
    want = torch.where(condition, y.clamp(-3, 3), y)
    check(run(build, x, row, condition, device=device), want, 1e-6, 1e-6)


def test_shapes_and_types_are_checked() -> None:
    a, b = g.input("a", [3, 4]), g.input("b", [5, 4])
    with pytest.raises(GraphError, match="sizes differ in dimension 1"):
        g.binary("add", a, b)
    with pytest.raises(GraphError, match="one type"):
        g.binary("add", a, g.input("c", [3, 4], "i32"))
    with pytest.raises(GraphError, match="must be f32"):
        g.binary("div", g.input("c", [3], "i32"), g.input("d", [3], "i32"))
    with pytest.raises(GraphError, match="unknown BinaryOp"):
        g.binary("plus", a, a)
    n = g.Sym("n", 1, 9)
    x = g.binary("add", g.input("x", [n, 4]), g.input("y", [1, 4]))
    assert x.ne[1] == n.size
