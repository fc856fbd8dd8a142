"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(what: Callable[[], T | None], seconds: float = 120) -> T:
    """What `what` returns, once that is true; fails if it does not become so. The bound is not what
    is tested: a machine may be busy."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"not so within {seconds:g} seconds"
        time.sleep(0.02)
    return found
