"""A command without a process of its own: the same `main`, in a tenth of the time."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from weft.cli import main
from weft.serve.log import _LOGS

__all__ = ["Done", "weft"]


@dataclass(frozen=True)
class Done:
    """What a process would leave."""

    returncode: int
    stdout: str
    stderr: str


def weft(*args: str | Path, typed: str | bytes = "") -> Done:
    """`weft ARGS` with `typed` as its standard input."""
    data = typed.encode() if isinstance(typed, str) else typed
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())  # main shows them its own way
        stack.enter_context(mock.patch("sys.argv", ["weft", *map(str, args)]))
        stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
        stack.enter_context(mock.patch("sys.stdin", stdin))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(_logs_stay())
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _logs_stay() -> Iterator[None]:
    """Gives the logs of this process back what they had: `weft serve` takes them for itself, and
    a server in another thread may write to them."""
    logs = [logging.getLogger(name) for name in _LOGS]
    before = [(log.handlers[:], log.propagate, log.level) for log in logs]
    try:
        yield
    finally:
        for log, (handlers, propagate, level) in zip(logs, before, strict=True):
            for handler in set(log.handlers) - set(handlers):
                handler.close()
            log.handlers[:], log.propagate = handlers, propagate
            log.setLevel(level)
