"""Answers that several processes keep in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.cluster.kept_rows import KeptRows
from weft.errors import FormatError

LARGE = (1 << 64) - 1


def test_what_others_kept_is_found(tmp_path: Path) -> None:
    for name, keys in (("a", (3, LARGE)), ("b", (0, 7))):
        rows = KeptRows(tmp_path, name)
        for key in keys:
            rows.put(key, [f"{name} {key} \ud800\n"])
        rows.sync()
        rows.close()
    rows = KeptRows(tmp_path, "c")
    assert [rows.get(key) for key in (0, 3, 7, LARGE)] == [
        ["b 0 \ud800\n"], ["a 3 \ud800\n"], ["b 7 \ud800\n"], [f"a {LARGE} \ud800\n"],
    ]  # fmt: skip
    assert rows.get(5) is None
    rows.close()


def test_a_torn_row_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.rows").write_bytes(b'0000000000000001 ["x"]\n0000000000000002 ["y"]')
    rows = KeptRows(tmp_path, "b")
    assert rows.get(1) == ["x"] and rows.get(2) is None
    rows.close()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="file: "):
        KeptRows(tmp_path / "file", "a")
