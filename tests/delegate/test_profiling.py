"""ExecuTorch's Inspector sees the steps of a delegate by name, with times, nodes and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]

EDGE = "edge_dialect_exported_program"
BUFFER = 1 << 22
"""Bytes for intermediate outputs; 0 for times alone."""


@dataclass
class Run:
    """What ExecuTorch's tools say about calls of a model."""

    inspector: Any
    outputs: list[torch.Tensor]

    def events(self) -> list[Any]:
        """The events of steps of the delegates."""
        blocks = self.inspector.event_blocks
        return [e for block in blocks for e in block.events if e.is_delegated_op]

    def gaps(self, reference: str | None = None) -> dict[tuple[str, ...], float]:
        """The names of the nodes of each step -> the largest difference of its result."""
        from executorch.devtools.inspector.numerical_comparator import NumericalComparatorBase

        class Largest(NumericalComparatorBase):
            def element_compare(self, a: Any, b: Any) -> float:
                want, got = torch.as_tensor(a).double(), torch.as_tensor(b).double()
                assert want.shape == got.shape
                return float((want - got).abs().max())

        frame = self.inspector.calculate_numeric_gap(Largest(), reference_graph=reference)
        return {tuple(row.aot_ops): max(row.gap) for row in frame.itertuples()}


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., Run]:
    """Lowers a module, runs it under an event tracer and gives the files to the Inspector."""

    def run(
        module: nn.Module,
        inputs: Any,
        options: Any = None,
        calls: int = 1,
        buffer: int = BUFFER,
        **how: Any,
    ) -> Run:
        from executorch.devtools import Inspector
        from executorch.exir import to_edge_transform_and_lower
        from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
        from torch.export import export

        from weft_executorch import WeftPartitioner

        torch.manual_seed(0)
        with torch.no_grad():
            edge = to_edge_transform_and_lower(
                export(module.eval(), inputs),
                partitioner=[WeftPartitioner(options, **how)],
                generate_etrecord=True,
            )
            program = edge.to_executorch()
        record = program.get_etrecord()
        record.update_representative_inputs(inputs)
        files = [str(tmp_path / name) for name in ("model.etrecord", "run.etdp", "run.bin")]
        record.save(files[0])
        loaded = _load_for_executorch_from_buffer(
            program.buffer, enable_etdump=True, debug_buffer_size=buffer
        )
        for _ in range(calls):
            outputs = [torch.clone(t) for t in loaded.run_method("forward", inputs)]
        loaded.write_etdump_result_to_file(*files[1:])
        debug = {"debug_buffer_path": files[2]} if buffer else {}
        inspector = Inspector(etdump_path=files[1], etrecord=files[0], **debug)
        plain = _load_for_executorch_from_buffer(program.buffer).run_method("forward", inputs)
        assert all(torch.equal(a, b) for a, b in zip(outputs, plain, strict=True))
        return Run(inspector, outputs)

    return run


def test_the_inspector_shows_each_step_with_its_nodes(traced):
    # the first product and its activation are one step
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1))
    events = traced(module, (torch.randn(2, 8),), calls=3, buffer=0).events()
    assert {e.name: e.op_types for e in events} == {
        "MUL_MAT aten_relu_default": ["aten.linear.default", "aten.relu.default"],
        "MUL_MAT aten_linear_default_1": ["aten.linear.default"],
        "SOFT_MAX aten_softmax_int": ["aten.softmax.int"],
    }
    assert all(e.delegate_backend_name == "WeftBackend" for e in events)
    assert all(len(e.perf_data.raw) == 3 and min(e.perf_data.raw) > 0 for e in events)
    assert not any(e.debug_data for e in events)


def test_the_numeric_gap_of_each_step(traced):
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1))
    run = traced(module, (torch.randn(2, 8),), calls=2)
    gaps = run.gaps()
    assert list(gaps) == [("linear", "relu"), ("linear_1",), ("softmax",)]
    assert max(gaps.values()) < 1e-6
    edge = run.gaps(EDGE)
    assert ("aten_linear_default", "aten_relu_default") in edge and max(edge.values()) < 1e-6
    (last,) = run.events()[-1].debug_data
    assert torch.equal(last, run.outputs[0])
    for metric in ("MSE", "L1", "SNR"):
        assert len(run.inspector.calculate_numeric_gap(metric)) == 3


@pytest.mark.parametrize("last", [False, True])
def test_the_numeric_gap_of_a_conv_net(traced, last):
    """Images that weft keeps with channels innermost, and weights that have the norm in them."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    x = torch.randn(2, 3, 16, 16)
    gaps = traced(module, (x.to(memory_format=torch.channels_last) if last else x,)).gaps()
    assert list(gaps) == [
        ("conv2d", "batch_norm", "relu"), ("max_pool2d",), ("conv2d_1", "hardtanh"),
        ("adaptive_avg_pool2d",), ("flatten", "linear"),
    ]  # fmt: skip
    assert max(gaps.values()) < 1e-5


@pytest.mark.parametrize(
    ("weights", "low", "high"), [("f32", 0, 1e-5), ("q8_0", 1e-4, 0.02), ("q4_0", 1e-2, 0.3)]
)
def test_the_numeric_gap_shows_what_a_weight_format_costs(traced, weights, low, high):
    from weft_executorch import Options

    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    run = traced(module, (torch.randn(2, 64),), Options(weights=weights))
    gaps = run.gaps()
    assert list(gaps) == [("linear", "relu"), ("linear_1",)]
    assert all(low <= gap < high for gap in gaps.values())
    quantized = [e for e in run.events() if e.name.startswith("QUANTIZE")]
    assert [e.op_types for e in quantized] == [["aten.linear.default"]] * 2 * (weights != "f32")


def test_the_numeric_gap_over_several_delegates(traced):
    module = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Softmax(-1)
    )
    run = traced(module, (torch.randn(3, 8),), not_ops=["aten.tanh.default"])
    assert len({e._instruction_id for e in run.events()}) == 3
    gaps = run.gaps()
    assert set(gaps) == {("linear", "relu"), ("tanh",), ("linear_1",), ("tanh_1",), ("softmax",)}
    assert max(gaps.values()) < 1e-6


class Results(nn.Module):
    """Returns a hidden value, the last one and a view, and keeps one for the next call."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.register_buffer("kept", torch.zeros(3, 4))

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        y = self.second(hidden) + self.kept
        self.kept.copy_(y.sigmoid())
        return hidden, y, hidden.t()


def test_the_numeric_gap_of_a_part_with_several_outputs(traced):
    """The Inspector looks for several handles in each of its events."""
    gaps = traced(Results(), (torch.randn(3, 8),)).gaps()
    assert set(gaps) == {("linear", "relu"), ("linear_1",), ("add",), ("sigmoid",), ("t",)}
    assert max(gaps.values()) < 1e-6


class Types(nn.Module):
    """Values of many types and shapes, among them some that ETDump cannot hold."""

    def forward(self, x):
        half, brain = x.half() * 2, x.bfloat16() * 2
        small, large = x.to(torch.int8) + 1, x.to(torch.int64) + 1
        mask = (x > 0) & (x < 1)
        moved = x[:, None].expand(4, 3, 8).permute(2, 1, 0).exp()
        best, places = torch.max(x, 1)
        sums = torch.where(mask, half.float(), brain.float()).sum() + moved.sum() + best.sum()
        return sums + small.sum() + large.sum() + places.sum()


@pytest.mark.parametrize("reference", [None, EDGE])
def test_values_of_all_types(traced, reference):
    # numbers that bfloat16 has: weft rounds to it only in memory
    run = traced(Types(), (torch.randint(-16, 16, (4, 8)) / 8,))
    gaps = run.gaps(reference)
    assert len(gaps) > 10 and max(gaps.values()) < 1e-5
    types = {t.dtype for e in run.events() for t in e.debug_data}
    assert types == {torch.float32, torch.bool, torch.int8, torch.int64}
    (both,) = [e.debug_data for e in run.events() if len(e.debug_data) == 2]
    assert [t.dtype for t in both] == [torch.float32, torch.int64]


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: setattr(value, "step", 99),
        lambda value: setattr(value, "step", -1),
        lambda value: setattr(value, "scalarType", -1),
        lambda value: setattr(value, "strides", value.dims[:1]),
        lambda value: setattr(value.dims[0], "expr", 7),
        lambda value: setattr(value, "dims", value.dims * 9),
    ],
)
def test_files_with_damaged_values_are_refused(lower, rewritten, damage):
    rewritten(lambda program: damage(program.steps[-1].values[0]))
    lowered = lower(nn.Linear(8, 8).eval(), (torch.randn(2, 8),))
    with pytest.raises(RuntimeError, match="0x:23"):  # InvalidProgram
        lowered.method()


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: setattr(value.dims[0], "value", 3),
        lambda value: setattr(value.dims[1], "value", -8),
        lambda value: setattr(value.dims[0], "value", 1 << 62),
        lambda value: setattr(value, "offset", value.dims[0]),
        lambda value: setattr(value, "scalarType", 8),
    ],
)
def test_values_outside_of_what_a_step_gives_are_left_out(traced, rewritten, damage):
    rewritten(lambda program: damage(program.steps[0].values[0]))
    events = traced(nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), (torch.randn(2, 8),)).events()
    assert [e.name for e in events if e.debug_data] == ["SOFT_MAX aten_softmax_int"]
    assert len(events) == 2


def test_values_of_blocks_are_left_out(traced, rewritten):
    """A damaged file may name a step whose result ExecuTorch has no type for."""
    from weft_executorch import Options

    def change(program):
        assert program.steps[0].name.startswith("QUANTIZE")
        program.steps[-1].values[0].step = 0

    rewritten(change)
    events = traced(nn.Linear(64, 32), (torch.randn(2, 64),), Options(weights="q8_0")).events()
    assert len(events) == 2 and not any(e.debug_data for e in events)


def test_every_name_is_that_of_one_step(lower, traced):
    layers = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()) for _ in range(16)]
    run = traced(nn.Sequential(*layers, nn.LSTM(8, 8)), (torch.randn(2, 3, 8),))
    names = [e.name for e in run.events()]
    assert len(names) == len(set(names)) > 40
    run.gaps(), run.gaps(EDGE)


def test_a_gguf_model_gives_the_result_of_each_step(tmp_path):
    from executorch.devtools import Inspector
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    from weft_executorch.gguf import export_gguf

    model = Path(__file__).parents[2] / "examples" / "weft-demo.gguf"
    export_gguf(model, tmp_path / "demo.pte", n_ctx=64)
    pte = (tmp_path / "demo.pte").read_bytes()  # the runtime does not keep it
    loaded = _load_for_executorch_from_buffer(pte, enable_etdump=True, debug_buffer_size=BUFFER)
    tokens, positions = torch.tensor([[1, 2, 3]]), torch.arange(3)
    (logits,) = loaded.run_method("forward", (tokens, positions))
    loaded.write_etdump_result_to_file(str(tmp_path / "etdp"), str(tmp_path / "bin"))
    run = Run(
        Inspector(etdump_path=str(tmp_path / "etdp"), debug_buffer_path=str(tmp_path / "bin")),
        [logits],
    )
    values = {e.name: e.debug_data for e in run.events()}
    assert values["GET_ROWS embd"][0].shape[0] == 3
    assert any(
        t.shape == logits.shape and torch.equal(t, logits) for v in values.values() for t in v
    )
