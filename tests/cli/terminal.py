"""A command in a terminal of its own, for what only happens there."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import time
from pathlib import Path

__all__ = ["Terminal"]


class Terminal:
    """`weft ARGS` behind a pseudo terminal; what it prints is in `text`."""

    def __init__(self, *args: str | Path, environment: dict[str, str] | None = None) -> None:
        """`environment`: instead of that of this process."""
        import fcntl
        import pty
        import termios

        self.text = ""
        command = [sys.executable, "-m", "weft", *map(str, args)]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            base = os.environ if environment is None else environment
            size = struct.pack("HHHH", 30, 100, 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execve(sys.executable, command, {**base, "TERM": "xterm", "COLUMNS": "100"})

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def send(self, keys: str) -> None:
        """Types `keys`."""
        os.write(self.fd, keys.encode())

    def wait_for(self, part: str, after: int = 0, seconds: float = 60) -> int:
        """Reads until `part` is in the text behind index `after`; returns the index behind it."""
        end = time.monotonic() + seconds
        while part not in self.text[after:]:
            assert time.monotonic() < end, f"no {part!r} in {self.text[after:]!r}"
            assert self._read(1.0), f"it ended without {part!r}: {self.text[after:]!r}"
        return self.text.index(part, after) + len(part)

    def exit_code(self, seconds: float = 60) -> int:
        """Waits for the end. As shells have it, 130 is also the end by Ctrl-C's signal, with which
        Python itself ends where the interrupt came while it ran a text as code (`exec`)."""
        end = time.monotonic() + seconds
        while self._read(1.0):
            assert time.monotonic() < end, self.text
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return 130 if code == -signal.SIGINT else code

    def _read(self, seconds: float) -> bool:
        """Whether there may be more."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the other side is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
