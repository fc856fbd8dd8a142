"""What the opencl devices keep between runs is used only where nobody else can have written it."""

import os
from pathlib import Path

import pytest
from opencl_device import opencl

from weft.backends.kernels.cache import keep, kept
from weft.backends.opencl import builds


def test_a_kept_file_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.bin"
    before = os.umask(0)
    try:
        keep(path, b"old")
        keep(path, b"code")
    finally:
        os.umask(before)
    assert kept(path) == b"code" and os.listdir(path.parent) == ["a.bin"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.bin"
    keep(path, b"code")
    path.chmod(mode)
    assert kept(path) == b""


def test_a_file_of_another_user_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    keep(path, b"code")
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert kept(path) == b""


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    keep(tmp_path / "a.bin", b"code")
    (tmp_path / "link").symlink_to("a.bin")
    os.mkfifo(tmp_path / "pipe")
    assert [kept(tmp_path / name) for name in ("link", "pipe", "nothing")] == [b""] * 3


def test_a_program_that_others_may_have_written_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opencl()
    monkeypatch.setattr(builds, "cache_folder", lambda: tmp_path)
    counts = []
    for mode in (None, 0o600, 0o666):
        for file in tmp_path.glob("*.bin"):
            file.chmod(mode or 0)
        programs = builds.Programs(device.driver.context, device.device)
        programs.get("unary.cl", ("ALL_F32",))
        counts.append((programs.compiled, programs.loaded))
    assert counts == [(1, 0), (0, 1), (1, 0)]


def test_binaries_of_options_from_the_environment_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled without optimization for tests is not loaded by who left the variable
    unset, nor the other way round."""
    device = opencl()
    monkeypatch.setattr(builds, "cache_folder", lambda: tmp_path)
    counts = []
    for flags in ("", "-DONE", "", "-DTWO", "-DONE"):
        monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", flags)
        programs = builds.Programs(device.driver.context, device.device)
        programs.get("unary.cl", ("ALL_F32",))
        counts.append((programs.compiled, programs.loaded))
    assert counts == [(1, 0), (1, 0), (0, 1), (1, 0), (0, 1)]
