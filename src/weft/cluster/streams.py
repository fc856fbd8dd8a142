"""Bytes that go from one worker straight to another, in an order that their client gives.

The client opens an `Inlet` at the receiver, under a secret of its own, and an `Outlet` at the
sender, which connects and shows the secret. Each side uses the link in the order of the client's
commands, in the thread that does them: what was sent and not taken yet waits in the buffers of the
network, and the sender with it. While a receiver waits, it asks whether the sender is there, so
that a network which is cut between the two is found although both are well.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

from weft.errors import DeviceError, LinkError
from weft.flags import FLAGS
from weft.links import Limits, Link, connect

_WAIT = 600.0
"""Maximum number of seconds that one side waits for the other, which may have much to compute
before."""
_CONNECTED = 5.0
"""Maximum number of seconds for a sender to connect."""
_SENDS = Limits(header=64 << 10, arrays=1, silence=math.inf, ping=1e9)
"""Limits of the sender, whose bytes are not taken before it is their turn. If that never comes, the
client ends the stream."""


def _silence() -> float:
    """Seconds without a sign of the other worker after which it counts as lost."""
    return float(max(FLAGS.machine_timeout, 1))


def takes() -> Limits:
    """Limits of the receiver."""
    return replace(_SENDS, silence=_silence(), ping=1.0)


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
        wait = min(_CONNECTED, _silence())
        self._link = connect(address, key=key, facts=facts, timeout=wait, limits=_SENDS)
        self._link.send({"hello": "stream", "secret": secret})
        header, _ = self._link.receive(_CONNECTED)
        if header.get("ok") is not True:
            self._link.close()
            raise LinkError(f"{target} refused the stream: {str(header.get('e', ''))[:200]}")
        threading.Thread(target=self._answer, name="weft-outlet", daemon=True).start()

    def _answer(self) -> None:
        """Answers the receiver's questions whether this worker is there, until the stream ends."""
        try:
            while True:
                self._link.receive()
        except LinkError:
            return

    def send(self, number: int, data: Any) -> None:
        """Sends the bytes of copy `number`. Where they do not arrive, the receiver's commands fail,
        or it is gone: this worker has not failed, and the work of its other clients goes on."""
        self._send({"s": number}, data)

    def fail(self, number: int, why: str) -> None:
        """Says that copy `number` will not come."""
        self._send({"s": number, "e": why[:1000]})

    def _send(self, header: dict[str, Any], *data: Any) -> None:
        with suppress(LinkError):
            self._link.send(header, *data)

    def close(self, why: str = "") -> None:
        """Ends the stream."""
        self._link.close(why)
