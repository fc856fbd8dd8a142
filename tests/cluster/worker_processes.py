"""Workers as processes of their own, for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_CODE = """
import sys
from weft.cluster.lent import Lender, worker_facts
from weft.cluster.running import serve_devices
from weft.links import Listener
from weft.backends import make_backend
cache, memory, names, *dirs = sys.argv[1:]
listener = Listener("127.0.0.1", 0, facts=worker_facts())
print(listener.address.port, flush=True)
devices = [make_backend("cpu", n_threads=1) if n == "cpu" else n for n in names.split(",")]
serve_devices(listener, Lender(devices, dirs, cache, memory=int(memory) or None))
"""


class Worker:
    """A worker at a port of this machine; ends with the `with` block."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.cpu = f"remote:{self.address}/cpu"
        """The name of its cpu."""

    def end(self) -> None:
        """Ends the worker."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class WorkerProcess(Worker):
    """A worker with a cpu of one thread and other devices."""

    def __init__(
        self,
        cache: Path,
        model_dirs: Sequence[Path] = (),
        memory: int = 0,
        devices: str = "cpu,reference",
    ) -> None:
        """`memory` are the bytes that it lends; 0: what is free."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(cache), str(memory), devices, *map(str, model_dirs)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        super().__init__(int(self._process.stdout.readline()))

    def kill(self) -> None:
        """Ends the process as a power cut would."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Kills the process."""
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
