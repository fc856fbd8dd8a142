"""Starts a worker again when its process has crashed, on the same port.

The supervisor holds the socket that listens, so that clients which connect in between wait in its
queue and are not refused.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["supervise"]

_SLOWEST = 10.0
"""The maximum number of seconds between a crash and the next start."""


def supervise(sock: socket.socket, arguments: Sequence[str], say: Callable[[str], None]) -> None:
    """Runs `weft worker` with `arguments` on `sock`, again after every crash, until Ctrl-C or
    SIGTERM. A worker that crashes within a second is started again later and later."""
    sock.set_inheritable(True)
    command = [sys.executable, "-m", "weft", "worker", *arguments]
    command += ["--serve-socket", str(sock.fileno())]
    before = signal.signal(signal.SIGTERM, _interrupt)
    pause = 0.1
    process: subprocess.Popen[bytes] | None = None
    try:
        while True:
            began = time.monotonic()
            # its end of stdin closes when this process ends, however it ends
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=[sock.fileno()],
                start_new_session=True,
            )
            code = process.wait()
            if code in (0, 1, 2):  # it said why
                raise SystemExit(code)
            pause = 0.1 if time.monotonic() - began > 1.0 else min(2 * pause, _SLOWEST)
            how = f"by signal {-code}" if code < 0 else f"with status {code}"
            say(f"the worker process ended {how}; starting it again in {pause:.1f} s")
            time.sleep(pause)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
        if process is not None:
            _end(process)
        sock.close()


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
