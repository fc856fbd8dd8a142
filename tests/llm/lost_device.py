"""A device that tests can lose at will."""

from __future__ import annotations

from tests.backend_suite import Failing
from weft.backends import make_backend

__all__ = ["Lost"]


class Lost(Failing):
    """NumPy in memory of its own; it fails where and when it is told."""

    kind = "ACCEL"

    def __init__(self) -> None:
        super().__init__(make_backend("reference"))
        self.once = False

    def lose(self, what: str, after: int = 0, *, once: bool = False) -> None:
        """Makes calls of this kind fail after `after` more calls: all of them, or only one."""
        self.fail, self.after, self.once = what, after, once

    def check(self, what: str) -> None:
        """As of `Failing`."""
        try:
            super().check(what)
        except RuntimeError:
            self.fail = "" if self.once else self.fail
            raise
