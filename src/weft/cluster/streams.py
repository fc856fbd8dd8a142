"""Bytes that go from one worker straight to another, in an order that their client gives.

The client opens an `Inlet` at the receiver, under a secret of its own, and an `Outlet` at the
sender, which connects and shows the secret. The receiver says what it has taken, so that at most
`AHEAD` bytes wait there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from weft.errors import DeviceError, LinkError
from weft.links import Link, connect

__all__ = ["AHEAD", "Inlet", "Outlet"]

AHEAD = 32 << 20
"""Bytes that were sent and not taken yet; one copy may be larger."""
_WAIT = 600.0


class Inlet:
    """Copies that arrive, until the receiver's commands take them."""

    def __init__(self, source: str) -> None:
        self.source = source
        """The worker that sends, as errors name it."""
        self._arrived: deque[tuple[int, Any, str]] = deque()
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._why = ""

    def serve(self, link: Link) -> None:
        """Receives until the link ends; a second link is refused."""
        with self._changed:
            if self._link is not None or self._why:
                link.close("this stream has a sender")
                return
            self._link = link
        try:
            while True:
                header, arrays = link.receive()
                self._put(header, arrays)
        except Exception as error:
            self.close(str(error))

    def _put(self, header: dict[str, Any], arrays: list[Any]) -> None:
        with self._changed:
            waiting = sum(memoryview(a).nbytes for _, a, _ in self._arrived if a is not None)
            if waiting > 2 * AHEAD or len(self._arrived) > 4096:
                raise LinkError(f"{self.source} sent more than was taken")
            why = str(header.get("e", ""))[:1000]
            if not why and len(arrays) != 1:
                raise LinkError(f"{self.source} sent a copy without bytes")
            self._arrived.append((int(header["s"]), None if why else arrays[0], why))
            self._changed.notify_all()

    def take(self, number: int) -> Any:
        """The bytes of copy `number`, the next in order; raises DeviceError where there are none."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._why, _WAIT)
            if not self._arrived:
                why = self._why or f"nothing came within {_WAIT:g} s"
                raise DeviceError(f"no bytes from {self.source}: {why}")
            at, data, why = self._arrived.popleft()
            link = self._link
        if link is not None:
            try:
                link.send({"took": at})
            except LinkError:
                pass  # the next take says so
        if at != number:
            raise DeviceError(f"{self.source} sent copy {at}, and copy {number} was next")
        if data is None:
            raise DeviceError(f"{self.source}: {why}")
        return data

    def close(self, why: str) -> None:
        """Ends the stream; what waits for it fails."""
        with self._changed:
            self._why = self._why or why
            self._changed.notify_all()
        if self._link is not None:
            self._link.close()


class Outlet:
    """The sender's end of a stream."""

    def __init__(
        self, secret: str, address: tuple[str, int], key: bytes | None, facts: dict[str, str],
        target: str,
    ) -> None:  # fmt: skip
        """Connects; raises LinkError."""
        self.target = target
        self._link = connect(address, key=key, facts=facts, timeout=5.0)
        self._link.send({"hello": "stream", "secret": secret})
        header, _ = self._link.receive(5.0)
        if header.get("ok") is not True:
            self._link.close()
            raise LinkError(f"{target} refused the stream: {header.get('e', '')}")
        self._changed = threading.Condition()
        self._ahead: deque[tuple[int, int]] = deque()
        self._why = ""
        threading.Thread(target=self._read, name="weft-stream", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                header, _ = self._link.receive()
                with self._changed:
                    while self._ahead and self._ahead[0][0] <= int(header.get("took", 0)):
                        self._ahead.popleft()
                    self._changed.notify_all()
        except Exception as error:
            self.close(str(error))

    def send(self, number: int, data: Any) -> None:
        """Sends the bytes of copy `number`; waits while too much is ahead."""
        nbytes = memoryview(data).nbytes
        until = time.monotonic() + _WAIT
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._why or not self._ahead or sum(n for _, n in self._ahead) + nbytes <= AHEAD
                ),
                until - time.monotonic(),
            )
            if self._why:
                raise DeviceError(f"no way to {self.target}: {self._why}")
            self._ahead.append((number, nbytes))
        self._link.send({"s": number}, data)

    def fail(self, number: int, why: str) -> None:
        """Says that copy `number` will not come."""
        if not self._why:
            self._link.send({"s": number, "e": why[:1000]})

    def close(self, why: str = "") -> None:
        """Ends the stream."""
        with self._changed:
            self._why = self._why or why or "it was closed"
            self._changed.notify_all()
        self._link.close()
