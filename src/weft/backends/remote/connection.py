"""`Connection`: one link to a worker: frames under way, answers as they come, and failures.

The client numbers its frames. The worker answers those that ask, in order; an answer says that all
frames before it are done, too. A thread reads answers as long as the machine is in use.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, Protocol

from weft.errors import DeviceError, OutOfMemoryError, ProgramError, WeftError
from weft.links import Link
from weft.links.stream import TimedOut

WAIT = 600.0
"""Seconds after which a command that the worker has not answered counts as failed."""
_UNDER_WAY = 128
"""Frames that may be on their way, or wait at the worker."""
_BYTES_UNDER_WAY = 64 << 20
_SWEEP = 1.0
"""Seconds without a frame after which the worker is told of the memory that was freed meanwhile."""
_KINDS: dict[str, type[WeftError]] = {
    "memory": OutOfMemoryError,
    "program": ProgramError,
    "device": DeviceError,
}


class Sweeps(Protocol):
    """Whoever uses a connection."""

    def sweep(self, connection: object) -> None:
        """Called now and then while nothing comes."""


class Answer:
    """The answer to a frame: a result with arrays, or an error."""

    __slots__ = ("arrays", "error", "ready", "result")

    def __init__(self) -> None:
        self.ready = threading.Lock()
        self.ready.acquire()
        self.error: WeftError | None = None
        self.result: Any = None
        self.arrays: list[Any] = []

    def set(self) -> None:
        """Lets whoever waits go on."""
        self.ready.release()

    def wait(self, timeout: float) -> bool:
        """Waits for the answer; False if it has not come within `timeout` seconds."""
        if not self.ready.acquire(timeout=timeout):
            return False
        self.ready.release()
        return True


class Connection:
    """One link to the worker, with the thread that reads answers from it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.next = 1
        self.done = 0
        """The number of the last frame whose end the worker has confirmed."""
        self.lost: str = ""
        self.fault: WeftError | None = None
        self.clears = False
        """True if the next frame acknowledges the failure."""
        self.known = 0
        """Failures of frames below this number are acknowledged."""
        self.answers: dict[int, Answer] = {}
        self.under_way: deque[tuple[int, int]] = deque()
        self.bytes_under_way = 0
        self.changed = threading.Condition()

    def start(self, name: str, machine: Sweeps) -> None:
        """Reads from now on, as long as the machine is in use."""
        self._machine = weakref.ref(machine)
        weakref.finalize(machine, self.lose, "nobody uses it any more").atexit = False
        threading.Thread(target=self._read, name=f"weft-{name}", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                try:
                    header, arrays = self.link.receive(_SWEEP)
                except TimedOut:
                    self._sweep()
                    continue
                self._take(header, arrays)
        except Exception as error:
            self.lose(str(error))

    def _sweep(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.sweep(self)

    @property
    def has_room(self) -> bool:
        """Whether a frame goes out without waiting for earlier ones."""
        few = len(self.under_way) < _UNDER_WAY
        return few and self.bytes_under_way <= _BYTES_UNDER_WAY

    def make_room(self, number: int, nbytes: int) -> bool:
        """Counts a frame that goes out, once the worker has done enough of what is under way.
        Returns whether so much is under way that the worker should say when it has done it."""
        with self.changed:
            ok = self.changed.wait_for(
                lambda: self.lost or not self.under_way or self.has_room, WAIT
            )
            self.under_way.append((number, nbytes))
            self.bytes_under_way += nbytes
            much = self.bytes_under_way > _BYTES_UNDER_WAY // 4
        if not ok:
            self.lose(f"it did nothing for {WAIT:g} s")
        return bool(much)

    def _take(self, header: dict[str, Any], arrays: list[Any]) -> None:
        n = int(header.get("n", 0))
        error = header.get("e")
        with self.changed:
            self.done = max(self.done, n)
            while self.under_way and self.under_way[0][0] <= n:
                self.bytes_under_way -= self.under_way.popleft()[1]
            answer = self.answers.pop(n, None)
            if error is not None:
                what = _KINDS.get(str(error[0]), DeviceError)(str(error[1]))
                if answer is not None:
                    answer.error = what
                elif n >= self.known:
                    self.fault = self.fault or what
            if answer is not None:
                answer.result, answer.arrays = header.get("r"), arrays
                answer.set()
            self.changed.notify_all()

    def told(self) -> WeftError | None:
        """The failure that was not raised yet; the caller raises it."""
        with self.changed:
            fault, self.fault = self.fault, None
            self.clears, self.known = True, self.next
        return fault

    def lose(self, why: str) -> None:
        """Ends the connection: whoever waits gets an error."""
        with self.changed:
            self.lost = self.lost or why
            for answer in self.answers.values():
                answer.set()
            self.answers.clear()
            self.changed.notify_all()
        self.link.close()
