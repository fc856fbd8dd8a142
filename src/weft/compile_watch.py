"""Who is told while a program waits until kernels of a device are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Watcher(Protocol):
    """Shows how many kernels are ready. Any thread may call it."""

    def __call__(self, device: str, ready: int, asked: int) -> None:
        """The program waits for a kernel of a device, which has been asked for `asked` kernels and
        has compiled `ready` of them."""

    def stop(self) -> None:
        """It waits no more."""


watchers: list[Watcher] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tells `watcher` of the waits of all devices; without one, nothing is shown."""
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)
        watcher.stop()
