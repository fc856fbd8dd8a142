"""The delegate is linked to an installed core of the same sources, not compiled again."""

import contextlib
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("executorch")

ROOT = Path(__file__).resolve().parents[2]


def cmake(*options: str | Path) -> str:
    own = Path(sys.executable).parent / "cmake"
    program = str(own) if own.exists() else shutil.which("cmake")
    assert program is not None
    command = [program, *map(str, options)]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.returncode == 0, process.stdout
    return process.stdout


def fingerprint(folder: Path) -> str:
    """The fingerprint of the sources of this checkout."""
    script = folder / "hash.cmake"
    script.write_text(
        f"include({ROOT}/native/cmake/fingerprint.cmake)\n"
        f"weft_fingerprint(hash {ROOT}/native)\nmessage(STATUS ${{hash}})"
    )
    return cmake("-P", script).split()[-1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages of this one, and a core of its own."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")] + site.getsitepackages()
    for path in map(Path, here):  # all but weft, which may have a core that fits
        for entry in path.iterdir():
            if entry.name != "weft" and entry.suffix != ".pth":
                with contextlib.suppress(FileExistsError):
                    (packages / entry.name).symlink_to(entry)
    core = packages / "weft" / "_core"
    core.mkdir(parents=True)
    (core / "libweft_core.a").write_bytes(b"")
    return core


@pytest.mark.parametrize("same", [True, False])
def test_an_installed_core_is_taken_where_its_sources_are_these(
    environment: Path, tmp_path: Path, same: bool
) -> None:
    (environment / "sources.sha256").write_text(fingerprint(tmp_path) if same else "another")
    python = environment.parents[4] / "bin" / "python"
    ninja = Path(sys.executable).parent / "ninja"
    said = cmake("-S", ROOT / "executorch", "-B", tmp_path / "build", "-G", "Ninja",
                 f"-DCMAKE_MAKE_PROGRAM={ninja if ninja.exists() else shutil.which('ninja')}",
                 f"-DPython_EXECUTABLE={python}")  # fmt: skip
    assert (f"Linking to the core {environment}/libweft_core.a" in said) == same
    assert ("Compiling weft's core" in said) == (not same)


def test_the_fingerprint_is_that_of_every_source(tmp_path: Path) -> None:
    native = tmp_path / "native"
    shutil.copytree(ROOT / "native", native)
    script = tmp_path / "two.cmake"
    script.write_text(
        f"include({ROOT}/native/cmake/fingerprint.cmake)\n"
        f"weft_fingerprint(a {ROOT}/native)\nweft_fingerprint(b {native})\n"
        "message(STATUS ${a} ${b})"
    )
    first, second = cmake("-P", script).split()[-1][:64], cmake("-P", script).split()[-1][64:]
    assert first == second
    with (native / "src" / "quants" / "blocks.h").open("a") as file:
        file.write("\n")
    assert cmake("-P", script).split()[-1][64:] != first
