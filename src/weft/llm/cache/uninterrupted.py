"""`uninterrupted` runs work that Ctrl-C must not cut in two."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread


def uninterrupted(work: Callable[[], None]) -> None:
    """Runs `work` on a thread of its own, which Ctrl-C does not reach, and raises what it raises.

    A Ctrl-C that comes meanwhile is raised when the work has ended."""
    go, ended = Event(), Event()
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
            ended.set()

    interrupt = None
    try:
        Thread(target=body, name="weft-uninterrupted", daemon=True).start()
    except BaseException:  # Ctrl-C while the thread starts: nothing has begun
        given_up = True
        go.set()
        raise
    while not ended.is_set():
        try:
            go.set()
            ended.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if failures:
        raise failures[0]
    if interrupt is not None:
        raise interrupt
