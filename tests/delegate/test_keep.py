"""`weft keep` and the build option WEFT_KEEP: the kernels of some models, and no others."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tests.delegate.conftest import lower_module
from weft.cli.app import app
from weft.errors import FormatError

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"


def keep_list(models: list[Path], **options: int) -> str:
    """What `weft keep` writes for models."""
    from weft_executorch import keep

    return keep.keep_list(models, **options)


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8), nn.Softmax(-1)).eval()
    path = tmp_path_factory.mktemp("kept") / "mlp.pte"
    path.write_bytes(lower_module(module, (torch.randn(3, 16),)).pte)
    return path


def configured(folder: Path, kept: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """CMake's answer to a core with these kernels, baseline alone."""
    own = Path(sys.executable).parent / "cmake"
    cmake = str(own) if own.exists() else shutil.which("cmake")
    ninja = Path(sys.executable).parent / "ninja"
    assert cmake is not None
    return subprocess.run(
        [cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DWEFT_PYTHON=OFF",
         f"-DCMAKE_MAKE_PROGRAM={ninja if ninja.exists() else shutil.which('ninja')}",
         "-DWEFT_TARGETS=baseline", f"-DWEFT_KEEP={kept}", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def families(folder: Path) -> set[str]:
    """The families of kernels that are registered in a build folder."""
    text = (folder / "native/families/kept_families.inc").read_text()
    lines = [line for line in text.splitlines() if line.startswith("WEFT_")]
    return {line.partition("(")[2].rstrip(")") for line in lines}


def test_the_list_has_the_ops_and_types_of_a_program(perceptron: Path) -> None:
    lines = keep_list([perceptron]).splitlines()
    assert lines[0] == "# weft keep 1: mlp.pte"
    assert {"op MUL_MAT", "read f32", "write f32"} <= set(lines)
    assert not [line for line in lines if "ROPE" in line or "q4_0" in line]


def test_lists_of_several_models_are_joined(perceptron: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.txt"
    words = ["keep", str(perceptron), str(DEMO), "-o", str(out), "-c", "64"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    both = set(out.read_text().splitlines()[1:])
    alone = set(keep_list([perceptron]).splitlines()[1:])
    demo = set(keep_list([DEMO], n_ctx=64).splitlines()[1:])
    assert both - {""} == (alone | demo) - {""} and alone - demo and demo - alone


def test_files_that_need_nothing_of_weft_are_named(tmp_path: Path) -> None:
    path = tmp_path / "none.pte"
    path.write_bytes(b"nonsense")
    with pytest.raises(FormatError, match=r"none\.pte"):
        keep_list([path])


def test_a_build_registers_the_families_that_are_needed(perceptron: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text(keep_list([perceptron]))
    done = configured(tmp_path / "build", kept)
    assert done.returncode == 0, done.stdout + done.stderr
    found = families(tmp_path / "build")
    assert {"matmul", "float_types", "activation_types"} <= found
    assert not {"attention", "rope", "conv_last", "iq_types", "k_formats", "encode_k"} & found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# weft keep 1: x\nop FLY_TO_THE_MOON\n", "no kernel of this weft computes"),
        ("something else\n", "is no file of `weft keep"),
        (None, "is not there"),
    ],
)
def test_a_list_that_cannot_be_built_is_refused(
    tmp_path: Path, text: str | None, said: str
) -> None:
    kept = tmp_path / "kept.txt"
    if text is not None:
        kept.write_text(text)
    done = configured(tmp_path / "build", kept)
    assert done.returncode != 0 and said in " ".join(done.stderr.split())


def test_every_op_with_a_kernel_can_be_kept(tmp_path: Path) -> None:
    """How kernels are registered is read from the sources, so a new way must not escape."""
    from weft.graph.op import OPS
    from weft.native import _native

    tensor = (0, [1, 1, 1, 1], [4, 4, 4, 4])
    too_many = [0.0] * 99  # so that no check of the call itself begins
    refused = {
        name: _native.refusal("baseline", number, tensor, [tensor], too_many)
        for number, name in enumerate(OPS)
        if name != "NONE"
    }
    ops = [name for name, why in refused.items() if why != "there is no native kernel for this op"]
    assert len(ops) > 80
    kept = tmp_path / "kept.txt"
    kept.write_text("\n".join(["# weft keep 1: all", *(f"op {op}" for op in ops), ""]))
    done = configured(tmp_path / "build", kept)
    assert done.returncode == 0, done.stdout + done.stderr
