"""Work that must not stop half way."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

__all__ = ["uninterrupted"]


def uninterrupted(work: Callable[[], None]) -> None:
    """Runs `work` on a thread of its own, where Ctrl-C does not reach; one that came meanwhile is
    raised when it is done. What `work` raises is raised here."""
    done, failures = Event(), list[BaseException]()

    def body() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    interrupt = None
    Thread(target=body, name="weft-uninterrupted", daemon=True).start()
    while not done.is_set():
        try:
            done.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if failures:
        raise failures[0]
    if interrupt is not None:
        raise interrupt
