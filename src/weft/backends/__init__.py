"""Devices: the protocol of a backend (`base`), the way to find one (`registry`), and our own
backends.
"""

from __future__ import annotations

from weft.backends.base import (
    YES,
    Backend,
    BackendBase,
    DeviceKind,
    Event,
    Executable,
    Queue,
    QueueSpan,
    Support,
    Use,
)
from weft.backends.memory import (
    BlockBase,
    BufferType,
    BufferTypeBase,
    DirectMemory,
    HostMemory,
    Memory,
    WeightBufferType,
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
    "QueueSpan",
    "Support",
    "Use",
    "WeightBufferType",
    "known_backends",
    "make_backend",
]
