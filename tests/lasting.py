"""What takes long to start, kept for all tests of a unit (`tests.units`) and ended behind the last.

A fixture of pytest lasts for a file or for the whole session. A cluster or a browser is shared by
several files, but it must not outlive them: its processes take the processor from other tests, and
the browser's driver keeps an event loop running in this thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, TypeVar

import pytest

from tests.units import unit_of

T = TypeVar("T")
_all: list[Lasting[Any]] = []


class Lasting(Generic[T]):
    """A context that the first test of a unit enters, and that is left behind the last one."""

    def __init__(self, unit: str, make: Callable[[], AbstractContextManager[T]]) -> None:
        """`unit` is the name of an `xdist_group`."""
        self.unit = unit
        self._make = make
        self._held: tuple[ExitStack, T] | None = None
        _all.append(self)

    def get(self, request: pytest.FixtureRequest) -> T:
        """What the context gives; it is entered now unless it was. The file that asks for it must
        be in the unit: for another one it would have ended, or end too early."""
        file = request.node.nodeid.partition("::")[0]
        assert unit_of(file) == self.unit, f'{file} needs the mark xdist_group("{self.unit}")'
        if self._held is None:
            with ExitStack() as stack:
                value = stack.enter_context(self._make())
                self._held = stack.pop_all(), value
        return self._held[1]

    def end(self) -> None:
        """Leaves the context, if it was entered."""
        if self._held is not None:
            stack, self._held = self._held[0], None
            stack.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Ends what the next test does not share, when the fixtures that use it have ended."""
    yield
    unit = None if nextitem is None else unit_of(nextitem.nodeid)
    _end_all(lambda one: one.unit != unit)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish() -> Generator[None, None, None]:
    """Ends all of it where the session stops early."""
    yield
    _end_all(lambda one: True)


def _end_all(which: Callable[[Lasting[Any]], bool]) -> None:
    """Ends some of them, those that began last first."""
    for one in reversed(_all):
        if which(one):
            one.end()
