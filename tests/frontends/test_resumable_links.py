"""The partial file and the journal beside a file that is written: links there lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.frontends.gguf import resumable
from weft.frontends.gguf.resumable import ResumableFile


class Rows:
    nbytes = 8

    def bytes(self) -> memoryview:
        return memoryview(np.arange(8, dtype=np.uint8)).cast("B")


class Layout:
    """Stands in for the layout of a file: a head, and one tensor."""

    head = b"head"
    size = 12
    rows = (Rows(),)
    starts = (4,)


LAYOUT: Any = Layout()


def write(target: Path) -> None:
    with ResumableFile(target, LAYOUT, "x") as file:
        list(file.write())
        file.finish()


@pytest.mark.parametrize("name", [".out.gguf.partial", ".out.gguf.journal"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_are_not_written_through(tmp_path: Path, name: str, link: Any) -> None:
    other = tmp_path / "theirs"
    other.write_text("mine")
    link(other, tmp_path / name)
    write(tmp_path / "out.gguf")
    assert other.read_text() == "mine"
    assert (tmp_path / "out.gguf").read_bytes() == b"head" + bytes(range(8))


def test_links_that_come_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "theirs"
    other.write_text("mine")
    os.symlink(other, tmp_path / ".out.gguf.journal")
    monkeypatch.setattr(resumable, "_remove_what_is_of_others", lambda path: None)
    with pytest.raises(Exception, match="cannot write"):
        write(tmp_path / "out.gguf")
    assert other.read_text() == "mine"


@pytest.mark.parametrize("line", ["[" * 100_000, '{"crc32": 1e999}', '{"crc32": []}', "\0"])
def test_a_damaged_journal(tmp_path: Path, line: str) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        ResumableFile(tmp_path / "out.gguf", LAYOUT, "x") as file,
    ):
        next(file.write())
        raise KeyboardInterrupt
    journal = tmp_path / ".out.gguf.journal"
    stamp = journal.read_text().splitlines()[0]
    journal.write_text(f"{stamp}\n{line}\n" if line[0] == "{" else line)
    write(tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == b"head" + bytes(range(8))


def test_what_lies_between_tensors_is_written_again(tmp_path: Path) -> None:
    """Journals have checksums of tensors only."""
    layout: Any = Layout()
    layout.size, layout.rows, layout.starts = 32, (Rows(), Rows()), (8, 24)

    def write_some(most: int) -> None:
        with ResumableFile(tmp_path / "out.gguf", layout, "x") as file:
            for n, _ in enumerate(file.write(), 1):
                if n == most:
                    raise KeyboardInterrupt
            file.finish()

    with pytest.raises(KeyboardInterrupt):
        write_some(1)
    partial = tmp_path / ".out.gguf.partial"
    data = partial.read_bytes()
    partial.write_bytes(b"DAMAGED!" + data[8:] + b"behind")
    write_some(9)
    want = b"head" + bytes(4) + bytes(range(8)) + bytes(8) + bytes(range(8))
    assert (tmp_path / "out.gguf").read_bytes() == want
