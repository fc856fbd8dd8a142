"""A worker as a process: what `weft worker` and actors of Ray run, and its supervisor.

The supervisor starts a worker again when its process has crashed, on the same port. It holds the
socket that listens, so that clients which connect in between wait in its queue and are not refused.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.cluster.lent import Lender
from weft.cluster.worker import serve_devices
from weft.flags import FLAGS
from weft.links import Limits, Listener


class Refusals:
    """Tells why connections were refused, at most once in `seconds` and with their number."""

    def __init__(self, say: Callable[[str], None], seconds: float = 10.0) -> None:
        self._say, self._seconds = say, seconds
        self._lock = threading.Lock()
        self._last = float("-inf")
        self._untold = 0

    def __call__(self, why: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._last < self._seconds:
                self._untold += 1
                return
            more, self._untold, self._last = self._untold, 0, now
        self._say(f"refused: {why}" + (f" ({more} more before)" if more else ""))


def run_worker(
    sock: socket.socket,
    host: str,
    lender: Lender,
    *,
    say: Callable[[str], None],
    ends_with_stdin: bool = False,
) -> None:
    """Lends devices on a socket that listens, until Ctrl-C.

    With `ends_with_stdin`, also until the process that started this one is gone: the other end of
    stdin is closed then."""
    limits = Limits(silence=float(max(FLAGS.machine_timeout, 1)))
    listener = Listener(
        host, key=lender.key, facts=lender.facts, limits=limits, on_refused=Refusals(say), sock=sock
    )
    if ends_with_stdin:
        threading.Thread(target=_end_with_stdin, args=(listener,), daemon=True).start()
    try:
        serve_devices(listener, lender)
    finally:
        listener.close()


def known_folders() -> list[Path]:
    """The folders in which this machine keeps models by name: those of the hub and of packages."""
    packages = Path(FLAGS.cache) / "packages"
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return [packages]
    return [Path(HF_HUB_CACHE), packages]


def _end_with_stdin(listener: Listener) -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock an end of the interpreter would wait for
        pass
    listener.close()
    time.sleep(1.0)
    os._exit(0)  # a kernel may be running


_SLOWEST = 10.0
"""Maximum number of seconds between a crash and the next start."""


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
                command, stdin=subprocess.PIPE, pass_fds=[sock.fileno()], start_new_session=True
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
