"""The source distribution: small, and enough to build from without git."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 5 << 20

build = pytest.importorskip("scikit_build_core.build", reason="no scikit-build-core here")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a source distribution that is made here, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("weft-*.tar.gz")
    assert file.stat().st_size < MOST_BYTES
    with tarfile.open(file) as packed:
        packed.extractall(folder, filter="data")
    (top,) = (path for path in folder.iterdir() if path.is_dir())
    return top


def test_it_has_all_sources_and_no_tests(unpacked: Path) -> None:
    for folder in ("src", "native", "licenses", "executorch", "release", "schema"):
        listed = subprocess.run(
            ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True
        )
        if listed.returncode:
            pytest.skip("this is no checkout")
        lacking = [name for name in listed.stdout.split("\n") if not (unpacked / name).exists()]
        assert lacking == []
    assert not (unpacked / "tests").exists()
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "examples/weft-demo.gguf"):
        assert (unpacked / name).exists()


@pytest.mark.skipif(
    not (Path(sys.executable).parent / "cmake").exists() or shutil.which("c++") is None,
    reason="no CMake or no C++ compiler here",
)
def test_it_is_configured_without_git_for_this_processor(unpacked: Path, tmp_path: Path) -> None:
    """As by pip; compiling takes minutes, and is left out."""
    tools = Path(sys.executable).parent
    command = [
        tools / "cmake", "-S", unpacked, "-B", tmp_path / "build", "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DWEFT_PYTHON=OFF", "-DWEFT_TARGETS=native",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "weft: kernels of" in line)
    assert "of this processor alone (" in line and "WEFT_TARGETS=all" in line
    assert "baseline" not in line and "minutes" in line
