"""The WebGPU device of this machine for tests; where there is none, they are skipped with why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.backends import make_backend
from weft.backends.webgpu import WebGPUBackend, devices
from weft.errors import DeviceError


def webgpu(**options: Any) -> WebGPUBackend:
    """A fresh backend with a device of its own."""
    try:
        backend = make_backend("webgpu", **options)
    except DeviceError as error:
        pytest.skip(f"no WebGPU device: {error}")
    assert isinstance(backend, WebGPUBackend)
    return backend


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Lets the first device have other limits, of which `_` stands for `-`."""
    found = webgpu().device
    changed = found.limits | {name.replace("_", "-"): n for name, n in limits.items()}
    monkeypatch.setattr(devices, "find_devices", lambda: (replace(found, limits=changed),))


def limited_features(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    """Lets the first device have these features alone."""
    found = replace(webgpu().device, features=features)
    monkeypatch.setattr(devices, "find_devices", lambda: (found,))
