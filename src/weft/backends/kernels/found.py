"""The devices that a library finds: which one a name means, and the lines that list them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from weft.backends.base import DeviceKind
from weft.backends.registry import BackendInfo
from weft.errors import DeviceError


class FoundDevice(Protocol):
    """A device, before anything is created on it."""

    @property
    def number(self) -> int:
        """The N of `opencl:N`."""

    @property
    def name(self) -> str:
        """The maker's name of it."""

    @property
    def kind(self) -> DeviceKind:
        """A GPU, or another device."""

    @property
    def unusable(self) -> str:
        """Empty, or the reason why no kernel runs there; may take a while."""

    @property
    def description(self) -> str:
        """A description in a line."""


Device = TypeVar("Device", bound=FoundDevice)


def pick(backend: str, devices: Sequence[Device], suffix: str | None, note: str = "") -> Device:
    """The device of `backend:suffix`; without a suffix the first GPU that works, else the first
    device that works.

    Raises DeviceError with the devices of this machine, behind which `note` stands, or with the
    reasons why none works."""
    if suffix is not None:
        chosen = {str(d.number): d for d in devices}.get(suffix)
        if chosen is None:
            names = ", ".join(f"{backend}:{d.number} ({d.name})" for d in devices)
            raise DeviceError(
                f"there is no device {backend}:{suffix}; this machine has {names}{note}"
            )
        if chosen.unusable:
            raise DeviceError(
                f"{backend}:{suffix} ({chosen.name}) cannot be used: {chosen.unusable}"
            )
        return chosen
    reasons = []
    for device in sorted(devices, key=lambda d: (d.kind not in ("GPU", "IGPU"), d.number)):
        why = device.unusable
        if not why:
            return device
        reasons.append(f"{backend}:{device.number} ({device.name}): {why}")
    raise DeviceError(f"no {backend} device can be used; {'; '.join(reasons)}")


def infos(
    backend: str,
    find: Callable[[], Sequence[Device]],
    details: Callable[[Device], Mapping[str, Any]] = lambda device: {},
) -> list[BackendInfo]:
    """A line for each device that `find` finds, with the reason where one is unusable; where there
    is none, a line that says what is missing."""
    try:
        devices = find()
    except DeviceError as error:
        return [BackendInfo(backend, False, str(error), "")]
    lines = []
    for device in devices:
        why, name = device.unusable, f"{backend}:{device.number}"
        lines.append(BackendInfo(name, not why, why, device.description, dict(details(device))))
    return lines
