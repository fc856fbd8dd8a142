"""Kernels that came with weft: found by source, options and architecture, before any compiler."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from release.cubins import cubins
from release.programs import programs
from tests.cuda_shim import SHIM, ShimCalls, compiler
from weft.backends import make_backend
from weft.backends.cuda import builds, devices
from weft.backends.cuda.builds import Builds, options_of, text_of
from weft.backends.cuda.packed import FOLDER, fitting, key_of, pack, packed
from weft.errors import DeviceError
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model

ONE = ("quantize.cu", ("X=f32", "ALIGNED"))
OTHER = ("quantize.cu", ("X=f16",))


def _made(file: str, text: str, options: tuple[str, ...], architecture: int) -> bytes:
    """A compiler that says what it was given."""
    return f"{file} {' '.join(options)} for {architecture}\n\0".encode() + text[:40].encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, data in cubins(_made, (ONE, OTHER), (75, 80)).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path


@pytest.fixture
def no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise DeviceError("install it with `pip install weft[cuda]`")

    monkeypatch.setattr(builds, "nvrtc", missing)
    monkeypatch.setattr(devices, "nvrtc", missing)


@pytest.mark.parametrize(("architecture", "taken"), [(75, 75), (80, 80), (86, 80), (89, 80)])
def test_kernels_are_found_without_a_compiler(
    folder: Path, no_nvrtc: None, architecture: int, taken: int
) -> None:
    made = Builds(architecture, folder)
    for file, defines in (ONE, OTHER):
        want = _made(file, text_of(file, defines), options_of(defines), taken)
        assert made.image(file, defines) == want
    assert (made.packed, made.loaded, made.compiled) == (2, 0, 0)


def test_a_kernel_that_did_not_come_needs_the_compiler(folder: Path, no_nvrtc: None) -> None:
    for architecture, program in ((80, ("quantize.cu", ("X=bf16",))), (90, ONE)):
        said = rf"quantize.cu \(X=.*not among the kernels .* sm_{architecture}.*weft\[cuda\]"
        with pytest.raises(DeviceError, match=said):
            Builds(architecture, folder).image(*program)


def test_a_kernel_of_an_older_source_is_never_taken(
    folder: Path, no_nvrtc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of(*ONE)
    assert packed(ONE[0], text, options_of(ONE[1]), 80, folder)
    assert not packed(ONE[0], text + "\n", options_of(ONE[1]), 80, folder)
    assert not packed(ONE[0], text, (*options_of(ONE[1]), "-DMORE"), 80, folder)
    monkeypatch.setattr(builds, "text_of", lambda file, defines: text + "\n")
    with pytest.raises(DeviceError, match="not among the kernels"):
        Builds(80, folder).image(*ONE)


def test_machine_code_of_other_generations_is_not_taken(folder: Path) -> None:
    taken = {a: fitting(a, folder) for a in (70, 75, 80, 87, 90, 103, 120)}
    assert taken == {70: [], 75: [75], 80: [80], 87: [80], 90: [], 103: [], 120: []}
    assert fitting(80, folder / "none") == []


def test_a_file_of_images(tmp_path: Path) -> None:
    contents = {"a": b"\n\0first", "b": b"", "c": b"c"}
    images = {key_of(text, (), 80): image for text, image in contents.items()}
    (tmp_path / "sm_80").mkdir()
    (tmp_path / "sm_80" / "f.cu.xz").write_bytes(pack(images))
    assert [packed("f.cu", text, (), 80, tmp_path) for text in "abcd"] == [*images.values(), b""]
    assert packed("g.cu", "a", (), 80, tmp_path) == b""


def test_a_device_needs_either(no_nvrtc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(SHIM, number=0)
    monkeypatch.setattr(devices, "fitting", lambda architecture: [80])
    assert device.unusable == ""
    monkeypatch.setattr(devices, "fitting", lambda architecture: [])
    assert "weft[cuda]" in device.unusable


def test_wheels_take_what_was_compiled() -> None:
    """The folder is not in the repository, so that a build leaves it out unless told."""
    root = Path(__file__).parents[2]
    data = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    (included,) = data["tool"]["scikit-build"]["sdist"]["include"]
    assert root / included == FOLDER / "*"


# ---- what is packed ------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Any]]:
    """The programs that devices of the shim are asked for."""
    seen, real = set(), ShimCalls.function

    def function(calls: ShimCalls, file: str, defines: tuple[str, ...], name: str) -> Any:
        seen.add((file, defines))
        return real(calls, file, defines, name)

    monkeypatch.setattr(ShimCalls, "function", function)
    yield seen


@pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")
def test_the_demo_model_needs_no_other_programs(asked: set[Any]) -> None:
    model = Model(open_gguf(Path(__file__).parents[2] / "examples" / "weft-demo.gguf"))
    context = Context(model, 64, devices=[make_backend("cuda:shim"), "cpu"])
    context.decode(list(range(1, 13)))
    context.decode([5])
    assert asked and not asked - set(programs())
