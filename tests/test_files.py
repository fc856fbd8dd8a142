"""Files are replaced whole, through links, with their modes; nothing else is overwritten."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import FormatError
from weft.files import replacing, write_text


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".part")]


def test_a_file_is_new_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "one")
    with pytest.raises(RuntimeError, match="half way"), replacing(path) as file:
        file.write(b"two")
        raise RuntimeError("half way")
    assert path.read_text() == "one" and not leftovers(tmp_path)


def test_a_link_stays_and_its_target_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "real", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_link_to_nothing_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    write_text(link, "new")
    assert link.is_symlink() and (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(mode)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_text() == "new"


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, make: object) -> None:
    path = tmp_path / "thing"
    make(path)  # type: ignore[operator]
    kind = stat.S_IFMT(path.stat().st_mode)
    with pytest.raises(FormatError, match=r"thing.*give the name of a file"):
        write_text(path, "text")
    assert stat.S_IFMT(path.stat().st_mode) == kind


def test_devices_are_refused() -> None:
    with pytest.raises(FormatError, match="a device"):
        write_text("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_write_protected_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anything
    with pytest.raises(FormatError, match="write-protected"):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot write .*nowhere.*No such file"):
        write_text(tmp_path / "nowhere" / "a", "text")


_WRITER = """
import sys
from weft.files import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


def writer(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def test_what_a_killed_writer_left_is_swept_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model[1].gguf"
    path.write_text("old")
    with writer(path) as killed, writer(path) as living:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(leftovers(tmp_path)) == 2 and path.read_text() == "old"
        write_text(path, "new")
        assert len(leftovers(tmp_path)) == 1 and path.read_text() == "new"
        living.communicate("")
        assert living.returncode == 0
    assert path.read_text() == "half" and not leftovers(tmp_path)


def test_long_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_text(path, "text")
    assert path.read_text() == "text"
