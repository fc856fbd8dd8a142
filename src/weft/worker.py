"""`Worker`: a process with limits, in which libraries do what a stranger's input asks of them.

A regex may take hours, a nested grammar may end the process: the worker's process, not this one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft import worker_program


class Worker:
    """A process that answers messages with a function of a module, and a package that it imports.

    `program` is the path of the module (see `worker_program.py`), `package` the name of the
    package, `memory` the maximum number of bytes of address space. `stack` is the number of bytes
    of stack, 0 for the default of the system; `idle` is the number of seconds without a message
    after which the process ends, 0 for never.

    Raises ModuleNotFoundError if the package is not installed, and OSError or ValueError if no
    process can be started."""

    def __init__(
        self, program: str, package: str, *, memory: int, stack: int = 0, idle: int = 0
    ) -> None:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"the package {package} is not installed", name=package)
        folder = Path(spec.origin).parent.parent
        self._process = subprocess.Popen(
            [
                sys.executable, "-I", "-S", worker_program.__file__,
                program, str(folder), str(memory), str(stack), str(idle),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._pid = os.getpid()
        self._whole = True
        self.end = weakref.finalize(self, _end, self._process, self._pid)
        """Ends the process."""

    @property
    def usable(self) -> bool:
        """False if the process has ended, if an answer of it was not read to its end, or if it
        belongs to the process that this one was forked from."""
        return self._whole and self._pid == os.getpid() and self._process.poll() is None

    def ask(
        self, asked: Any, *, seconds: int, deadline: float | None = None
    ) -> dict[str, Any] | None:
        """The reply to a message: `answer` or `error`; None if the process ended over it.

        `seconds` of a processor are the maximum for the answer. After `deadline` seconds the
        process is ended."""
        data = json.dumps({"seconds": seconds, "asked": asked}).encode()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        timer = None
        if deadline is not None:
            timer = threading.Timer(max(deadline, 0.0), self._process.kill)
            timer.daemon = True
            timer.start()
        self._whole = False  # until the reply is read, whatever comes between
        reply: dict[str, Any] | None = None
        try:
            with suppress(OSError, ValueError):
                stdin.write(len(data).to_bytes(8, "little") + data)
                stdin.flush()
                head = stdout.read(8)
                read = stdout.read(int.from_bytes(head, "little"))
                reply = json.loads(read) if read else None
        finally:
            if timer is not None:
                timer.cancel()
        self._whole = reply is not None
        return reply

    def status(self) -> int:
        """The exit status of the process, which has ended over a message."""
        return self._process.wait()


_inherited: list[subprocess.Popen[bytes]] = []
"""Processes of the process that this one was forked from. They are kept, because what ends with
them would be written to their pipes."""


def _end(process: subprocess.Popen[bytes], pid: int) -> None:
    if pid != os.getpid():
        _inherited.append(process)
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
