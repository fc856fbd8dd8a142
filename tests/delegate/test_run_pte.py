"""examples/run_pte: a C++ program runs what Python has exported."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "run_pte"


@pytest.fixture(scope="module")
def run_pte(tmp_path_factory):
    """The program, built as its CMakeLists says."""
    import weft_executorch

    folder = tmp_path_factory.mktemp("run_pte")
    own = Path(sys.executable).parent / "cmake"
    cmake = str(own) if own.exists() else shutil.which("cmake")
    assert cmake is not None
    prefix = find_spec("executorch").submodule_search_locations
    root = next(p for p in prefix if (Path(p) / "lib" / "libexecutorch.so").exists())
    configure = [
        cmake, "-S", str(EXAMPLE), "-B", str(folder), f"-DCMAKE_PREFIX_PATH={root}",
        f"-DWEFT_EXECUTORCH={weft_executorch.library_path()}", "-DCMAKE_BUILD_TYPE=Debug",
    ]  # fmt: skip
    for command in (configure, [cmake, "--build", str(folder)]):
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout + process.stderr
    return folder / "run_pte"


def test_it_computes_what_eager_does(lower, run_pte, tmp_path):
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    x = torch.randn(3, 16)
    path, input_file = tmp_path / "model.pte", tmp_path / "x.bin"
    path.write_bytes(lower(module, (x,)).pte)
    input_file.write_bytes(x.numpy().tobytes())
    command = [str(run_pte), str(path), "--input", str(input_file), "--output", str(tmp_path / "y")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "output 0: [3, 8]" in process.stdout
    got = np.fromfile(tmp_path / "y.0", np.float32).reshape(3, 8)
    np.testing.assert_allclose(got, module(x).detach().numpy(), atol=1e-5)


def test_a_damaged_file_is_an_error(lower, run_pte, tmp_path):
    pte = lower(nn.Linear(8, 8).eval(), (torch.randn(2, 8),)).pte
    path = tmp_path / "model.pte"
    path.write_bytes(pte.replace(b"WEFT", b"WEFX"))
    process = subprocess.run([str(run_pte), str(path)], capture_output=True, text=True, check=False)
    assert process.returncode == 1 and "cannot be loaded: error 0x23" in process.stderr
