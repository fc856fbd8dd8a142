"""Recurrent layers against eager PyTorch: one op for each layer and direction."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import weft  # noqa: E402
from tests.frontends.fx.exported import check, convert, ops_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:The tensor attribute:UserWarning",  # PyTorch on the weights that its layers list
    "ignore:LSTM with projections:UserWarning",
)


def layers(kind: Any, units: int = 40, **options: Any) -> Any:
    torch.manual_seed(units)
    return kind(24, units, **options).eval()


def states(net: Any, n_seqs: int) -> Any:
    """First states of a module: one, or two of an LSTM."""
    n = net.num_layers * (1 + net.bidirectional)
    h = torch.randn(n, n_seqs, net.proj_size or net.hidden_size)
    return (h, torch.randn(n, n_seqs, net.hidden_size)) if isinstance(net, nn.LSTM) else h


MODULES = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"proj_size": 17, "num_layers": 2}),
    (nn.LSTM, {"proj_size": 36, "bidirectional": True, "bias": False}),
    (nn.GRU, {"num_layers": 2}),
    (nn.GRU, {"bidirectional": True, "bias": False}),
    (nn.RNN, {"bidirectional": True}),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 3, "bias": False}),
]


@pytest.mark.parametrize(("kind", "options"), MODULES)
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_give_what_pytorch_gives(
    kind: Any, options: dict[str, Any], batch_first: bool
) -> None:
    net = layers(kind, batch_first=batch_first, **options)
    x = torch.randn((3, 7, 24) if batch_first else (7, 3, 24))
    check(net, x)
    check(net, x, states(net, 3))


@pytest.mark.parametrize("units", [1, 31, 32, 100])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_any_number_of_units_and_sequences(kind: Any, units: int) -> None:
    for n_seqs in (1, 2, 4, 9):
        check(layers(kind, units), torch.randn(5, n_seqs, 24))
    check(layers(kind, units), torch.randn(5, 24))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_steps_and_sequences_may_be_dynamic(kind: Any) -> None:
    net = layers(kind, num_layers=2, bidirectional=True)
    n, t = torch.export.Dim("n", min=1, max=6), torch.export.Dim("t", min=1, max=50)
    f = weft.from_torch(net, (torch.randn(9, 2, 24),), dynamic_shapes={"input": {0: t, 1: n}})
    for shape in ((9, 2), (50, 6), (1, 1)):
        x = torch.randn(*shape, 24)
        got, want = (torch.utils._pytree.tree_leaves(run(x)) for run in (f, net))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_layer_is_one_op_whatever_the_steps() -> None:
    for steps in (10, 300):
        found = ops_of(convert(layers(nn.LSTM, num_layers=2), torch.randn(steps, 1, 24)))
        assert found["RNN"] == found["MUL_MAT"] == 2
        assert sum(found.values()) < 20


def test_weights_of_sixteen_bits() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        net = layers(nn.GRU).to(dtype)
        x = torch.randn(6, 2, 24, dtype=dtype)
        f = weft.from_torch(net, (x,))
        torch.testing.assert_close(f(x)[0], net(x)[0], rtol=0.02, atol=0.02)


def test_weights_that_are_computed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers(nn.LSTM)

        def forward(self, x: Any, scale: Any) -> Any:
            weights = [p * scale for p in self.net._flat_weights]
            zeros = torch.zeros(1, x.shape[1], 40)
            return torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, False, False, False)

    check(Scaled(), torch.randn(5, 2, 24), torch.tensor(0.7))


def test_dropout_between_layers_is_pytorchs() -> None:
    net = layers(nn.LSTM, num_layers=2, dropout=0.5).train()
    x = torch.randn(4, 2, 24)
    with pytest.warns(UserWarning, match="its dropout draws random numbers"):
        f = weft.from_torch(net, (x,))
    torch.manual_seed(3)
    got = f(x)[0]
    torch.manual_seed(3)
    torch.testing.assert_close(got, net(x)[0], rtol=1e-4, atol=1e-5)


class Steps(nn.Module):
    """A layer as a loop over single steps, which torch.export unrolls."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any, state: Any) -> Any:
        outputs = []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs), state


CELLS = [
    nn.LSTMCell(24, 40),
    nn.GRUCell(24, 40, bias=False),
    nn.RNNCell(24, 40),
    nn.RNNCell(24, 40, nonlinearity="relu"),
]


@pytest.mark.parametrize("cell", CELLS)
def test_single_steps(cell: Any) -> None:
    h = torch.randn(3, 40)
    state = (h, torch.randn(3, 40)) if isinstance(cell, nn.LSTMCell) else h
    found = check(Steps(cell), torch.randn(6, 3, 24), state)
    assert ops_of(found.converted)["RNN"] == 1  # the loop is rolled up


def test_steps_that_read_what_they_gave() -> None:
    class Fed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(40, 40)

        def forward(self, x: Any) -> Any:
            outputs = [x]
            for _ in range(5):
                outputs.append(self.cell(outputs[-1], outputs[-1] * 0.5))
            return torch.stack(outputs[1:])

    assert ops_of(check(Fed(), torch.randn(2, 40)).converted)["RNN"] == 5
