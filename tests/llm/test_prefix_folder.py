"""The folder of kept texts: files of others in it, and who may read what weft writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.serve.server import DEMO
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


_CLOSES_AT_EXIT = """
import atexit, sys
import weft

llm = weft.LLM(sys.argv[1], n_threads=1, n_ctx=128, cache_dir=sys.argv[2])
atexit.register(llm.close)
llm.generate("Count from 8 to 11? " * 8, max_tokens=2)
"""


def test_a_model_that_is_closed_at_exit_writes_its_texts(tmp_path: Path) -> None:
    """No thread starts while the interpreter ends."""
    words = [sys.executable, "-W", "error", "-c", _CLOSES_AT_EXIT, str(DEMO), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.glob("*.weftprefix"))
