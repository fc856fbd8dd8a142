"""The OpenCL device of this machine for tests; where there is none, they are skipped with why."""

from __future__ import annotations

from typing import Any

import pytest

from weft.backends import make_backend
from weft.backends.opencl import OpenCLBackend
from weft.errors import DeviceError


def opencl(**options: Any) -> OpenCLBackend:
    """A fresh backend with a context of its own."""
    try:
        backend = make_backend("opencl", **options)
    except DeviceError as error:
        pytest.skip(f"no OpenCL device: {error}")
    assert isinstance(backend, OpenCLBackend)
    return backend
