"""A process that runs pytest again and again, each time in a child that it forks.

It has imported what tests need besides weft, which takes longer than most tests. A line of JSON
asks for a run: the arguments of pytest, and the file for what it says. The answers are two lines:
the number of the child, which leads a group of its own, and its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys


def _child(arguments: list[str], output: str) -> int:
    os.setsid()
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    import pytest

    return int(pytest.main(arguments))


def main() -> int:
    """Serves until its input ends; the arguments are modules to import at first."""
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            return _child(asked["arguments"], asked["output"])
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
