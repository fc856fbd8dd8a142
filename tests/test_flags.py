"""The page of environment variables lists exactly the flags."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT
from weft.flags import describe_flags


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "flags.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `WEFT_")]
    want = [f"| `{n}` | {d or 'empty'} | {m} |" for n, d, m in describe_flags()]
    assert rows == want


def test_the_environment_chooses_the_cpu_target() -> None:
    code = "from weft.backends import make_backend as m; b = m('cpu'); print(b.target, b.n_threads)"
    env = os.environ | {"WEFT_TARGET": "baseline", "WEFT_THREADS": "1"}
    process = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert process.stdout.split() == ["baseline", "1"], process.stderr


def test_the_cache_folder_is_the_users() -> None:
    code = "from weft.flags import FLAGS; print(FLAGS.cache)"

    def folder(**variables: str) -> str:
        env = {k: v for k, v in os.environ.items() if k not in ("WEFT_CACHE", "XDG_CACHE_HOME")}
        command = [sys.executable, "-c", code]
        process = subprocess.run(command, env=env | variables, capture_output=True, text=True)
        return process.stdout.strip()

    assert folder(WEFT_CACHE="/else") == "/else"
    assert folder(HOME="/home/me").startswith(os.path.join("/home/me", ""))
    if sys.platform.startswith("linux"):
        assert folder(XDG_CACHE_HOME="/caches") == "/caches/weft"
