"""Workers as threads of this process, where it does not matter that a process is another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.worker_processes import Worker
from weft.backends import Backend, make_backend
from weft.backends.remote.group import MachineGroup, machine_group
from weft.cluster.lent import Lender, worker_facts
from weft.cluster.running import serve_devices
from weft.links import Listener

__all__ = ["WorkerThread", "group_of"]


class WorkerThread(Worker):
    """A worker in a thread."""

    def __init__(
        self,
        cache: Path,
        model_dirs: Sequence[Path] = (),
        memory: int = 0,
        devices: Sequence[str | Backend] | None = None,
    ) -> None:
        """`memory` are the bytes that it lends; 0: what is free. `devices` is None for a cpu of one
        thread."""
        self._listener = Listener("127.0.0.1", 0, facts=worker_facts())
        super().__init__(self._listener.address.port)
        lent = [make_backend("cpu", n_threads=1)] if devices is None else devices
        self._thread = threading.Thread(
            target=serve_devices,
            args=(self._listener, Lender(lent, model_dirs, cache, memory=memory or None)),
            daemon=True,
        )
        self._thread.start()

    def end(self) -> None:
        """Closes the listener, and waits for the thread."""
        self._listener.close()
        self._thread.join(20)


@contextmanager
def group_of(workers: Sequence[WorkerThread]) -> Iterator[MachineGroup]:
    """The machines of workers, and the workers themselves, until the `with` block ends."""
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker)
        found = machine_group(",".join(worker.address for worker in workers))
        stack.callback(found.close)
        yield found
