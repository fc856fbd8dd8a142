"""Devices: what a backend is (`base`), how to find one (`registry`), and our own, one each."""

from __future__ import annotations

from weft.backends.base import (
    YES,
    Backend,
    BackendBase,
    DeviceKind,
    Event,
    Executable,
    Queue,
    Support,
)
from weft.backends.memory import (
    BlockBase,
    BufferType,
    BufferTypeBase,
    DirectMemory,
    HostMemory,
    Memory,
)
from weft.backends.registry import BackendInfo, known_backends, make_backend

__all__ = [
    "YES",
    "Backend",
    "BackendBase",
    "BackendInfo",
    "BlockBase",
    "BufferType",
    "BufferTypeBase",
    "DeviceKind",
    "DirectMemory",
    "Event",
    "Executable",
    "HostMemory",
    "Memory",
    "Queue",
    "Support",
    "known_backends",
    "make_backend",
]
