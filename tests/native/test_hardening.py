"""The native libraries are built with the flags that docs/security.md promises."""

import subprocess
from pathlib import Path

import pytest

from weft import _native


def readelf(option: str, library: Path) -> str:
    command = ["readelf", "--wide", option, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def delegate() -> Path:
    from weft_executorch.library import library_path

    return library_path()


@pytest.fixture(params=["_native", "delegate"])
def library(request: pytest.FixtureRequest) -> Path:
    return Path(str(_native.__file__)) if request.param == "_native" else delegate()


def test_addresses_are_bound_and_read_only_once_it_is_loaded(library: Path) -> None:
    assert "BIND_NOW" in readelf("--dynamic", library)
    assert "GNU_RELRO" in readelf("--segments", library)


def test_the_stack_holds_no_code(library: Path) -> None:
    (line,) = [row for row in readelf("--segments", library).splitlines() if "GNU_STACK" in row]
    assert line.split()[-2] == "RW"


def test_functions_check_their_stack_and_copies_their_sizes(library: Path) -> None:
    names = readelf("--dyn-syms", library)
    assert "__stack_chk_fail" in names
    assert "_chk@" in names.replace("__stack_chk_fail", "")
