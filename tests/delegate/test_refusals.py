"""What is refused says why and what helps; what a user would expect of uint8 is delegated."""

import re

import pytest
import torch
from torch import nn

import weft
from weft.errors import WeftError

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def bytes_():
    return torch.arange(250, 274).to(torch.uint8).reshape(2, 12)  # goes past 255


TAKEN = {
    "images become floats": (lambda x: (x.float() / 255 - 0.5) * 2, bytes_),
    "compared": (lambda x, y: (x > 7) & (x != y), bytes_, lambda: bytes_().flip(1)),
    "moved": (lambda x: torch.cat([x.permute(1, 0)[3:], x.t()]), bytes_),
    "from floats": (lambda x: (x * 255).to(torch.uint8), lambda: torch.rand(2, 12)),
    "chosen": (lambda x, y: torch.where(x > y, x, y), bytes_, lambda: bytes_().flip(1)),
    "as numbers": (lambda x: x.to(torch.int64) * 3, bytes_),
}


@pytest.mark.parametrize("name", TAKEN)
def test_uint8(lower, name):
    function, *make = TAKEN[name]
    module, inputs = Calls(function), tuple(m() for m in make)
    want = module(*inputs)
    got = weft.from_torch(module, inputs)(*inputs)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want)
    lowered = lower(module, inputs)
    assert lowered.left() == [], lowered.partitioner.report()
    torch.testing.assert_close(lowered.method().execute(list(inputs))[0], want)


def test_a_uint8_buffer(lower, same):
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", bytes_())

        def forward(self, v):
            return v + self.table.float()

    module = Adds().eval()
    torch.testing.assert_close(weft.from_torch(module, (x(),))(value := x()), module(value))
    lowered = lower(module, (x(),))
    assert lowered.left() == [], lowered.partitioner.report()
    same(lowered.method(), module, x())


def x():
    return torch.randn(2, 12)


LEFT = {
    "float64": (nn.Linear(12, 4).double(), lambda: x().double(), r"call \.float\(\)"),
    "uint8 sums": (Calls(lambda v: v + v), bytes_, "convert it first"),
    "integers to uint8": (Calls(lambda v: v.to(torch.uint8)), lambda: torch.arange(300), "wrap"),
    "masked reads": (Calls(lambda v: v[v > 0] * 2), x, "depends on data.*masked_fill"),
    "a number of a tensor": (Calls(lambda v: v * v.sum().item()), x, "read out of a tensor"),
    "nonzero": (Calls(torch.nonzero), x, "depends on data|no conversion"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_outside_with_a_reason(lower, name):
    module, make, why = LEFT[name]
    value = make()
    lowered = lower(module, (value,))
    assert lowered.left() != []
    reasons = " ".join(reason for _, reason in lowered.partitioner.refused.values())
    assert re.search(why, reasons), reasons
    alone = lower(module, (value,), ops=())
    assert alone.delegates() == 0
    want = alone.method().execute([value])[0]
    torch.testing.assert_close(lowered.method().execute([value])[0], want)
    with pytest.raises(WeftError, match=why):
        weft.from_torch(module, (value,), host=False)


def test_the_rest_of_a_program_with_nonzero_is_delegated(lower):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, 12)

        def forward(self, v):
            y = torch.relu(self.linear(v))
            return y * 2, torch.nonzero(y > 0)

    module = Both().eval()
    value = x()
    lowered = lower(module, (value,))
    assert lowered.delegates() >= 1
    reasons = [reason for _, reason in lowered.partitioner.refused.values()]
    assert sum("masked_fill" in r for r in reasons) == 1, reasons  # the others follow it
    assert all(r.startswith("follows ") for r in reasons[1:]), reasons
    # not beside eager, whose numbers ExecuTorch does not give on its own either
    alone = lower(module, (value,), ops=()).method().execute([value])
    for got, want in zip(lowered.method().execute([value]), alone, strict=True):
        torch.testing.assert_close(got, want)


def test_integers_divided_by_a_number(lower, same):
    module = Calls(lambda v: v // 2 + v % 3)  # the Edge dialect has no floor_divide of two types
    value = torch.arange(-6, 6, dtype=torch.int32)
    lowered = lower(module, (value,))
    assert lowered.left() == [], lowered.partitioner.report()
    same(lowered.method(), module, value)


def test_a_weight_that_is_a_result(lower, same):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, 4)

        def forward(self, v):
            return self.linear(v), self.linear.weight

    module = Tied().eval()
    lowered = lower(module, (x(),))
    assert lowered.left() == [], lowered.partitioner.report()
    same(lowered.method(), module, x())
