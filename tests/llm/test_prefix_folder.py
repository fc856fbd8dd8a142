"""The folder of kept texts: files of others in it, and who may read what weft writes."""

from __future__ import annotations

from pathlib import Path

from weft.llm.cache.prefix_files import Layout, PrefixFiles


def test_files_of_others_make_no_room(tmp_path: Path) -> None:
    layout = Layout("0123456789abcdef" * 4, ((4, 1),), window=0, window_row=0, state=0)
    files = PrefixFiles(tmp_path, 100, layout)
    theirs = ["mine.weftprefix", "0123456789abcdef-notes.weftprefix", "x.txt"]
    for name in theirs:
        (tmp_path / name).write_bytes(b"x" * 200)
    own = tmp_path / f"0123456789abcdef-{'a' * 32}.weftprefix"
    own.write_bytes(b"x" * 200)
    files._make_room(50, "new")
    assert not own.exists()
    assert all((tmp_path / name).exists() for name in theirs)
    files.close()
