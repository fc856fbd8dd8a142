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
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["baseline", "1"], done.stderr
