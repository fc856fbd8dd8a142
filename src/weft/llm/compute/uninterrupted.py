"""Work that must not stop half way."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

__all__ = ["uninterrupted"]


def uninterrupted(work: Callable[[], None]) -> None:
    """Runs `work` on a thread of its own, where Ctrl-C does not reach; one that came meanwhile is
    raised when it is done. What `work` raises is raised here."""
    go, done = Event(), Event()
    failures = list[BaseException]()
    given_up = False

    def body() -> None:
        go.wait()
        try:
            if not given_up:
                work()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    interrupt = None
    try:
        Thread(target=body, name="weft-uninterrupted", daemon=True).start()
    except BaseException:  # Ctrl-C while the thread starts: nothing has begun
        given_up = True
        go.set()
        raise
    while not done.is_set():
        try:
            go.set()
            done.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if failures:
        raise failures[0]
    if interrupt is not None:
        raise interrupt
