"""Executes the commands of one client, and owns the memory and executables they made.

    alloc id device bytes raw         free id            nothing
    write id offset + bytes           read id offset bytes -> + bytes
    copy to offset from offset bytes  left device -> bytes or null
    has size -> bool                  map id device hash size offset bytes raw -> bool
    stored id device hash bytes raw -> bool    store id hash bytes at + bytes
    load id device from layout type sizes
    lower id device program blocks    run id number values..    drop id
    inlet id secret source            outlet secret host port target -> bool
    send secret number from offset bytes    take id number to offset bytes
    record 0|1                        spans -> + times of runs
    ask device question values.. -> what its kernels say (`lent.py`)

Commands come in frames `{"n": number, "c": [command, ..], "a": 1 or 2}`. The answer `{"n": number,
"r": result}` follows where `a` says so, `{"n": number, "e": [kind, text]}` after a failure. Then
commands are skipped until a frame with `clear`, but for halves of copies, which keep the order.

A frame `{"stop": [id, first, last]}` overtakes all others: the runs of a program with these numbers
end between two pieces of work, or never begin, and what they would have written is undefined.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from weft.backends.remote.encode import whole
from weft.cluster.commands import MOST, Commands, abort
from weft.cluster.lent import Lender
from weft.errors import DeviceError, LinkError, OutOfMemoryError, ProgramError, WeftError
from weft.links import Link

_FRAMES = 1024
"""Maximum number of waiting frames; a client keeps to fewer."""
_FRAME = 64 << 20
"""Maximum number of bytes of arrays in a frame."""
_WAITING = 256 << 20
"""Maximum number of bytes in waiting frames."""


class ClientSession(Commands):
    """One client. A thread receives its frames, another does their commands."""

    def __init__(self, worker: Lender, link: Link) -> None:
        super().__init__(worker)
        self._link = link
        link.use_limits(replace(link.limits, allocated=_FRAME))
        self._frames: deque[tuple[dict[str, Any], list[Any]]] = deque()
        self._waiting = 0
        self._changed = threading.Lock()
        self._receiving = threading.Lock()
        self._busy = False
        self._failed: list[str] | None = None

    def serve(self) -> None:
        """Works until the client is gone, then frees everything."""
        other = threading.Thread(target=self._take_turns, name="weft-commands", daemon=True)
        other.start()
        self._take_turns()
        other.join()
        self._free_all()

    def _take_turns(self) -> None:
        """One of two threads: while one does commands, the other receives, which also answers the
        questions whether this worker is there. The one that received a frame does its commands at
        once, if the other is not busy."""
        try:
            while True:
                with self._receiving:
                    while True:
                        header, arrays = self._link.receive()
                        if self._put(header, arrays):
                            break
                self._work()
        except Exception:
            self._end()

    def _put(self, header: dict[str, Any], arrays: list[Any]) -> bool:
        """Takes a frame; True where the caller is to do the commands."""
        stop = header.get("stop")
        if stop is not None:
            if not isinstance(stop, list) or len(stop) != 3:
                raise ValueError("what is stopped is a program and two runs of it")
            self.stop(*stop)
            return False
        nbytes = sum(memoryview(a).nbytes for a in arrays)
        with self._changed:
            if len(self._frames) >= _FRAMES or self._waiting > _WAITING:
                raise LinkError(f"{self._link.peer} sends without waiting for answers")
            self._frames.append((header, arrays))
            self._waiting += nbytes
            mine, self._busy = not self._busy, True
            return mine

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._frames:
                    self._busy = False
                    return
                header, arrays = self._frames.popleft()
                self._waiting -= sum(memoryview(a).nbytes for a in arrays)
            self._frame(header, arrays)

    def _end(self) -> None:
        with self._changed:
            self._frames.clear()
        with self._stopping:
            self._ended = True
            if self._running is not None:
                abort(self._running[0])
        for _, inlet in list(self._inlets.values()):
            inlet.close("its client is gone")
        for outlet in list(self._outlets.values()):
            outlet.close("its client is gone")
        self._link.close()

    # ---- frames ----------------------------------------------------------------------------------

    def _frame(self, header: dict[str, Any], arrays: list[Any]) -> None:
        n = whole(header.get("n"), 0, MOST, "a frame's number")
        asks = whole(header.get("a", 0), 0, 2, "a")
        commands = header.get("c")
        if not isinstance(commands, list):
            raise ValueError("a frame without commands")
        if header.get("clear"):
            self._failed = None
        was_failed = self._failed is not None
        result: Any = None
        left = list(arrays)
        for command in commands:
            if not isinstance(command, list) or not command or not isinstance(command[0], str):
                raise ValueError("a command is a list that begins with its name")
            result = self._command(command, left)
        if self._failed is not None:
            if asks or not was_failed:
                self._link.send({"n": n, "e": self._failed})
        elif asks and isinstance(result, np.ndarray):
            self._link.send({"n": n}, result)
        elif asks:
            self._link.send({"n": n, "r": result})

    def _command(self, command: list[Any], arrays: list[Any]) -> Any:
        name, *values = command
        handler = self._handlers.get(name)
        if self._failed is not None:
            if name in ("write", "store") and arrays:
                arrays.pop(0)
            self._skip(name, values)
            return None
        try:
            if handler is None:
                raise DeviceError(f"there is no command {name[:40]!r}")
            return handler(arrays, *values)
        except Exception as error:
            self._failed = _described(error)
            if name == "send":
                self._skip(name, values)
            return None

    def _skip(self, name: str, values: list[Any]) -> None:
        """Keeps the order of streams, and frees what is gone, although something failed."""
        try:
            if name == "send" and self._failed is not None:
                self._outlets[values[0]].fail(values[1], self._failed[1])
            elif name == "take":
                self._inlets[values[0]][1].take(values[1])
            elif name in ("free", "drop"):
                self._handlers[name]([], *values)
        except Exception:
            return


def _described(error: Exception) -> list[str]:
    kind = "memory" if isinstance(error, OutOfMemoryError) else "device"
    kind = "program" if isinstance(error, ProgramError) else kind
    text = str(error) if isinstance(error, WeftError | ValueError) else repr(error)
    return [kind, text[:4000]]
