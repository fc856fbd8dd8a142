"""Devices: what a backend is (`base`), how to find one (`registry`), and our own, one each."""

from __future__ import annotations

from weft.backends.base import (
    YES,
    Backend,
    BackendBase,
    BlockBase,
    BufferType,
    BufferTypeBase,
    DeviceKind,
    DirectMemory,
    Event,
    Executable,
    HostMemory,
    Memory,
    Queue,
    Support,
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
