"""The example backend as a third party would ship it: installed, found by its entry point, and put
through the exam for backends."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

import weft
from tests.conftest import ROOT
from weft.backends import make_backend

EXAM = """
from tests.backend_suite import BackendSuite
from weft.backends import Backend, make_backend

class TestExample(BackendSuite):
    @classmethod
    def make(cls) -> Backend:
        return make_backend("example")
"""

# not find_spec("pip"): asked for it, setuptools leaves distutils to Python in this process, and
# then cannot be imported itself, which torch.testing needs
pytestmark = pytest.mark.skipif(
    find_spec("scikit_build_core") is None or not any(distributions(name="pip")),
    reason="needs pip and scikit-build-core, which `make test` installs",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the package in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)),
        str(ROOT / "examples" / "backend"),
    ]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    source = Path(weft.__file__).parents[1]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (target, source, ROOT)))}


def run(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_it_is_short() -> None:
    """docs/add-a-backend.md promises so."""
    source = ROOT / "examples/backend/src/weft_example/__init__.py"
    assert len(source.read_text().splitlines()) < 150


def test_it_is_found_by_its_entry_point(installed: dict[str, str]) -> None:
    listed = run(installed, "-m", "weft", "devices")
    assert "example" in listed and "sums and products with NumPy" in listed
    model = str(ROOT / "tests/data/vectors/models/archs/llama3.gguf")
    explained = run(installed, "-m", "weft", "explain", model, "--devices", "example,cpu")
    assert "example" in explained and "no kernel for this op" in explained


def test_it_passes_the_exam(installed: dict[str, str], tmp_path: Path) -> None:
    exam = tmp_path / "test_exam.py"
    exam.write_text(EXAM)
    said = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c",
               str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(exam))  # fmt: skip
    assert " passed" in said and "failed" not in said


def test_without_it_the_name_is_unknown() -> None:
    with pytest.raises(weft.DeviceError, match="unknown backend 'example'"):
        make_backend("example")
