"""`weft explain MODEL.pte`: the delegated graph, what was left out and why."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

from tests.delegate.conftest import lower_module
from weft.cli.app import app
from weft.errors import FormatError

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def pte():
    from weft_executorch import Options

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.LeakyReLU(), nn.Linear(96, 32)).eval()
    lowered = lower_module(
        module,
        (torch.randn(3, 64),),
        Options(weights="q8_0"),
        dynamic_shapes=({0: Dim("rows", min=1, max=9)},),
        not_ops=("aten.leaky_relu.default",),
    )
    return lowered.pte


@pytest.fixture
def path(pte, tmp_path):
    path = tmp_path / "model.pte"
    path.write_bytes(pte)
    return path


def test_what_is_in_a_file(path):
    result = CliRunner().invoke(app, ["explain", str(path)])
    assert result.exit_code == 0, result.output
    text = result.output
    assert "method forward: 2 part(s) on weft" in text
    assert "MUL_MAT" in text and "QUANTIZE" in text and "size rows: 1 to 9" in text
    assert "weight matrices: 1 in q8_0" in text
    assert "1 x aten::leaky_relu" in text
    assert "the partitioner was told to leave this op out" in text


def test_a_missing_file_is_looked_for_among_files_of_its_kind(path, tmp_path):
    (tmp_path / "modell.gguf").touch()
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "modell.pte")])
    assert result.exit_code == 1 and f"no such file; did you mean {path}?" in str(result.exception)
    result = CliRunner().invoke(app, ["explain", "nothere.pte"])
    assert str(result.exception).endswith(
        "nothere.pte: no such file; `weft export` and ExecuTorch's exporter write .pte files"
    )
    assert ".pte" in CliRunner().invoke(app, ["explain", "--help"]).output.split("Options")[0]


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


def test_methods_are_read_as_by_executorch(path):
    from executorch.exir._serialize._program import deserialize_pte_binary

    from weft_executorch.pte import read_pte

    theirs = deserialize_pte_binary(path.read_bytes()).program
    nbytes, (method,) = read_pte(path)
    (plan,) = theirs.execution_plan
    assert nbytes == path.stat().st_size and method.name == plan.name
    assert [d.backend for d in method.delegates] == [d.id for d in plan.delegates]
    assert [d.data for d in method.delegates] == [
        bytes(theirs.backend_delegate_data[d.processed.index].data) for d in plan.delegates
    ]


def test_damaged_files_are_refused_or_described(path):
    from weft_executorch.describe import describe

    whole = bytearray(path.read_bytes())
    draw = random.Random(7)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            data[draw.randrange(min(len(data), 6000))] = draw.randrange(256)
        path.write_bytes(data if draw.random() < 0.8 else data[: draw.randrange(len(data))])
        try:
            describe(path)
        except FormatError as error:
            refused += "model.pte" in str(error) or "delegated data" in str(error)
    assert refused > 100


def test_explaining_takes_no_exporter_and_says_nothing_else(path):
    code = (
        "import sys\nfrom weft.cli import main\n"
        f"sys.argv = ['weft', 'explain', {str(path)!r}]\n"
        "main()\n"
    )
    check = "assert not {'torch', 'executorch.exir'} & set(sys.modules)"
    code = code.replace("main()\n", "try:\n    main()\nexcept SystemExit:\n    pass\n") + check
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0 and process.stderr == "" and "method forward" in process.stdout


@pytest.mark.part("programs")
def test_exporting_prints_its_own_words_only(tmp_path):
    demo = Path(__file__).parents[2] / "examples" / "weft-demo.gguf"
    command = [sys.executable, "-m", "weft", "export", str(demo), str(tmp_path / "demo.pte")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0 and process.stdout == ""
    assert len(process.stderr.splitlines()) == 1 and "demo.pte: " in process.stderr
