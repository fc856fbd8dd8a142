"""Recurrent layers (LSTM, GRU and plain ones) as RNN: an op for each layer and direction, whatever
the number of steps.

The product of the input with its weights is one MUL_MAT for all steps. Weights of the state get
whole panels of 32 rows for each gate, so that plans can pack them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, constant_leaf, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import dtype_name, is_float
from weft.frontends.fx.layout import Value, contiguous
from weft.frontends.fx.ops.matmul import linear_of
from weft.frontends.fx.ops.shape import joined
from weft.frontends.fx.registry import visitor
from weft.graph.size import Size
from weft.graph.tensor import Tensor

aten = torch.ops.aten

PANEL = 32
"""Rows of a panel of weights."""

CELLS = {
    aten.lstm.input: g.RnnCell.LSTM,
    aten.gru.input: g.RnnCell.GRU,
    aten.rnn_tanh.input: g.RnnCell.TANH,
    aten.rnn_relu.input: g.RnnCell.RELU,
}


def _rules(call: Call) -> str | None:
    if call.raw("train", False) and call.raw("dropout", 0.0) and call.raw("num_layers", 1) > 1:
        return "dropout between layers draws random numbers; call eval() on the module"
    for fake in call.fakes():
        if not is_float(fake.dtype):
            return f"recurrent layers of {dtype_name(fake.dtype)} are not supported"
    if call.has("b_ih") != call.has("b_hh"):
        return "one of the two biases is missing"
    return None


@visitor(*CELLS, check=_rules)
def layers(b: Builder, call: Call) -> list[Value | None]:
    """All layers of a module: the output of the last one, and the last states of each."""
    cell = CELLS[call.op]
    states = call.values("hx") if cell is g.RnnCell.LSTM else [call.value("hx")]
    n_layers, n_directions = int(call.raw("num_layers", 1)), 1 + bool(call.raw("bidirectional"))
    params = call.values("params")
    count = len(params) // (n_layers * n_directions)
    is_batch_first = bool(call.raw("batch_first", False))
    x = call.value("input")
    x = x.permuted((1, 0, 2)) if is_batch_first else x
    ends: list[list[Value]] = []
    for _ in range(n_layers):
        outputs = []
        for direction in range(n_directions):
            i = len(ends)
            output, *last = layer_of(
                b, cell, x, [s.entry(i) for s in states], params[i * count : (i + 1) * count],
                has_biases=bool(call.raw("has_biases")), reverse=direction == 1,
            )  # fmt: skip
            outputs.append(output)
            ends.append(last)
        x = outputs[0] if n_directions == 1 else joined(b, outputs, 2, x.dtype)
    y = x.permuted((1, 0, 2)) if is_batch_first else x
    return [
        y,
        *(
            joined(b, [e[k].viewed((1, *e[k].shape), (0, *e[k].strides)) for e in ends], 0, x.dtype)
            if call.is_read(k + 1)
            else None
            for k in range(len(states))
        ),
    ]


def layer_of(
    b: Builder,
    cell: g.RnnCell,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    *,
    has_biases: bool,
    reverse: bool,
) -> list[Value]:
    """A layer in one direction over x [steps, sequences, inputs]: its outputs, its last state and,
    of an LSTM, the last cells.

    `params` are weights of inputs [gates units, inputs] and of the state [gates units, width], two
    biases where there are some, and the projection of an LSTM that has one."""
    w_in, w_state, *more = params
    bias_in, bias = (more.pop(0), b.flat(more.pop(0))) if has_biases else (None, None)
    proj = b.dense(more[0]) if more else None
    n_steps, n_seqs, _ = x.shape
    rows, width = w_state.shape
    order = x.reading_order
    products = linear_of(
        b, x.permuted(order), w_in, bias_in, [(n_steps, n_seqs, rows)[d] for d in order]
    ).permuted([order.index(d) for d in range(3)])
    h, *cells = (b.dense(s) for s in states)
    c = cells[0] if cells else None
    w = _weights(b, w_state, cell.gates)
    result = g.rnn(w, b.rows(products), h, c, bias, proj, cell=cell, reverse=reverse)
    whole = Value.whole(result, x.dtype, (result.n_elements,))

    def part(shape: tuple[Size, ...], offset: Size) -> Value:
        return whole.viewed(shape, contiguous(shape), offset)

    step = n_seqs * width
    found = [
        part((n_steps, n_seqs, width), 0),
        part((n_seqs, width), 0 if reverse else (n_steps - 1) * step),
    ]
    if c is not None:
        found.append(part((n_seqs, rows // cell.gates), n_steps * step))
    return found


def _weights(b: Builder, v: Value, gates: int) -> Tensor:
    """Weights of the state as [width, units, gates]; constants with rows of zeros behind the units
    up to whole panels. Layers that share weights share the tensor."""
    key = ("recurrent weights", v.tensor, v.offset, v.shape, v.strides)
    if key not in b.memo:
        rows, width = v.shape
        ready = b.computed(v)
        array = b.array(ready)
        if array is None:
            b.memo[key] = reshaped_to(b.dense(ready), (width, rows // gates, gates))
        else:
            stacked = array.reshape(gates, -1, array.shape[1])
            lacking = -stacked.shape[1] % PANEL
            stacked = np.pad(stacked, ((0, 0), (0, lacking), (0, 0))) if lacking else stacked
            name = v.tensor.name and f"{v.tensor.name}.gates"
            b.memo[key] = constant_leaf(np.ascontiguousarray(stacked), ready.tensor.dtype, name)
    return b.memo[key]


SINGLE = {
    aten.lstm_cell.default: g.RnnCell.LSTM,
    aten.gru_cell.default: g.RnnCell.GRU,
    aten.rnn_tanh_cell.default: g.RnnCell.TANH,
    aten.rnn_relu_cell.default: g.RnnCell.RELU,
}


@visitor(*SINGLE, check=_rules)
def single(b: Builder, call: Call) -> Value | list[Value | None]:
    """One step of a layer: the state, and the cells of an LSTM."""
    cell = SINGLE[call.op]
    x = call.value("input")
    names = [n for n in ("w_ih", "w_hh", "b_ih", "b_hh") if call.has(n)]
    states = call.values("hx") if cell is g.RnnCell.LSTM else [call.value("hx")]
    _, *ends = layer_of(
        b, cell, x.viewed((1, *x.shape), (0, *x.strides)), states, [call.value(n) for n in names],
        has_biases=len(names) == 4, reverse=False,
    )  # fmt: skip
    return [*ends] if cell is g.RnnCell.LSTM else ends[0]
