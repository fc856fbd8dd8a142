"""Measures the speed of a link, and notices when it becomes slower."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from weft.links.link import PROBE, Link

_TIMES_SLOWER = 4.0
_SECONDS_MORE = 0.01
"""A link is slow if a round trip, or a transfer, takes this factor and this number of seconds
longer than at first."""
_PROBE_S = 0.005
"""Number of seconds that the bytes of a measurement take on a link of the first speed."""
_ROUNDS = 2
"""Number of consecutive slow measurements after which a link counts as slow."""


class Speed(NamedTuple):
    """The speed of a link."""

    rtt: float
    """Number of seconds of a round trip."""
    rate: float
    """Bytes per second towards the other side."""

    def __str__(self) -> str:
        return f"{1e3 * self.rtt:.2f} ms for a round trip, {self.rate / 1e6:.1f} MB/s"


def measure(link: Link, seconds: float = 3.0, nbytes: int = PROBE) -> Speed | None:
    """The least of a few round trips, and the rate of `nbytes`; None where no answer came in time.

    Another thread must be in `receive` of the link, on both sides."""
    until = time.monotonic() + seconds
    times = []
    for _ in range(3):
        before = link.pings
        link.ping()
        if not _until(lambda before=before: link.pings > before, until):  # type: ignore[misc]
            return None
        times.append(link.last_rtt)
    link.probes.clear()
    link.ping(nbytes)
    if not _until(lambda: len(link.probes) > 0, until):
        return None
    sent, took = link.probes[-1]
    rtt = min(times)
    # below two round trips their difference is mostly chance, and the rate is at least this
    return Speed(rtt, sent / (took - rtt if took > 2 * rtt else max(took, 1e-6)))


def _until(what: Callable[[], bool], until: float) -> bool:
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.0005)
    return True


class SpeedWatch:
    """Compares a link with its first speed, and reports once that it has become slower."""

    def __init__(self, name: str, first: Speed) -> None:
        self.name, self.first = name, first
        self.nbytes = max(min(int(first.rate * _PROBE_S), PROBE), 1 << 14)
        """Number of bytes of a measurement."""
        self._slow = 0
        self.said = False

    def look(self, now: Speed | None) -> str | None:
        """A sentence with figures where the link has been slow for `_ROUNDS` looks; once."""
        if now is None:
            return None
        first = self.first
        late = now.rtt > _TIMES_SLOWER * first.rtt and now.rtt > first.rtt + _SECONDS_MORE
        thin = now.rate * _TIMES_SLOWER < first.rate and self.nbytes / now.rate > _SECONDS_MORE
        self._slow = self._slow + 1 if late or thin else 0
        if self._slow < _ROUNDS or self.said:
            return None
        self.said = True
        return (
            f"the link to {self.name} is slow: {now}; it was {first} when it was connected. Look "
            "at the network between, or leave the machine out"
        )
