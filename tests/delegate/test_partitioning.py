"""What lowering leaves alone: the caller's program, parts whose sizes nobody tells. Policies."""

from dataclasses import asdict, replace

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from tests.report.test_timeline import page_data
from weft.errors import WeftError
from weft.graph.size import Expr, Sym, symbols
from weft.report import report_html
from weft.schedule.profile import load_profile
from weft_executorch import Options
from weft_executorch.describe import describe, describe_text
from weft_executorch.dynamic_sizes import linear
from weft_executorch.report import report_data

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


class Tables(nn.Module):
    """A parameter, both kinds of buffer, a constant tensor and one that export lifts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("kept", torch.full((4,), 2.0))
        self.register_buffer("made", torch.ones(4), persistent=False)
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.scale + self.made - self.kept
        return y + torch.tensor([3.0, 2.0, 1.0, 0.0])


def test_the_exported_program_is_whole_after_lowering():
    from executorch.exir import to_edge_transform_and_lower

    from weft_executorch import WeftPartitioner

    torch.manual_seed(0)
    module, x = Tables().eval(), torch.randn(2, 4)
    with torch.no_grad():
        exported = export(module, (x,))
        tables = [set(exported.constants), set(exported.state_dict)]
        lowered = to_edge_transform_and_lower(exported, partitioner=[WeftPartitioner()])
        assert [set(exported.constants), set(exported.state_dict)] == tables
        assert torch.equal(exported.module()(x), module(x))
    assert not lowered.exported_program().constants


N, M = Expr({(Sym("n", 1, 9),): 1}), Expr({(Sym("m", 1, 9),): 1})


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (N + 0, (1, 0)),
        (3 * N, (3, 0)),
        (2 * N + 5, (2, 5)),
        (N - 1, (1, -1)),
        (20 - N, None),  # the delegate divides by what it is multiplied with, rounding down
        (20 - 2 * N, None),
        (N * N, None),
        (N * N + N, None),
        (N // 2, None),
        (N + M, None),
        (N * M, None),
        (M + 1, None),
        (7, None),
    ],
    ids=str,
)
def test_a_size_tells_a_symbol_where_it_grows_with_it_alone(size, told):
    (n,) = symbols(N)
    assert linear(size, n) == told


class ReturnsItsTable(nn.Module):
    """Its buffer is an output, beside what is computed with it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.table + 1, self.table


def test_a_buffer_that_is_returned_stays_outside(lower, same):
    module, x = ReturnsItsTable().eval(), torch.randn(2, 4)
    lowered = lower(module, (x,))
    assert lowered.delegates() == 1
    signature = lowered.edge.exported_program("forward").graph_signature
    assert list(signature.inputs_to_buffers.values()) == ["table"]
    same(lowered.method(), module, x)


class Strides(nn.Module):
    """Behind the sigmoid, sizes of the image are known only as (h - 3) // 2 + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y + torch.sigmoid(y))


def test_a_part_that_is_not_told_its_sizes_stays_outside(lower, same):
    sizes = {2: Dim("h", min=12, max=64), 3: Dim("w", min=12, max=64)}
    module = Strides().eval()
    lowered = lower(
        module,
        (torch.randn(1, 3, 32, 32),),
        dynamic_shapes=(sizes,),
        not_ops=["aten.sigmoid.default"],
    )
    assert lowered.delegates() == 1
    reasons = [why for _, why in lowered.partitioner.refused.values()]
    assert sum("no input of the part" in why for why in reasons) == 2, reasons
    method = lowered.method()
    for h, w in [(12, 64), (33, 20)]:
        same(method, module, torch.randn(1, 3, h, w))


def test_the_cost_policy_takes_a_profile(lower, same, tmp_path):
    module, x = (
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).eval(),
        torch.ones(2, 32),
    )
    machine = load_profile("desktop-rtx4090")
    cpu = replace(machine, devices=machine.devices[-1:], memories={"RAM": machine.memories["RAM"]},
                  links={})  # fmt: skip
    path = tmp_path / "machine.toml"
    path.write_text(cpu.to_toml())
    for profile in (path, str(path), cpu, cpu.to_toml(), "desktop-rtx4090"):
        options = Options(policy="cost", profile=profile)
        assert Options.from_specs(options.to_specs()).machine() == options.machine()
    lowered = lower(module, (x,), Options(policy="cost", profile=path))
    assert lowered.left() == []
    same(lowered.method(), module, x)
    (tmp_path / "one.pte").write_bytes(lowered.pte)
    (line,) = predicted(describe(tmp_path / "one.pte"))
    assert "a call on the cpu of" in line and "devices" not in line


def predicted(description):
    lines = describe_text(description).splitlines()
    return [line.strip() for line in lines if line.strip().startswith("predicted:")]


@pytest.mark.parametrize("width", [16, 1024])
def test_the_cost_policy_weighs_all_devices_of_the_machine(lower, tmp_path, width):
    """A large layer would be faster on a GPU, a small one is not worth its start."""
    options = Options(policy="cost", profile="desktop-rtx4090")
    module = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
    path = tmp_path / "model.pte"
    path.write_bytes(lower(module.eval(), (torch.ones(64, width),), options).pte)
    description = describe(path)
    found = description["methods"][0]["parts"][0]["predicted"]
    machine = load_profile("desktop-rtx4090")
    assert found["machine"] == machine.name and found["devices"] == ["gpu", "cpu"]
    (line,) = predicted(description)
    assert line in "\n".join(page_data(report_html(report_data(path)))["text"])
    if width == 16:
        assert found["least_seconds"] == found["seconds"] and "the least over all" in line
    else:
        assert 0 < found["least_seconds"] < found["seconds"] / 3 and "no delegate" in line
    plain = lower(module.eval(), (torch.ones(64, width),))
    path.write_bytes(plain.pte)
    assert describe(path)["methods"][0]["parts"][0]["predicted"] is None
    assert not predicted(describe(path))


def test_the_cost_policy_says_what_is_missing(tmp_path):
    with pytest.raises(WeftError, match=r"policy 'cost' needs profile=.*weft calibrate"):
        Options(policy="cost")
    with pytest.raises(WeftError, match=r"a profile is for policy='cost'"):
        Options(profile="desktop-rtx4090")
    with pytest.raises(WeftError, match=r"absent.toml"):
        Options(policy="cost", profile=tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("format = 3\n")
    with pytest.raises(WeftError, match=r"bad.toml"):
        Options(policy="cost", profile=tmp_path / "bad.toml")


class Outside(nn.Module):
    """Has an op in the middle that weft has no kernel for, and one behind it that only follows."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.second(hidden + 1) * hidden.double().sum().float()


def test_the_report_is_a_page_of_all_nodes(lower):
    partitioner = lower(Outside().eval(), (torch.randn(2, 8),)).partitioner
    nodes = partitioner.nodes
    assert [(n.op, n.part) for n in nodes if n.part == 0][:2] == [
        ("aten.linear.default", 0), ("aten.relu.default", 0)
    ]  # fmt: skip
    assert {n.part for n in nodes} == {0, 1, None}
    parts = [n.part for n in nodes if n.part is not None]
    assert parts == sorted(parts)
    assert nodes[0].result == "float32[2, 8]" and nodes[0].reason == ""
    left = {n.node: (n.op, n.reason) for n in nodes if n.part is None}
    assert left == partitioner.refused and len(left) == 3
    data = page_data(partitioner.report_html())
    assert data["kind"] == "partition" and data["nodes"] == [asdict(n) for n in nodes]
    assert data["text"][0] == f"weft runs {len(parts)} of {len(nodes)} nodes in 2 parts."
    assert data["text"][1:3] == ["", "3 nodes left out:"]
    assert len(data["text"]) == 3 + len(set(left.values()))
    assert "srcdoc=" in partitioner._repr_html_()


def test_the_report_of_no_program(lower):
    from weft_executorch import WeftPartitioner

    partitioner = WeftPartitioner()
    with pytest.raises(WeftError, match="No program was partitioned"):
        partitioner.report_html()
    assert partitioner._repr_html_().startswith("<pre>No program was partitioned")
    whole = lower(nn.Linear(8, 8).eval(), (torch.randn(2, 8),)).partitioner
    assert page_data(whole.report_html("a < b"))["text"] == ["weft runs 1 of 1 node in 1 part."]
    assert "a &lt; b" in whole.report_html("a < b")
