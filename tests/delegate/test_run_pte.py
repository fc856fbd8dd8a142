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


def test_sizes_that_vary_are_given_by_shape(lower, run_pte, tmp_path):
    path, x_file = tmp_path / "model.pte", tmp_path / "x.bin"
    module, x = nn.Linear(16, 8).eval(), torch.randn(3, 16)
    n = torch.export.Dim("n", min=1, max=9)
    path.write_bytes(lower(module, (x,), dynamic_shapes=({0: n},)).pte)
    x_file.write_bytes(x.numpy().tobytes())

    def ran(*options):
        command = [str(run_pte), str(path), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "output 0: [9, 8]" in ran().stdout
    done = ran("--shape", "3,16", "--input", str(x_file), "--output", str(tmp_path / "y"))
    assert done.returncode == 0 and "output 0: [3, 8]" in done.stdout, done.stderr
    got = np.fromfile(tmp_path / "y.0", np.float32).reshape(3, 8)
    np.testing.assert_allclose(got, module(x).detach().numpy(), atol=1e-5)
    for options, rc, said in (
        (("--input", str(x_file)), 1, "192 bytes, an input of shape 9,16 576; --shape gives"),
        (("--shape", "10,16"), 1, "--shape 10,16 is none of this input: it takes at most 9,16"),
        (("--shape", "3"), 1, "--shape 3 is none of this input"),
        (("--shape", "3,"), 2, "usage: run_pte"),
        (("--shape", "3x16"), 2, "usage: run_pte"),
        (("--shape", "3,8"), 1, "the method failed"),
    ):
        done = ran(*options)
        assert (done.returncode, said in done.stderr) == (rc, True), (options, done)
    shown = subprocess.run([str(run_pte), "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0 and "--shape 2,3,8,8" in shown.stdout


def test_a_damaged_file_is_an_error(lower, run_pte, tmp_path):
    pte = lower(nn.Linear(8, 8).eval(), (torch.randn(2, 8),)).pte
    path = tmp_path / "model.pte"
    path.write_bytes(pte.replace(b"WEFT", b"WEFX"))
    process = subprocess.run([str(run_pte), str(path)], capture_output=True, text=True, check=False)
    assert process.returncode == 1 and "cannot be loaded: error 0x23" in process.stderr
