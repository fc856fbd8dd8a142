"""Every family of visitors against eager PyTorch, on the cpu device."""

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from tests.frontends.fx.exported import Function, check  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def r(*shape: int) -> Any:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def i(high: int, *shape: int, dtype: Any = torch.int64) -> Any:
    """Random integers from 0."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high), dtype=dtype)


def many_unary(x: Any) -> Any:
    p = x.abs() + 0.1
    return (
        x.exp(), p.log(), p.log2(), p.log10(), p.log1p(), p.sqrt(), p.rsqrt(), p.reciprocal(),
        x.sin(), x.cos(), x.tanh(), x.sigmoid(), x.erf(), x.floor(), x.ceil(), x.trunc(),
        x.round(), x.round(decimals=2), x.neg(), x.sign(), x.square(), x**3, x.clamp(-0.5, 0.5),
        x.clamp(min=0.2), x.expm1(), torch.isnan(x), x.atan(), x.sinh(),
    )  # fmt: skip


def many_activations(x: Any) -> Any:
    return (
        F.relu(x), F.leaky_relu(x, 0.1), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x),
        F.elu(x, 0.7), F.celu(x, 0.5), F.selu(x), F.softplus(x, 2.0), F.hardswish(x),
        F.hardsigmoid(x), F.hardtanh(x), F.relu6(x), F.mish(x), F.logsigmoid(x),
        F.softshrink(x), F.hardshrink(x), F.threshold(x, 0.1, 3.0), F.glu(x, 1), F.softsign(x),
    )  # fmt: skip


def many_binary(x: Any, y: Any) -> Any:
    return (
        x + y, x - y, x * y, x / y, 2 - x, 2 / y, torch.add(x, y, alpha=0.5), x.maximum(y),
        x.minimum(y), torch.atan2(x, y), torch.div(x, y, rounding_mode="floor"),
        torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), torch.remainder(x, y),
        x.abs() ** y, x > y, x <= y, x == y, (x > 0) & (y > 0), (x > 0) | (y > 0), ~(x > 0),
        torch.where(x > y, x, y), x.masked_fill(y > 0, -1.0), torch.where(x > 0, 1.0, x),
    )  # fmt: skip


def many_integers(x: Any, y: Any) -> Any:
    return (
        x + y, x * 3, x - y, x // y, x % y, x & y, x | y, x ^ y, x > y, x / y, x.float() * 0.5,
        x.sum(), x.to(torch.int32), x.bool(), -x, x.abs(), x.max(), x.cumsum(0), x.float().int(),
    )  # fmt: skip


def many_reductions(x: Any) -> Any:
    return (
        x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.mean(-1), x.mean((1, 2)), x.amax(1),
        x.amin((0, 1)), x.prod(2), (x > 0).any(1), (x > 0).all(), x.argmax(1), x.argmin(),
        x.max(1), x.min(2), x.var(1), x.std((0, 1)), x.cumsum(1), x.logsumexp(2),
        torch.linalg.vector_norm(x, dim=1), x.sort(1), x.topk(2, 1), x.median(1).values,
        torch.var_mean(x, 2), x.round().cummax(1), x.round().cummin(-1), x[0, 0, 0].cummax(0),
    )  # fmt: skip


def many_views(x: Any) -> Any:
    return (
        x.view(6, 20), x.permute(2, 0, 1), x.transpose(0, 2).reshape(5, 24), x[:, 1:3], x[:, ::2],
        x[1], x[..., -1], x.unsqueeze(1).expand(-1, 3, -1, -1), x.split(2, 1), x.chunk(2, 2),
        x.unbind(0), torch.cat([x, x * 2], 1), torch.stack([x, x], 2), x.repeat(2, 1, 3),
        x.flip(1), x.roll(1, 2), x.flatten(), x.diagonal(0, 1, 2), x.tril(), x.triu(1),
        x.permute(1, 0, 2).contiguous().view(4, 30), x.diagonal(-1), x.diagonal(2, 2, 0),
        x.diagonal(-2, 2, 1), x.tril(-1), x.triu(-2), x.flip(0, 2), x.roll((-1, 2), (0, 1)),
    )  # fmt: skip


def many_slices(x: Any) -> Any:
    return (
        x[..., ::2], x[..., ::3], x[:, 1::2], x[:, 1:4:2], x[:, 1:-1:3], x[-3:-1], x[..., 5:99:2],
        x[..., 4:2], x[:, 9:], x[:, -9:2], x[-1, -2, -3], x[1:3, ..., -1], x.narrow(2, -3, 2),
        x[..., ::2][:, ::2].flip(2), x[..., 1:4] @ x[:, :3, 3:5],
    )  # fmt: skip


def many_indices(x: Any, ids: Any) -> Any:
    return (
        x[ids], x[:, ids], x[ids, ids], x[:, ids, ids], x[ids, :, ids], x.index_select(1, ids),
        x.gather(0, ids.view(1, 3, 1).expand(1, 3, 5)), x.scatter(0, ids.view(3, 1, 1), 7.0),
        x.index_put((ids,), x[:3] * 2), x.index_put((ids, ids), x[0, 0], accumulate=True),
        x.slice_scatter(x[:, :2] * 2, 1, 1, 3), x.select_scatter(x[0], 0, 2),
        F.pad(x, (1, 2)), F.pad(x, (1, 1, 2, 0), value=3.0), F.pad(x, (2, 1), mode="reflect"),
        F.pad(x, (2, 1), mode="replicate"), F.embedding(ids, x[0]), x.index_copy(0, ids, x[:3]),
        torch.searchsorted(x.sort(-1).values, x * 2, right=True),
        torch.bucketize(ids, torch.tensor([0, 2, 5])),
        torch.searchsorted(x[0], x[0] * 3, sorter=x[0].argsort(), side="right", out_int32=True),
    )  # fmt: skip


def many_products(x: Any, y: Any) -> Any:
    w = y[0]
    return (
        x @ y, x @ w, x[0] @ w, x[0, 0] @ w, x[0] @ w[:, 0], torch.bmm(x, y),
        torch.addmm(w[0], x[0], w, beta=0.5, alpha=2), F.linear(x, w.t(), w[0]),
        torch.baddbmm(x[:, :, :1], x, y), torch.einsum("bik,bkj->bij", x, y),
        x.unsqueeze(1) @ y, torch.matmul(x[:, None, None], y[:, None]), torch.outer(w[0], w[1]),
        torch.cdist(x, x[:, :2] + 1), torch.cdist(x[:1, None], x[None], p=1.0),
        torch.cdist(w, w * 2, p=math.inf), torch.addmv(x[0, :, 0], x[0], w[:, 0], alpha=0.5),
        torch.addbmm(x[0, :, :1], x, y, beta=2, alpha=-1), torch.addmv(x[0, 0, :1], x[0], w[:, 0]),
    )  # fmt: skip


def many_products_of_integers(x: Any, y: Any) -> Any:
    w = y[0]
    return (
        x @ y, x @ w, torch.bmm(x, y), torch.mm(x[0], w), x[0] @ y, x[0, 0] @ w, w @ w[0],
        x[0, 0] @ y[0, :, 0], x.unsqueeze(1) @ y, torch.addmm(w[0], x[0], w, beta=3, alpha=2),
        torch.baddbmm(x[:, :, :1], x, y), torch.einsum("bik,bkj->bij", x, y), F.linear(x, w.t()),
        torch.addmm(w[0], x[0], w, beta=0), torch.tensordot(x, y, ([2], [1])),
        torch.addmv(x[0, :, 0], x[0], w[:, 0], beta=-2), torch.addbmm(w[:3], x, y, alpha=3),
    )  # fmt: skip


def many_norms(x: Any) -> Any:
    w = torch.linspace(0.5, 1.5, 6)
    return (
        F.layer_norm(x, (6,), w, w), F.layer_norm(x, (4, 6)), F.rms_norm(x, (6,), w, 1e-6),
        F.group_norm(x, 2, w[:4], w[:4]), F.softmax(x, 1), F.softmax(x, -1), F.log_softmax(x, 1),
        F.batch_norm(x, w[:4], w[:4], w[:4], w[:4]), F.instance_norm(x), F.normalize(x, dim=2),
    )  # fmt: skip


def many_images(x: Any) -> Any:
    k = torch.linspace(-1, 1, 4 * 2 * 9).view(4, 2, 3, 3)
    return (
        F.conv2d(x, k, padding=1, stride=2, groups=2), F.conv2d(x, k.view(2, 4, 3, 3), dilation=2),
        F.conv_transpose2d(x, k, stride=2, output_padding=1), F.max_pool2d(x, 2),
        F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 3, 2, ceil_mode=True),
        F.adaptive_avg_pool2d(x, 3), F.adaptive_max_pool2d(x, (2, 3)),
        F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 11), mode="bilinear"),
        F.interpolate(x, scale_factor=1.5, mode="bicubic"), F.pixel_shuffle(x, 2),
        F.conv1d(x[:, :, 0], k[:, :, 0].reshape(2, 4, 3)), F.max_pool1d(x[0], 2),
        F.avg_pool1d(x[0], 2),
        F.conv3d(x[None], k.view(1, 1, 2, 4, 9)[..., :3].expand(2, 1, 2, 4, 3)),
    )  # fmt: skip


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "unary": (many_unary, (r(2, 3, 4),)),
    "unary of a scalar": (many_unary, (r(),)),
    "unary in five dimensions": (many_unary, (r(2, 1, 3, 2, 2),)),
    "activations": (many_activations, (r(3, 4),)),
    "binary": (many_binary, (r(3, 4), r(3, 4))),
    "binary, both broadcast": (many_binary, (r(3, 1, 5), r(2, 1, 4, 1))),
    "binary with a scalar": (many_binary, (r(), r(2, 3))),
    "binary in six dimensions": (many_binary, (r(2, 1, 2, 1, 2, 3), r(1, 3, 1, 2, 1, 3))),
    "binary, permuted": (
        lambda x, y: many_binary(x.permute(2, 0, 1), y),
        (r(3, 4, 5), r(5, 3, 4)),
    ),
    "integers": (many_integers, (i(50, 3, 4), i(9, 3, 4) + 1)),
    "integers of 32 bits": (
        many_integers,
        (i(50, 6, dtype=torch.int32), i(9, 6, dtype=torch.int32) + 1),
    ),
    "reductions": (many_reductions, (r(3, 4, 5),)),
    "reductions in five dimensions": (
        lambda x: (x.sum((0, 2, 4)), x.mean((1, 3)), x.amax((0, 2, 4), keepdim=True)),
        (r(2, 3, 2, 3, 2),),
    ),
    "views": (many_views, (r(4, 6, 5),)),
    "slices": (many_slices, (r(4, 5, 7),)),
    "six dimensions permuted": (
        lambda x: (x.permute(5, 3, 1, 4, 2, 0), x.permute(4, 2, 0, 5, 3, 1) * 2),
        (r(2, 3, 2, 3, 2, 2),),
    ),
    "windows of an image": (
        lambda x: x.view(2, 4, 2, 4, 2, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 3),
        (r(2, 8, 8, 3),),
    ),
    "indices": (many_indices, (r(4, 4, 5), torch.tensor([2, 0, 1]))),
    "scattered": (
        lambda x, at, y: (
            x.scatter(1, at, y), x.scatter_add(1, at, y), x.scatter_add(0, at, y),
            x.index_put((at[0], at[1]), y[0, :3], accumulate=True), x.index_put((at[0],), y[:, :4]),
        ),
        (r(3, 4), torch.tensor([[2, 0, 1], [1, 1, 2], [0, 2, 2]]), r(3, 7)),
    ),
    "negative indices": (lambda x, n: (x[n], x[:, n]), (r(4, 5), torch.tensor([-1, 0]))),
    "scattered by a mask": (
        lambda x, y: (
            x.masked_scatter(x > 0, y), x.masked_scatter(x[:, :1] > 0, y), y[:3].masked_scatter(
            torch.tensor(True), x), x.long().masked_scatter(x < 0, y.long() * 9), x[0, 0]
            .masked_scatter(x > 0, y), x.masked_scatter(x > 9, y[:0]),
        ),
        (r(3, 5), r(20)),
    ),
    "products": (many_products, (r(2, 3, 4), r(2, 4, 5))),
    "products of integers": (many_products_of_integers, (i(9, 2, 3, 4) - 4, i(7, 2, 4, 5) - 3)),
    "products of integers that wrap around": (
        many_products_of_integers,
        (i(99, 2, 3, 4, dtype=torch.int8), i(98, 2, 4, 5, dtype=torch.int8)),
    ),
    "products of int8 as int32": (
        lambda x, y: torch._int_mm(x, y),
        (i(127, 24, 16, dtype=torch.int8) - 90, i(126, 16, 8, dtype=torch.int8) - 90),
    ),
    "norms": (many_norms, (r(2, 4, 6),)),
    "images": (many_images, (r(1, 4, 8, 8),)),
    "histograms": (
        lambda x: (torch.histc(x, 5, -1.5, 2), torch.histc(torch.arange(7.0), 4, 0, 3)),
        (r(40),),
    ),
    "windows that overlap": (
        lambda x: (
            x.unfold(1, 3, 1) * 2, x.unfold(-1, 2, 2), x.permute(3, 1, 0, 2).unfold(0, 2, 1),
        ),
        (r(2, 5, 3, 4),),
    ),
    "of a number and a NaN the number": (
        lambda x, y: (torch.fmax(x, y), torch.fmin(x, y), torch.fmax(x, y[:1])),
        (torch.tensor([1, float("nan"), 3]), torch.tensor([float("nan"), 2, 2])),
    ),
    "norms of many orders": (
        lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, math.inf, -math.inf)],
        (torch.tensor([[1.0, 0, -2], [0, 0, 3]]),),
    ),
    "sampled": (
        lambda x, at: F.grid_sample(x, at, align_corners=False),
        (r(1, 2, 4, 5), r(1, 3, 3, 2).clamp(-1.1, 1.1)),
    ),
    "constants of float64": (
        lambda x: x + torch.linspace(0, 1, 3, dtype=torch.float64).exp2().float(),
        (r(3),),
    ),
    "generated": (
        lambda x: (
            torch.arange(5) + x, torch.zeros(3, 2), torch.full((2,), 7), torch.eye(3),
            torch.ones_like(x), torch.linspace(0, 1, 5), x.new_full((2, 2), 3),
        ),
        (r(5),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_family(name: str) -> None:
    function, inputs = CASES[name]
    check(function, *inputs)


@pytest.mark.parametrize("divisor", [3.0, -7.0, 0.1, 10.0, 49.0, 8.0, 0.25])
def test_a_quotient_by_a_number_is_rounded_once(divisor: float) -> None:
    x = r(500)
    assert torch.equal(weft.from_torch(Function(lambda x: x / divisor), (x,))(x), x / divisor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floats_of_16_bits_are_computed_in_float32(dtype: Any) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    tolerance = 4e-3 if dtype is torch.float16 else 3e-2
    check(m.to(dtype), r(3, 16).to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "boolean", "numbers"])
def test_attention(causal: bool, mask: str | None) -> None:
    if causal and mask:
        return
    q, k, v = r(2, 4, 5, 8), r(2, 2, 7, 8), r(2, 2, 7, 8)
    given = {None: None, "boolean": r(2, 1, 5, 7) > -1, "numbers": r(1, 4, 5, 7)}[mask]

    def attend(q: Any, k: Any, v: Any) -> Any:
        return tuple(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=given, is_causal=causal, enable_gqa=True, scale=scale
            )
            for scale in (None, 0.125, 2.0)
        )

    check(attend, q, k, v, rtol=1e-3, atol=1e-4)


def test_a_recurrent_network() -> None:
    rnn = torch.nn.LSTM(4, 8, batch_first=True)
    check(lambda x: rnn(x)[0], r(2, 3, 4))


def numbers_from_sizes(x: Any) -> Any:
    n, m = x.shape
    return (
        x * n, x / m, n - x, x + n * m, x.sum() / x.numel(), x * m**-0.5, x > n,
        torch.where(x > 0, x, n), torch.full((2,), n), x.masked_fill(x > 0, m), torch.arange(3) + n,
    )  # fmt: skip


def test_numbers_that_are_computed_from_sizes() -> None:
    n, m = torch.export.Dim("n", min=1, max=8), torch.export.Dim("m", min=2, max=9)
    module = Function(numbers_from_sizes)
    f = weft.from_torch(module, (r(3, 4),), dynamic_shapes=(({0: n, 1: m},),))
    for shape in ((3, 4), (1, 2), (8, 9)):
        torch.testing.assert_close(f(r(*shape)), module(r(*shape)))


def test_padding_and_matrices_of_dynamic_sizes() -> None:
    def widened(x: Any) -> Any:
        n = x.shape[1]
        return (
            F.pad(x, (0, (8 - n % 8) % 8)),
            F.pad(x, (n, 1), value=2.0),
            torch.eye(n),
            x.new_ones(n),
        )

    n = torch.export.Dim("n", min=2, max=20)
    f = weft.from_torch(Function(widened), (r(2, 5),), dynamic_shapes=(({1: n},),))
    for columns in (2, 5, 8, 20):
        torch.testing.assert_close(f(r(2, columns)), widened(r(2, columns)))


def test_spread_along_a_dynamic_dimension() -> None:
    module = Function(lambda x: (x.var(0), x.std((0, 1)), x.var(1, unbiased=False)))
    n = torch.export.Dim("n", min=2, max=8)
    f = weft.from_torch(module, (r(3, 4),), dynamic_shapes=(({0: n},),))
    for rows in (2, 3, 8):
        torch.testing.assert_close(f(r(rows, 4)), module(r(rows, 4)))


def test_rows_times_the_matrix_of_their_group() -> None:
    def groups(x: Any, w: Any, ends: Any) -> Any:
        return F.grouped_mm(x, w, offs=ends)

    x, w = r(7, 16).bfloat16(), r(3, 16, 8).bfloat16()
    for ends in ([2, 2, 7], [0, 4, 7], [7, 7, 7]):
        check(groups, x, w, torch.tensor(ends, dtype=torch.int32), rtol=2e-2, atol=2e-2)


def test_many_parts_are_joined_in_pairs() -> None:
    """A part is copied a few times, not once for each part behind it."""

    def depth(t: Any) -> int:
        return max([depth(s) for s in t.src if s is not None], default=0) + (t.op.name == "CONCAT")

    f = check(lambda x: torch.stack([x * k for k in range(45)], 1), r(3, 4))
    [result] = f.graph.outputs.values()
    assert depth(result) == 6
