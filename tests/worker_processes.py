"""Workers as processes of this machine, and a proxy that breaks the network between."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.backends.remote.memory import RemoteBufferType
from weft.errors import OutOfMemoryError


class WorkerProcess:
    """`weft worker`, supervised or not."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environ: dict[str, str] | None = None,
        host: str = "127.0.0.1",
        popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
    ) -> None:
        command = [sys.executable, "-m", "weft", "worker", "--listen", f"{host}:0", *options]
        command += ["--cache-dir", str(folder)]
        self.process = popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"WEFT_MACHINE_TIMEOUT": "3"} | (environ or {}),
        )
        self.lines: list[str] = []
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        self.lines.append(first)
        found = re.search(rf"{re.escape(host)}:\d+", first)
        assert found is not None, first + self.process.stderr.read()
        self.address = found[0]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def children(self) -> list[int]:
        """The processes that a supervisor runs."""
        pid = self.process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]

    def serving(self, seconds: float = 20.0) -> int:
        """The process that serves: the supervisor's child, or the process itself."""
        if "--no-restart" in self.process.args:  # type: ignore[operator]
            return self.process.pid
        until = time.monotonic() + seconds
        while not (found := self.children()):
            assert time.monotonic() < until, "the supervisor runs nothing"
            time.sleep(0.02)
        return found[0]

    def signal(self, number: int) -> int:
        """Sends a signal to the process that serves."""
        pid = self.serving()
        os.kill(pid, number)
        return pid

    def end(self) -> None:
        """Ends it, and waits for that."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def workers(n: int, folder: Path, *options: str, **more: Any) -> Iterator[list[WorkerProcess]]:
    """`n` of them, each with a cache folder of its own."""
    made: list[WorkerProcess] = []
    try:
        for i in range(n):
            made.append(WorkerProcess(folder / f"worker{i}", *options, **more))
        yield made
    finally:
        for worker in made:
            worker.end()


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended; its parent may not have taken note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def lends(memory: RemoteBufferType, nbytes: int) -> bool:
    """Whether a worker has so many bytes free; it has them back when this returns."""
    try:
        memory.allocate(nbytes)
        memory.machine.synchronize()
    except OutOfMemoryError:
        return False
    return True


class Proxy:
    """Passes bytes on to an address, until it is told to cut, to drop or to delay them."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.drops = False
        """Takes bytes and passes none on, as a partition does."""
        self.delay = 0.0
        """Seconds by which each piece is late."""
        self.change: Any = None
        """A function over each piece that comes from the target."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [near, far]
            for source, into, back in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass, args=(source, into, back), daemon=True).start()

    def _pass(self, source: socket.socket, into: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if self.delay:
                    time.sleep(self.delay)
                if back and self.change is not None:
                    data = self.change(data)
                if not self.drops:
                    into.sendall(data)
        except OSError:
            pass
        for sock in (source, into):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self) -> None:
        """Ends the connections that there are; new ones are passed on."""
        for sock in self._open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Ends it."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self.cut()
        for sock in self._open:
            sock.close()
