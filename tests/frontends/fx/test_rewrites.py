"""Each rewrite on the pattern that it must match, and on one that it must not."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from tests.frontends.fx.exported import Function, check, convert, ops_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def ops(function: Callable[..., Any], *inputs: Any) -> dict[str, int]:
    """Checks a function against eager; its ops."""
    return dict(ops_of(check(function, *inputs).converted))


def rms(x: Any, dim: int = -1, eps: float = 1e-6) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + eps)


def test_rms_norm_matches() -> None:
    x = torch.randn(3, 8)
    assert ops(rms, x) == {"RMS_NORM": 1}
    assert ops(lambda x: torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * x, x) == {
        "RMS_NORM": 1
    }


def test_rms_norm_of_bfloat16_matches() -> None:
    def norm(x: Any) -> Any:
        return rms(x.float()).to(x.dtype)

    converted = convert(Function(norm), torch.randn(3, 8).bfloat16())
    assert ops_of(converted)["RMS_NORM"] == 1


def test_rms_norm_of_something_else_does_not_match() -> None:
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    assert "RMS_NORM" not in ops(lambda x: rms(x, 0), x)
    assert "RMS_NORM" not in ops(
        lambda x, y: y * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), x, y
    )
    assert "RMS_NORM" not in ops(
        lambda x: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6), x
    )


class Spelled(nn.Module):
    """Attention in products and a softmax, with a bias for each pair of positions."""

    def __init__(self, bias: Any, form: Callable[[Any, Any], Any], dim: int = -1) -> None:
        super().__init__()
        self.bias = nn.Parameter(bias)
        self.form, self.dim = form, dim

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        scores = self.form(q @ k.transpose(-2, -1), self.bias)
        return scores.softmax(self.dim) @ v


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda scores, bias: scores * 0.3,
    "divided, biased": lambda scores, bias: scores / 3.0 + bias,
    "bias first": lambda scores, bias: bias + scores,
}


def _heads(n: int, d: int) -> Any:
    return torch.randn(2, n, 3, d).transpose(1, 2)


@pytest.mark.parametrize("form", FORMS)
def test_spelled_attention_matches(form: str) -> None:
    sources = _heads(9, 16), _heads(11, 16), _heads(11, 8)
    counts = ops_of(check(Spelled(torch.randn(3, 9, 11), FORMS[form]), *sources).converted)
    assert counts["FLASH_ATTN_EXT"] == 1
    assert not {"SOFT_MAX", "MUL_MAT"} & set(counts)


@pytest.mark.parametrize(
    "other",
    [
        Spelled(torch.full((9, 9), -3e38), FORMS["bias first"]),
        Spelled(torch.full((9, 9), -torch.inf), FORMS["bias first"]),
        Spelled(torch.randn(9, 9), FORMS["scaled"], dim=2),
        Spelled(torch.randn(9, 9), lambda scores, bias: scores * bias),
        Spelled(torch.randn(9, 9), lambda scores, bias: scores + scores),
    ],
)
def test_other_products_with_weights_do_not_match(other: Any) -> None:
    counts = ops_of(check(other, _heads(9, 16), _heads(9, 16), _heads(9, 16)).converted)
    assert "FLASH_ATTN_EXT" not in counts


ROOT = (2 / torch.pi) ** 0.5

SPELLED: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x / 2**0.5)),
    "gelu, halved last": lambda x: 0.5 * (x * (torch.erf(0.7071067811865476 * x) + 1)),
    "tanh": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "tanh, products": lambda x: (
        x * (0.5 * (1.0 + torch.tanh(x * 0.79788456 * (1 + 0.044715 * x * x))))
    ),
    "tanh, cube": lambda x: 0.5 * x * (1 + torch.tanh((x * x * x * 0.044715 + x) * ROOT)),
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": lambda x: torch.sigmoid(x) * x,
}


@pytest.mark.parametrize("form", SPELLED)
def test_spelled_activations_match(form: str) -> None:
    counts = ops(SPELLED[form], 3 * torch.randn(5, 7))
    assert counts in ({"MAP": 1}, {"UNARY": 1})


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x * torch.sigmoid(1.7 * x),
        lambda x: x * torch.sigmoid(x + 1),
        lambda x: 2 * x * torch.sigmoid(x),
        lambda x: x * 0.5 * (1.0 + torch.erf(x / 3**0.5)),
        lambda x: x * 0.5 * (2.0 + torch.erf(x / 2**0.5)),
        lambda x: x * 0.5 * torch.add(1.0 + 0 * x, torch.erf(x / 2**0.5), alpha=2),
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 2.0)))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (1 + 0.044715 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * ROOT * (x + 0.044715 * x * x))),
        lambda x: x.sum(0) * torch.sigmoid(x),
        lambda x: x[:1] * torch.sigmoid(x),
    ],
)
def test_what_is_almost_an_activation_does_not_match(other: Any) -> None:
    counts = ops(other, 3 * torch.randn(5, 7))
    assert sum(counts.values()) > 1


def rotate_half(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Rotary(nn.Module):
    """Rotary embedding as Hugging Face models write it."""

    def __init__(self, turn: Callable[[Any], Any] = rotate_half, same: bool = True) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1 / 100 ** (torch.arange(0, 8, 2) / 8))
        self.turn, self.same = turn, same

    def forward(self, q: Any, positions: Any) -> Any:
        """q: [batch, heads, n, 8], positions: [1, n]."""
        freqs = positions[:, :, None].float() * self.inv_freq[None, None, :]
        emb = torch.cat((freqs, freqs if self.same else freqs * 2), dim=-1)
        cos, sin = (emb.cos() * 1.5).unsqueeze(1), (emb.sin() * 1.5).unsqueeze(1)
        return q * cos + self.turn(q) * sin


def test_rotary_matches() -> None:
    q, positions = torch.randn(2, 3, 5, 8), torch.tensor([[3, 4, 5, 6, 9]])
    op_names = ops_of(check(Rotary(), q, positions).converted)
    assert op_names["ROPE"] == 1
    assert not {"COS", "SIN", "CONCAT"} & set(op_names)


def test_rotary_of_another_rotation_does_not_match() -> None:
    def swapped(x: Any) -> Any:
        return torch.cat((x[..., 4:], -x[..., :4]), dim=-1)

    q, positions = torch.randn(2, 3, 5, 8), torch.arange(5)[None]
    assert "ROPE" not in ops_of(check(Rotary(swapped), q, positions).converted)
    assert "ROPE" not in ops_of(check(Rotary(same=False), q, positions).converted)


class TwoAngles(Rotary):
    """Cosines and sines that differ in one thing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.register_buffer("others", self.inv_freq * 0.5)
        self.what = what

    def forward(self, q: Any, positions: Any) -> Any:
        def angles(positions: Any, frequencies: Any) -> Any:
            freqs = positions[:, :, None].float() * frequencies[None, None, :]
            return torch.cat((freqs, freqs), dim=-1)

        turned = {
            "positions": angles(positions + 1, self.inv_freq),
            "frequencies": angles(positions, self.others),
            "scale": angles(positions, self.inv_freq),
        }[self.what]
        cos = (angles(positions, self.inv_freq).cos() * 1.5).unsqueeze(1)
        sin = (turned.sin() * (3.0 if self.what == "scale" else 1.5)).unsqueeze(1)
        return q * cos + rotate_half(q) * sin


@pytest.mark.parametrize("what", ["positions", "frequencies", "scale"])
def test_cosines_and_sines_of_different_angles_do_not_match(what: str) -> None:
    q, positions = torch.randn(2, 3, 5, 8), torch.tensor([[3, 4, 5, 6, 9]])
    assert "ROPE" not in ops_of(check(TwoAngles(what), q, positions).converted)


def test_gate_matches() -> None:
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    assert ops(lambda x, y: F.silu(x) * y, x, y) == {"GLU": 1}
    assert ops(lambda x, y: y * F.gelu(x), x, y) == {"GLU": 1}


def test_gate_of_another_shape_or_read_twice_does_not_match() -> None:
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    assert "GLU" not in ops(lambda x, y: F.silu(x) * y[:1], x, y)

    def twice(x: Any, y: Any) -> Any:
        a = F.silu(x)
        return a * y, a

    assert "GLU" not in ops(twice, x, y)


def conv(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6)
    norm.running_mean.normal_()  # type: ignore[union-attr]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), *more, norm).eval()


def test_batch_norm_goes_into_the_convolution() -> None:
    program = check(conv(), torch.randn(2, 4, 6, 6))
    assert dict(ops_of(program.converted)) == {"CONV_ND": 1}


def test_batch_norm_goes_into_a_linear_layer() -> None:
    m = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval()
    m[1].running_mean.normal_()  # type: ignore[union-attr]
    assert dict(ops_of(check(m, torch.randn(3, 4)).converted)) == {"MUL_MAT": 1, "ADD": 1}


def test_batch_norm_behind_something_else_is_a_factor_and_a_summand() -> None:
    op_names = ops_of(check(conv(nn.ReLU()), torch.randn(2, 4, 6, 6)).converted)
    assert op_names["CONV_ND"] == op_names["MUL"] == op_names["ADD"] == 1


def test_batch_norm_of_a_convolution_that_others_read_stays() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.m = conv()

        def forward(self, x: Any) -> Any:
            y = self.m[0](x)
            return y, self.m[1](y)

    op_names = ops_of(check(Two(), torch.randn(2, 4, 6, 6)).converted)
    assert op_names["MUL"] == op_names["ADD"] == 1


def repeat_kv(x: Any, times: int) -> Any:
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d)


def test_repeated_heads_are_not_repeated() -> None:
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)

    def attend(q: Any, k: Any) -> Any:
        return F.scaled_dot_product_attention(q, repeat_kv(k, 2), repeat_kv(k, 2)).transpose(1, 2)

    assert ops(attend, q, k) == {"FLASH_ATTN_EXT": 1}


def test_heads_repeated_in_another_order_are_copied() -> None:
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)

    def attend(q: Any, k: Any) -> Any:
        wide = k[:, None].expand(1, 2, 2, 5, 8).reshape(1, 4, 5, 8)
        return F.scaled_dot_product_attention(q, wide, wide)

    found = ops(attend, q, k)
    assert found["FLASH_ATTN_EXT"] == 1 and found["CONT"] >= 1


class Cache(nn.Module):
    """A cache of rows that is read after (or also before) it is written."""

    def __init__(self, before: bool = False) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1, 2, 8, 4))
        self.before = before

    def forward(self, x: Any, at: Any) -> Any:
        """x: [1, 2, n, 4], at: [n]."""
        old = self.rows.sum() if self.before else 0
        self.rows.index_copy_(2, at, x)
        return self.rows * 2 + old


def test_rows_of_a_cache_are_written_in_place() -> None:
    converted = convert(Cache(), torch.randn(1, 2, 3, 4), torch.tensor([1, 2, 5]))
    count = ops_of(converted)
    assert count["SET_ROWS"] == 1
    assert not {"CPY", "INDEX_PUT"} & set(count)


def test_rows_of_a_cache_may_be_counted_from_the_end() -> None:
    class Put(Cache):
        def forward(self, x: Any, at: Any) -> Any:
            """Writes by assignment, which also takes negative numbers."""
            self.rows[:, :, at] = x
            return self.rows * 2

    x, at = torch.randn(1, 2, 3, 4), torch.tensor([1, -3, -8])
    assert ops_of(check(Put(), x, at).converted)["SET_ROWS"] == 1


def test_what_is_read_before_stays_what_it_was() -> None:
    module, reference = Cache(before=True), Cache(before=True)
    x, at = torch.randn(1, 2, 3, 4), torch.tensor([1, 2, 5])
    program = check(module, x, at)
    reference(x, at)
    torch.testing.assert_close(program(x * 2, at), reference(x * 2, at))


def test_a_cache_that_is_read_afterwards_is_not_overwritten() -> None:
    class Late(Cache):
        def forward(self, x: Any, at: Any) -> Any:
            """The old rows are read after the new ones are made."""
            old = self.rows.clone()
            self.rows.index_copy_(2, at, x)
            return self.rows * 2, old.sin()

    module, reference = Late(), Late()
    x, at = torch.randn(1, 2, 3, 4), torch.tensor([1, 2, 5])
    program = check(module, x, at)
    assert "SET_ROWS" not in ops_of(program.converted)
    reference(x, at)
    torch.testing.assert_close(program(x * 2, at), reference(x * 2, at))


def test_a_pattern_does_not_reach_behind_a_write() -> None:
    class Gated(Cache):
        def forward(self, x: Any, at: Any) -> Any:
            """The gate reads the rows as they were."""
            gate = F.silu(self.rows)
            self.rows.index_copy_(2, at, x)
            return gate * self.rows

    module, reference = Gated(), Gated()
    x, at = torch.randn(1, 2, 3, 4), torch.tensor([1, 2, 5])
    program = check(module, x, at)
    reference(x, at)
    for factor in (2, 3):
        torch.testing.assert_close(program(x * factor, at), reference(x * factor, at))


# -- loops that torch.export has unrolled ----------------------------------------------------------


class Scan(nn.Module):
    """A selective scan as models write it; `time` is the dimension of positions."""

    def __init__(self, time: int = 2, *, sums: bool = False, exact: bool = True) -> None:
        super().__init__()
        self.rates = nn.Parameter(-torch.rand(12, 8) - 0.1)
        self.time, self.sums, self.exact = time, sums, exact

    def forward(self, x: Any, s: Any, columns: Any, rows: Any) -> Any:
        step = F.softplus(s) if self.exact else s.abs()
        at = (slice(None),) * self.time
        shape = (1, 12, 1, 8) if self.time == 2 else (1, 1, 12, 8)
        decay = torch.exp(self.rates.view(shape) * step[..., None])
        wide = columns[:, None] if self.time == 2 else columns[:, :, None]
        added = step[..., None] * wide * x[..., None]
        h, outputs = torch.zeros(x.shape[0], 12, 8), []
        for i in range(columns.shape[1]):
            h = decay[(*at, i)] * h + added[(*at, i)]
            if self.sums:
                outputs.append((h * rows[:, i].unsqueeze(1)).sum(-1))
            else:
                outputs.append(torch.matmul(h, rows[:, i].unsqueeze(-1))[:, :, 0])
        return torch.stack(outputs, dim=self.time), h


def scan_inputs(time: int, steps: int = 7) -> list[Any]:
    shape = (2, 12, steps) if time == 2 else (2, steps, 12)
    wide = (2, steps, 8)
    return [torch.randn(shape), torch.randn(shape), torch.randn(wide), torch.randn(wide)]


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("time", [1, 2])
def test_a_selective_scan_is_one_op(time: int, sums: bool) -> None:
    found = ops(Scan(time, sums=sums), *scan_inputs(time))
    assert found["SSM_SCAN"] == 1
    assert sum(found.values()) < 10


def test_a_selective_scan_of_any_number_of_sequences() -> None:
    n = torch.export.Dim("n", min=1, max=8)
    inputs = scan_inputs(2)
    module = Scan()
    f = weft.from_torch(module, tuple(inputs), dynamic_shapes=({0: n},) * 4)
    assert ops_of(f.converted)["SSM_SCAN"] == 1
    more = [torch.cat([v, v * 0.5, v * 0.1]) for v in inputs]
    for some in (inputs, more):
        torch.testing.assert_close(f(*some), module(*some), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("time", [1, 2])
def test_another_scan_is_a_linear_one(time: int) -> None:
    found = ops(Scan(time, exact=False), *scan_inputs(time))
    assert found["LINEAR_SCAN"] == 1
    assert sum(found.values()) < 20


def gated(x: Any, gate: Any, h: Any) -> Any:
    """A minimal GRU."""
    keep, added = 1 - torch.sigmoid(gate), torch.sigmoid(gate) * x
    outputs = []
    for i in range(x.shape[1]):
        h = h * keep[:, i] + added[:, i]
        outputs.append(h)
    return torch.stack(outputs, 1), h


def test_a_gated_recurrence_is_a_linear_scan() -> None:
    x = torch.randn(3, 9, 20)
    found = ops(gated, x, torch.randn(3, 9, 20), torch.randn(3, 20))
    assert found["LINEAR_SCAN"] == 1


def test_positions_may_be_written_into_a_tensor() -> None:
    def filled(x: Any, gate: Any, h: Any) -> Any:
        out = torch.zeros_like(x)
        for i in range(x.shape[1]):
            h = gate[:, i] * h
            h = h + x[:, i]
            out[:, i] = h
        return out

    x = torch.randn(3, 9, 20)
    found = ops(filled, x, torch.rand(3, 9, 20), torch.randn(3, 20))
    assert found["LINEAR_SCAN"] == 1
    assert sum(found.values()) < 6


def test_states_that_are_read_in_another_way_are_slices_of_a_scan() -> None:
    def summed(x: Any, gate: Any, h: Any) -> Any:
        total = torch.zeros_like(h)
        for i in range(x.shape[0]):
            h = gate[i] * h + x[i]
            total = total + torch.tanh(h)
        return total, h

    found = ops(summed, torch.randn(8, 3, 5), torch.rand(8, 3, 5), torch.randn(3, 5))
    assert found["LINEAR_SCAN"] == 1
    assert "MUL" not in found


def test_a_loop_may_begin_with_its_first_summand() -> None:
    def begun(x: Any, gate: Any) -> Any:
        h = x[:, 0]
        outputs = [h]
        for i in range(1, x.shape[1]):
            h = gate[:, i] * h + x[:, i]
            outputs.append(h)
        return torch.stack(outputs, 1), h

    found = ops(begun, torch.randn(3, 9, 5), torch.rand(3, 9, 5))
    assert found["LINEAR_SCAN"] == 1
    assert "MUL" not in found and "BINARY" not in found


def test_other_loops_are_no_scans() -> None:
    def backwards(x: Any, h: Any) -> Any:
        outputs = []
        for i in range(6):
            h = x[5 - i] * h + x[i]
            outputs.append(h)
        return torch.stack(outputs)

    def not_linear(x: Any, h: Any) -> Any:
        outputs = []
        for i in range(6):
            h = x[i] * torch.tanh(h) + x[i]
            outputs.append(h)
        return torch.stack(outputs)

    def part(x: Any, h: Any) -> Any:
        outputs = []
        for i in range(5):
            h = x[i] * h + x[i]
            outputs.append(h)
        return torch.stack(outputs)

    def out_of_order(x: Any, h: Any) -> Any:
        outputs = []
        for i in range(6):
            h = x[i] * h + x[i]
            outputs.append(h)
        return torch.stack([outputs[1], outputs[0], *outputs[2:]])

    x, h = torch.randn(6, 4), torch.randn(4)
    for function in (backwards, not_linear, part):
        assert "LINEAR_SCAN" not in ops(function, x, h)
    assert ops(out_of_order, x, h)["CONCAT"] == 5  # not the result as it is
