"""Kernels while they are compiled: each once, by a thread beforehand or by the first who needs it.

A device counts the kernels that it was asked for and those that are ready. While the host waits for
some, watchers are told both numbers (`weft.compile_watch`): nothing else shows a wait that may take
a minute where no compiled kernels are kept on disk.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any
from weakref import ref

from weft.compile_watch import watchers
from weft.control_group import usable_processors


class Compiled:
    """A kernel that is compiled, or will be by a thread or by the first who needs it."""

    def __init__(self, of: Compiling, make: Callable[[], Any]) -> None:
        self._of: Compiling | None = of  # as long as it is not compiled
        self._make = make
        self._lock = Lock()
        self._result: Any = None

    def get(self) -> Any:
        """The result of `make`; raises DeviceError where the kernel does not build."""
        of = self._of
        if of is not None:
            of.tell()
            try:
                self.prepare()
            except BaseException:  # an interrupt, too, ends the wait
                of.all_there()
                raise
            of.tell()
        return self._result

    def prepare(self) -> None:
        """Compiles it, unless that has been done. Same errors as `get`."""
        with self._lock:
            of = self._of
            if of is not None:
                self._result = self._make()
                self._of = None
                del self._make  # it may refer to the device
                of.add_ready()


class Compiling:
    """The kernels of a device that somebody has asked for."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._lock = Lock()
        self._compiled: dict[Hashable, Compiled] = {}
        self._ready = 0
        self._is_told = False

    @property
    def n_asked(self) -> int:
        """The number of kernels that were asked for."""
        return len(self._compiled)

    def asked(self, key: Hashable, make: Callable[[], Any], *, early: bool = False) -> Compiled:
        """The kernel of a key; `make` compiles it and raises DeviceError where it does not build.
        With `early`, a thread begins with that now."""
        found = self._compiled.get(key)
        if found is None:
            with self._lock:
                found = self._compiled.get(key)
                if found is None:
                    found = self._compiled[key] = Compiled(self, make)
                    if early:
                        _workers.add(found)
        return found

    def add_ready(self) -> None:
        """Counts a kernel that is compiled."""
        with self._lock:
            self._ready += 1

    def tell(self) -> None:
        """Tells that the host waits for a kernel."""
        self._is_told = True
        for watcher in tuple(watchers):
            watcher(self.device, self._ready, self.n_asked)

    def all_there(self) -> None:
        """Tells that the host has the kernels that it needs."""
        if self._is_told:
            self._is_told = False
            for watcher in tuple(watchers):
                watcher.stop()


class _Workers:
    """Threads that compile, started on first use; what is no longer wanted by then is left out. At
    exit each ends after what it is at."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], Compiled | None]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._ended = Event()
        self._lock = Lock()
        self._pid = os.getpid()

    def add(self, compiled: Compiled) -> None:
        if self._pid != os.getpid():  # the threads are not in a process forked from theirs
            return
        with self._lock:
            if not self._threads:
                self._start(max(1, min(4, usable_processors() - 1)))
        self._waiting.put(ref(compiled))

    def _start(self, n: int) -> None:
        for i in range(n):
            thread = Thread(target=self._work, name=f"weft-compiler-{i}", daemon=True)
            self._threads.append(thread)
            thread.start()
        atexit.register(self._end)

    def _work(self) -> None:
        while not self._ended.is_set():
            compiled = self._waiting.get()()
            if compiled is not None:
                try:
                    compiled.prepare()
                except Exception:
                    pass  # raised again for the first who needs it
            del compiled  # its device may go while this thread waits

    def _end(self) -> None:
        self._ended.set()
        for _ in self._threads:
            self._waiting.put(lambda: None)
        for thread in self._threads:
            thread.join(10)


_workers = _Workers()
