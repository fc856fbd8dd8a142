"""A worker, which lends its devices to clients over links, as a process: what `weft worker` and
actors of Ray run, and its supervisor.

    listener = Listener("127.0.0.1", 0, key=key, facts=worker_facts())
    serve_devices(listener, Lender(["cpu"], model_dirs=["models"], cache_dir="cache", key=key))

`session.py` has the commands of a client, `weights.py` the worker's files, `streams.py` copies from
worker to worker.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from weft.cluster.lent import Lender
from weft.cluster.session import ClientSession
from weft.cluster.streams import takes
from weft.errors import LinkError, WeftError
from weft.flags import FLAGS
from weft.links import Limits, Link, Listener

_CLIENTS = 64
"""Maximum number of clients and streams at the same time."""


class Worker:
    """The links of a lender's clients."""

    def __init__(self, lender: Lender) -> None:
        """`lender` has the devices and files that clients use."""
        self._lender = lender
        self._links: set[Link] = set()
        self._lock = threading.Lock()

    def handle(self, link: Link) -> None:
        """Serves one link until it ends."""
        with self._lock:
            if len(self._links) >= _CLIENTS:
                link.close(f"this worker has {_CLIENTS} clients")
                return
            self._links.add(link)
        stream = False  # such a link is closed by its client's session
        try:
            header, _ = link.receive(10.0)
            if header.get("hello") == "client":
                facts = [d.facts() for d in self._lender.devices]
                link.send({"devices": facts, "pid": os.getpid()})
                ClientSession(self._lender, link).serve()
            elif header.get("hello") == "measure":
                self._measure(link, header)
            elif header.get("hello") == "stream":
                inlet = self._lender.inlets.get(str(header.get("secret")))
                if inlet is None:
                    link.send({"e": "there is no such stream"})
                else:
                    link.use_limits(takes())
                    stream = inlet.use(link)
                    link.send({"ok": True} if stream else {"e": "this stream has a sender"})
        except (WeftError, ValueError):
            pass
        finally:
            if not stream:
                link.close()
            with self._lock:
                self._links.discard(link)

    def _measure(self, link: Link, header: Mapping[str, Any]) -> None:
        """Measures the devices, one client at a time, while no other client's work runs there."""
        from weft.cluster.calibrate import answer_measure

        try:
            with ExitStack() as held:
                devices = self._lender.devices
                for device in devices:
                    held.enter_context(device.lock)
                answer_measure(link, header, [d.backend for d in devices], self._lender.memory)
        except LinkError:
            raise
        except Exception as error:
            link.send({"e": str(error)[:500]})

    def close(self) -> None:
        """Ends all links; their sessions free what they hold."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close("the worker was stopped")


def serve_devices(listener: Listener, lender: Lender) -> None:
    """Serves clients of a lender until the listener is closed; both have the same key."""
    worker = Worker(lender)
    try:
        while True:
            link = listener.accept()
            threading.Thread(target=worker.handle, args=(link,), daemon=True).start()
    except LinkError:
        return
    finally:
        worker.close()


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
    """The folders in which this machine keeps models: the caches of the hub and of packages."""
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
