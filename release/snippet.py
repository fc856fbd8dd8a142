"""Runs the first Python snippet of README.md, and holds it to what the README says it prints.

    python snippet.py [FOLDER]   # the checkout with README.md and examples/; default: this file's

The tests of wheels run it, with nothing but the installed wheel.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import sys
from pathlib import Path


def main() -> int:
    here = Path(__file__).resolve().parent.parent
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    text = (folder / "README.md").read_text("utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    if found is None:
        print("README.md has no snippet of Python")
        return 1
    code = found.group(1)
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    os.chdir(folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    lines = [line.strip() for line in printed.getvalue().splitlines() if line.strip()]

    import weft
    from weft.native import _native

    best = _native.best_target()
    print(f"weft {weft.__version__}, {platform.python_version()} on {platform.machine()}, {best}")
    print(f"README's snippet printed {lines}, expected {expected}")
    return 0 if lines == expected else 1


if __name__ == "__main__":
    sys.exit(main())
