"""Bytes that go from one worker straight to another, in an order that their client gives.

The client opens an `Inlet` at the receiver, under a secret of its own, and an `Outlet` at the
sender, which connects and shows the secret. Each side uses the link in the order of the client's
commands, in the thread that does them: what was sent and not taken yet waits in the buffers of the
network, and the sender with it.
"""

from __future__ import annotations

import threading
from typing import Any

from weft.errors import DeviceError, LinkError
from weft.links import Limits, Link, connect

__all__ = ["STREAM_LIMITS", "Inlet", "Outlet"]

_WAIT = 600.0
"""Seconds that one side waits for the other, which may have much to compute before."""
STREAM_LIMITS = Limits(header=64 << 10, arrays=1, silence=_WAIT, ping=1e9)
"""Limits of such links. The links of both workers to their client have heartbeats; these need none:
where one of the workers is lost, the client is told, and ends this."""


class Inlet:
    """The receiver's end of a stream."""

    def __init__(self, source: str) -> None:
        self.source = source
        """The worker that sends, as errors name it."""
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._why = ""

    def use(self, link: Link) -> bool:
        """Takes the sender's link; False where there is one already."""
        with self._changed:
            if self._link is not None or self._why:
                return False
            self._link = link
            self._changed.notify_all()
            return True

    def take(self, number: int) -> Any:
        """The bytes of copy `number`, the next in order; raises DeviceError if they do not come."""
        with self._changed:
            self._changed.wait_for(lambda: self._link or self._why, 10.0)
            link = self._link
        if link is None or self._why:
            raise DeviceError(f"no bytes from {self.source}: {self._why or 'it did not connect'}")
        try:
            header, arrays = link.receive(_WAIT)
        except LinkError as error:
            raise DeviceError(f"no bytes from {self.source}: {error}") from error
        if header.get("s") != number:
            self.close(f"it sent copy {str(header.get('s'))[:20]}, and {number} was next")
            raise DeviceError(f"{self.source}: {self._why}")
        if "e" in header or len(arrays) != 1:
            raise DeviceError(f"{self.source}: {str(header.get('e', 'no bytes'))[:1000]}")
        return arrays[0]

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
        self._link = connect(address, key=key, facts=facts, timeout=5.0, limits=STREAM_LIMITS)
        self._link.send({"hello": "stream", "secret": secret})
        header, _ = self._link.receive(5.0)
        if header.get("ok") is not True:
            self._link.close()
            raise LinkError(f"{target} refused the stream: {str(header.get('e', ''))[:200]}")

    def send(self, number: int, data: Any) -> None:
        """Sends the bytes of copy `number`; raises DeviceError where they do not arrive."""
        self._send({"s": number}, data)

    def fail(self, number: int, why: str) -> None:
        """Says that copy `number` will not come."""
        self._send({"s": number, "e": why[:1000]})

    def _send(self, header: dict[str, Any], *data: Any) -> None:
        try:
            self._link.send(header, *data)
        except LinkError as error:
            raise DeviceError(f"no way to {self.target}: {error}") from error

    def close(self, why: str = "") -> None:
        """Ends the stream."""
        self._link.close(why)
