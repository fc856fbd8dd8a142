"""Parameters of which `make test` takes some and a part of `make test-all` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["share"]


def share(part: str, values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """The values as parameters, tuples as several at once; those that are not `kept` belong to the
    part."""
    marks = pytest.mark.part(part)
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)),
                     marks=() if value in kept else marks)
        for value in values
    ]  # fmt: skip
