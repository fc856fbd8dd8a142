"""The ops on plain tensors with sizes that vary from run to run."""

import pytest
from tensor_run import DEVICES, backend_of, integers, normal, torch

import weft.graph as g
from weft.compiler import compile
from weft.errors import WeftError
from weft.execute.session import Session

F = torch.nn.functional


@pytest.mark.parametrize("device", DEVICES)
def test_a_small_network_with_any_batch_and_width(device: str) -> None:
    n, w = g.Sym("n", 1, 5), g.Sym("w", 9, 40)
    kernel, bias, deep = normal(8, 3, 3, 3), normal(8), normal(8, 1, 3, 3)
    x = g.input("x", [n, 3, 12, w])
    y = g.conv_nd(
        x, g.constant(kernel.numpy(), "k"), g.constant(bias.numpy(), "b"), dims=2, padding=1
    )
    y = g.map_elements("gelu", y)
    y = g.conv_nd(y, g.constant(deep.numpy(), "d"), dims=2, groups=8, stride=2)
    y = g.pool_nd("max", y, [2, 2], 2, 1, ceil_mode=True)
    up = g.interpolate("linear", y, [21, 13])
    mean = g.adaptive_pool_nd("avg", y, [1, 1])
    padded = g.pad_nd(y, (2, 1), (1, 0), "replicate")
    outputs = {
        "pooled": y,
        "up": up,
        "mean": mean,
        "padded": padded,
        "sorted": g.sort_indices(y, 0),
        "sums": g.cumulate("sum", y, 1),
        "signs": g.binary("gt", y, mean),
    }
    for name, node in outputs.items():
        node.as_output(name)
    backend = backend_of(device)
    session = Session(compile(g.Graph(*outputs.values()), [backend]))
    for batch, width in ((5, 40), (1, 9), (3, 22), (2, 31)):
        data = normal(batch, 3, 12, width)
        got = session.run({"x": data.numpy()})
        z = F.conv2d(F.gelu(F.conv2d(data, kernel, bias, padding=1)), deep, stride=2, groups=8)
        z = F.max_pool2d(z, 2, 2, 1, ceil_mode=True)
        want = {
            "pooled": z,
            "up": F.interpolate(z, (13, 21), mode="bilinear"),
            "mean": z.mean((2, 3), keepdim=True),
            "padded": F.pad(z, (2, 1, 1, 0), mode="replicate"),
            "sums": z.cumsum(2),
        }
        for name, tensor in want.items():
            gradient = torch.from_numpy(got[name]).reshape(tensor.shape)
            torch.testing.assert_close(gradient, tensor, rtol=2e-5, atol=2e-5)
        pooled = torch.from_numpy(got["pooled"]).reshape(z.shape)
        order = torch.from_numpy(got["sorted"]).reshape(z.shape)
        assert torch.equal(order, pooled.sort(dim=-1, stable=True).indices)
        signs = torch.from_numpy(got["signs"]).reshape(z.shape)
        mean_got = torch.from_numpy(got["mean"]).reshape(batch, 8, 1, 1)
        assert torch.equal(signs.bool(), pooled > mean_got)


@pytest.mark.parametrize("device", DEVICES)
def test_indexing_with_any_number_of_indices(device: str) -> None:
    n = g.Sym("n", 1, 12)
    table = normal(20, 33)
    at = g.input("at", [n], "i64")
    rows = g.index(g.constant(table.numpy(), "table"), [None, at]).as_output("rows")
    put = g.index_put(g.constant(table.numpy(), "t"), [None, at], rows, accumulate=True)
    backend = backend_of(device)
    session = Session(compile(g.Graph(rows, put.as_output("put")), [backend]))
    for count in (12, 1, 7):
        indices = integers(20, count, low=-20)
        got = session.run({"at": indices.numpy()})
        assert torch.equal(torch.from_numpy(got["rows"]).reshape(count, 33), table[indices])
        want = table.index_put((indices,), table[indices], accumulate=True)
        torch.testing.assert_close(torch.from_numpy(got["put"]).reshape(20, 33), want)


@pytest.mark.parametrize("device", DEVICES)
def test_a_session_runs_again_after_a_bad_index(device: str) -> None:
    at = g.input("at", [4], "i64")
    rows = g.index(g.constant(normal(20, 33).numpy(), "table"), [None, at]).as_output("rows")
    backend = backend_of(device)
    session = Session(compile(g.Graph(rows), [backend]))
    good = integers(20, 4)
    for _ in range(3):
        with pytest.raises(WeftError, match=r"INDEX.*index 77 is outside -20 \.\. 19"):
            session.run({"at": torch.tensor([1, 77, 2, 3]).numpy()})
        got = session.run({"at": good.numpy()})["rows"]
        assert torch.equal(torch.from_numpy(got).reshape(4, 33), normal(20, 33)[good])
