"""`weft explain MODEL.pte`: the delegated graph, what was left out and why."""

import json

import pytest
import torch
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

from weft.cli.app import app
from weft.errors import FormatError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def path(lower, tmp_path):
    from weft_executorch import Options

    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.LeakyReLU(), nn.Linear(96, 32)).eval()
    rows = Dim("rows", min=1, max=9)
    lowered = lower(
        module,
        (torch.randn(3, 64),),
        Options(weights="q8_0"),
        dynamic_shapes=({0: rows},),
        not_ops=("aten.leaky_relu.default",),
    )
    path = tmp_path / "model.pte"
    path.write_bytes(lowered.pte)
    return path


def test_what_is_in_a_file(path):
    result = CliRunner().invoke(app, ["explain", str(path)])
    assert result.exit_code == 0, result.output
    text = result.output
    assert "method forward: 2 part(s) on weft" in text
    assert "MUL_MAT" in text and "QUANTIZE" in text and "1 to 9" in text
    assert "weight matrices: 1 in q8_0" in text
    assert "1 x aten::leaky_relu" in text
    assert "the partitioner was told to leave this op out" in text


def test_as_data(path):
    result = CliRunner().invoke(app, ["explain", str(path), "--json"])
    (method,) = json.loads(result.output)["methods"]
    assert [len(part["steps"]) > 0 for part in method["parts"]] == [True, True]
    assert method["left_out"][0]["op"] == "aten.leaky_relu.default"
    assert method["outside"] == {"aten::leaky_relu.out": 1}


def test_a_file_that_is_none(tmp_path):
    bad = tmp_path / "bad.pte"
    bad.write_bytes(b"nothing of the kind")
    result = CliRunner().invoke(app, ["explain", str(bad)])
    assert isinstance(result.exception, FormatError) and "bad.pte" in str(result.exception)
