"""What a release is made of: tags, wheels, notes, the workflow, and refused processors."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from release import __main__ as commands
from release.build import Built
from release.check import MOST_BYTES, check, fits
from release.errors import ReleaseError
from release.foreign import symbols
from release.macho import read_macho
from release.native import try_native
from release.notes import check_tag, notes, versions
from release.pack import pack, tags
from release.platforms import PLATFORMS, Platform, named
from release.pythons import headers
from release.roots import debian_python, missing
from release.toolchain import zig_identity

ROOT = Path(__file__).resolve().parent.parent
CHANGES = """# Changelog

## 0.3.0 (unreleased)

- next

## 0.2.0 (2026-11-02)

- first
- second

### More

- third

## v0.1.0

- oldest
"""


def test_each_platform_has_a_tag_and_two_wheels() -> None:
    names = [p.name for p in PLATFORMS]
    assert len(set(names)) == len(PLATFORMS) == 8
    linux = named("manylinux-aarch64")
    assert tags(linux, (3, 11)) == "cp311-cp311-manylinux_2_28_aarch64"
    assert tags(linux, (3, 12)) == "cp312-abi3-manylinux_2_28_aarch64"
    with pytest.raises(ReleaseError, match=r"no platform 'linux'.*manylinux-x86_64"):
        named("linux")


@pytest.mark.parametrize(
    ("platform", "of_311", "stable"),
    [
        ("manylinux-x86_64", ".cpython-311-x86_64-linux-gnu.so", ".abi3.so"),
        ("musllinux-aarch64", ".cpython-311-aarch64-linux-musl.so", ".abi3.so"),
        ("macos-arm64", ".cpython-311-darwin.so", ".abi3.so"),
        ("windows-AMD64", ".cp311-win_amd64.pyd", ".pyd"),
    ],
)
def test_modules_have_the_names_that_each_python_looks_for(
    platform: str, of_311: str, stable: str
) -> None:
    assert named(platform).module_suffix((3, 11)) == of_311
    assert named(platform).module_suffix((3, 12)) == stable


def test_a_wheel_has_the_files_the_tag_and_a_record_of_all(tmp_path: Path) -> None:
    plain = tmp_path / "weft-1.0-py3-none-any.whl"
    with zipfile.ZipFile(plain, "w") as wheel:
        wheel.writestr("weft/__init__.py", "x = 1\n")
        wheel.writestr("weft-1.0.dist-info/METADATA", "Name: weft\n")
        head = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n"
        wheel.writestr("weft-1.0.dist-info/WHEEL", head)
        wheel.writestr("weft-1.0.dist-info/RECORD", "weft/__init__.py,,\n")
    tag = tags(named("windows-ARM64"), (3, 12))
    out = tmp_path / "out"
    out.mkdir()
    bill = {"sboms/weft.cdx.json": b"{}"}
    made = pack(plain, {"weft/_native.pyd": b"\0native"}, tag, out, bill)
    assert made.name == "weft-1.0-cp312-abi3-win_arm64.whl"
    first = made.read_bytes()
    again = pack(plain, {"weft/_native.pyd": b"\0native"}, tag, out, bill)
    assert again.read_bytes() == first
    with zipfile.ZipFile(made) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    assert files["weft-1.0.dist-info/sboms/weft.cdx.json"] == b"{}"
    assert files["weft/_native.pyd"] == b"\0native" and files["weft/__init__.py"] == b"x = 1\n"
    assert files["weft-1.0.dist-info/WHEEL"].decode().splitlines() == [
        "Wheel-Version: 1.0", "Root-Is-Purelib: false", f"Tag: {tag}"
    ]  # fmt: skip
    rows = dict(
        line.split(",")[:2] for line in files["weft-1.0.dist-info/RECORD"].decode().splitlines()
    )
    assert set(rows) == set(files)
    for name, data in files.items():
        if not name.endswith("RECORD"):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert rows[name] == f"sha256={digest}"


def test_a_wheel_that_is_too_large_or_has_no_module_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "weft-1.0-cp312-abi3-win_amd64.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("weft/__init__.py", "")
    with pytest.raises(ReleaseError, match="no native module"):
        check(wheel, named("windows-AMD64"))
    wheel.write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(ReleaseError, match="at most"):
        check(wheel, named("windows-AMD64"))


def macho(cputype: int, loads: str, version: int) -> bytes:
    """A Mach-O file of a header, a library that it loads and its oldest system."""
    name = loads.encode() + b"\0" * (8 - len(loads) % 8)
    load = struct.pack("<IIIIII", 0xC, 24 + len(name), 24, 0, 0, 0) + name
    build = struct.pack("<IIIIII", 0x32, 24, 1, version, version, 0)
    head = struct.pack("<IIIIIIII", 0xFEEDFACF, cputype, 0, 6, 2, len(load + build), 0, 0)
    return head + load + build


def test_a_library_for_macos_says_its_processor_and_loads_the_system_alone(tmp_path: Path) -> None:
    good = macho(0x0100000C, "/usr/lib/libSystem.B.dylib", 11 << 16)
    found = read_macho(good)
    assert (found.processor, found.system) == ("arm64", (11, 0))
    assert found.loads == ["/usr/lib/libSystem.B.dylib"]
    with pytest.raises(ReleaseError, match="no 64-bit Mach-O"):
        read_macho(b"\x7fELF" + bytes(60))
    wheel = tmp_path / "weft-1.0-cp311-cp311-macosx_11_0_arm64.whl"
    for data, said in (
        (good, None),
        (macho(0x01000007, "/usr/lib/libSystem.B.dylib", 11 << 16), "is for x86_64"),
        (macho(0x0100000C, "/usr/lib/libSystem.B.dylib", 14 << 16), "macOS"),
        (macho(0x0100000C, "/opt/lib/libc++.dylib", 11 << 16), "which not every Mac has"),
    ):
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("weft/_native.so", data)
        if said is None:
            assert check(wheel, named("macos-arm64"))[1].startswith("Mach-O arm64, macOS 11.0")
        else:
            with pytest.raises(ReleaseError, match=said):
                check(wheel, named("macos-arm64"))


def test_a_platform_that_fails_is_named_and_the_others_are_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = []

    def build(platform: Platform, *_: object) -> Built:
        built.append(platform.name)
        raise ReleaseError(f"no compiler for {platform.zig}")

    monkeypatch.setattr(commands, "build", build)
    monkeypatch.setattr(commands, "SOURCES", tmp_path)
    monkeypatch.setattr(commands, "python_files", lambda *_: tmp_path / "plain.whl")
    monkeypatch.setattr(commands, "inside", lambda root: {})
    chosen = [named("musllinux-x86_64"), named("windows-ARM64")]
    with pytest.raises(ReleaseError, match="musllinux-x86_64, windows-ARM64: not all"):
        commands.wheels(chosen, tmp_path / "out")
    assert built == [p.name for p in chosen]
    said = capsys.readouterr().err.splitlines()
    assert said[1] == "windows-ARM64: no compiler for aarch64-windows-gnu"


def test_what_a_bare_root_can_run_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert debian_python("weft-1.0-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert not debian_python("weft-1.0-cp312-abi3-manylinux_2_28_x86_64.whl")
    assert missing(named("windows-AMD64")) == "a Python of its system"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("shutil.which", lambda name: None)
    lacking = missing(named("manylinux-aarch64"))
    assert lacking == "apt-get, dpkg-deb, qemu-aarch64"


def test_native_tests_stand_for_platforms_that_no_python_here_is_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def seen(name: str) -> list[str]:
        built = Built(named(name), tmp_path / name, None)
        monkeypatch.setattr(built, "tests", lambda: [Path("pool"), Path("shared")])
        return try_native(built)

    ran: list[list[str]] = []
    said = "baseline"

    def run(command: Sequence[str | Path], env: Mapping[str, str] = {}) -> str:
        ran.append([str(word) for word in command])
        return said

    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.17.1")
    monkeypatch.setattr("release.build.compilers", lambda *_: tmp_path)
    monkeypatch.setattr("release.build._tool", Path)
    monkeypatch.setattr("release.native.run", run)
    monkeypatch.setattr("tests.arm.root.make_root", lambda *_: tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert seen("manylinux-x86_64") == seen("macos-arm64") == seen("windows-ARM64") == [] == ran
    with pytest.raises(ReleaseError, match="musllinux-aarch64: only the baseline ran"):
        seen("musllinux-aarch64")
    said = "baseline\nneon\n"
    found = "native tests passed on musl under qemu, on the targets baseline, neon"
    assert seen("musllinux-aarch64") == [found]
    loader = str(tmp_path / "lib/aarch64-linux-musl/libc.so")
    assert ran[-1] == ["qemu-aarch64", loader, "shared"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    lacking = "native tests not run: this machine lacks apt-get, dpkg-deb, qemu-aarch64"
    assert seen("musllinux-aarch64") == [lacking]
    assert seen("windows-AMD64") == ["native tests not run: this machine lacks wine"]


def test_the_compiler_is_known_by_version_and_platform_wherever_it_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that ccache finds in one checkout what was compiled in another."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name}'s 0.17.1")
    known = [zig_identity(platform) for platform in PLATFORMS]
    assert len(set(known)) == len(PLATFORMS)
    assert "ziglang's 0.17.1 -target aarch64-linux-musl" in known[3] and "-dynamic" in known[3]
    assert "/" not in "".join(known)


def test_import_libraries_name_what_nanobind_uses() -> None:
    names = symbols()
    assert {"PyModule_Create2", "PyType_FromSpec", "PyExc_TypeError"} <= set(names)
    assert all(re.fullmatch(r"_?Py\w+", name) for name in names)


def test_headers_of_this_python_are_found_and_others_are_named() -> None:
    this = sys.version_info[:2]
    assert (headers(this) / "Python.h").exists()
    with pytest.raises(ReleaseError, match=r"no Python 3\.99 or later .* python3\.99-dev"):
        headers((3, 99))


def test_both_distributions_have_one_version_and_a_tag_is_held_to_it(tmp_path: Path) -> None:
    found = versions(ROOT)
    assert set(found) == {"weft", "weft-executorch"}
    version = found["weft"]
    assert check_tag(f"v{version}", ROOT) == version
    with pytest.raises(ReleaseError, match=rf"the tag is v9\.9, .* version {version}"):
        check_tag("v9.9", ROOT)
    (tmp_path / "executorch").mkdir()
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(text, "utf-8")
    text = (ROOT / "executorch/pyproject.toml").read_text("utf-8")
    (tmp_path / "executorch/pyproject.toml").write_text(
        text.replace(f"weft=={version}", "weft==0.0.9"), "utf-8"
    )
    with pytest.raises(ReleaseError, match=r"asks for weft 0\.0\.9"):
        versions(tmp_path)
    (tmp_path / "executorch/pyproject.toml").write_text(text, "utf-8")
    (tmp_path / "CITATION.cff").write_text("title: weft\nversion: 0.0.8\n", "utf-8")
    with pytest.raises(ReleaseError, match=rf"has the version 0\.0\.8; weft has {version}"):
        versions(tmp_path)


def test_release_notes_are_the_section_of_the_version() -> None:
    assert notes(CHANGES, "0.2.0") == "- first\n- second\n\n### More\n\n- third\n"
    assert notes(CHANGES, "0.1.0") == "- oldest\n"
    with pytest.raises(ReleaseError, match=r"calls 0\.3\.0 unreleased"):
        notes(CHANGES, "0.3.0")
    with pytest.raises(ReleaseError, match=r"no section '0\.9'; it has 0\.3\.0, 0\.2\.0, 0\.1\.0"):
        notes(CHANGES, "0.9")
    with pytest.raises(ReleaseError, match=r"says nothing of 1\.0"):
        notes("# Changelog\n\n## 1.0\n\n## 0.9\n\n- x\n", "1.0")


def test_an_unreleased_section_is_printed_as_a_draft() -> None:
    assert notes(CHANGES, "0.3.0", draft=True) == "- next\n"


def test_the_changelog_has_short_lines_and_a_section_for_this_version_with_ways_from_the_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    assert not [line for line in lines if len(line) > 120]
    monkeypatch.setattr("sys.argv", ["release", "notes", "--draft"])
    assert commands.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("### Moving from ") and len(said) > 1000


def test_the_workflow_parses_and_publishes_only_what_was_tested() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    flow = yaml.safe_load(text)
    jobs = flow["jobs"]
    needed = {name: job.get("needs", []) for name, job in jobs.items()}
    known = set(jobs)
    for needs in needed.values():
        assert set([needs] if isinstance(needs, str) else needs) <= known
    publish = jobs["publish"]
    assert set(publish["needs"]) == {"tests", "executorch", "sdist"}
    assert "refs/tags/" in publish["if"] and publish["permissions"]["id-token"] == "write"
    # nobody else may write or ask for a token
    assert flow["permissions"] == {"contents": "read"}
    assert not [name for name, job in jobs.items() if "permissions" in job and name != "publish"]
    # every platform that has machines in the workflow is tried on one
    assert jobs["tests"]["needs"] == "wheels" and "PLATFORMS" not in text
    runners = {name.split("-")[0] for name in jobs["tests"]["strategy"]["matrix"]["runner"]}
    assert runners == {"ubuntu", "macos", "windows"}
    for module in re.findall(r"python (release/\S+\.py)", text):
        assert (ROOT / module).exists()


CMAKE = Path(sys.executable).parent / "cmake"
needs_compiler = pytest.mark.skipif(
    not CMAKE.exists() or shutil.which("c++") is None, reason="no CMake or no C++ compiler here"
)


@needs_compiler
def test_a_32_bit_compiler_is_refused_at_configure_time(tmp_path: Path) -> None:
    """The compiler of this machine, made to say what one of 32 bits says."""
    toolchain = tmp_path / "toolchain.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR i686)\n"
        'set(CMAKE_CXX_COMPILER c++)\nset(CMAKE_CXX_FLAGS_INIT "-m32 -w")\n'
        "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)\n"
    )
    done = subprocess.run(
        [CMAKE, "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja",
         f"-DCMAKE_MAKE_PROGRAM={CMAKE.parent / 'ninja'}", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "for 64-bit processors, and this compiler is for one of 32 bits" in " ".join(
        done.stderr.split()
    )


@pytest.mark.skipif(not CMAKE.exists(), reason="no CMake here")
@pytest.mark.parametrize(
    ("order", "said"), [("BIG_ENDIAN", "for a big-endian processor (s390x)"), ("LITTLE_ENDIAN", "")]
)
def test_a_big_endian_compiler_is_refused(order: str, said: str) -> None:
    values = {"SIZEOF_VOID_P": 8, "CXX_BYTE_ORDER": order, "SYSTEM_PROCESSOR": "s390x"}
    done = subprocess.run(
        [CMAKE, *(f"-DCMAKE_{name}={value}" for name, value in values.items()),
         "-P", ROOT / "native/cmake/supported.cmake"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode != 0) == bool(said)
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("found", "wanted", "good"),
    [
        ("manylinux_2_27_x86_64", "manylinux_2_28_x86_64", True),
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64", True),
        ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", False),
        ("manylinux_2_17_aarch64", "manylinux_2_28_x86_64", False),
        ("manylinux_2_17_x86_64", "musllinux_1_2_x86_64", False),
        ("linux_x86_64", "manylinux_2_28_x86_64", False),
    ],
)
def test_auditwheel_may_find_an_older_system_but_no_later_one(
    found: str, wanted: str, good: bool
) -> None:
    assert fits(found, wanted) == good
