"""Null devices as a profile describes them, to plan for a machine that is not at hand."""

from __future__ import annotations

from typing import Any

from weft.backends.base import YES, Support
from weft.backends.null import NullBackend, NullBufferType
from weft.graph.node import batch_of
from weft.graph.tensor import Tensor
from weft.schedule.profile import DeviceProfile, Profile


class PaperDevice(NullBackend):
    """A device that plans like the real one and computes nothing."""

    def __init__(
        self, device: DeviceProfile, own: NullBufferType, reads: list[NullBufferType]
    ) -> None:
        super().__init__(device.name, device.kind, own)
        self._profile = device
        self._reads = (own, *reads)

    def supports_op(self, node: Tensor) -> Support:
        """Supports every op except those that the profile lists under `refuses`."""
        if node.op.name in self._profile.refuses:
            return Support(False, f"{node.op.name} is refused by the machine profile")
        return YES

    def supports_buffer_type(self, buffer_type: Any) -> bool:
        """Supports its own memory, and those that the profile lists under `reads`."""
        return any(buffer_type is readable for readable in self._reads)

    def offload_op(self, node: Tensor) -> bool:
        """Asks for batches of `offload_from` and more rows, counted as the reference's devices
        do."""
        least = self._profile.offload_from
        return bool(least) and batch_of(node) >= (least or 0)

    def offload_batch(self, node: Tensor) -> int:
        """The batch of every op, as the reference's devices count it."""
        return batch_of(node)


def paper_devices(profile: Profile) -> list[PaperDevice]:
    """The devices of a profile, in its order."""
    types = {
        m.name: NullBufferType(
            m.name, m.name, alignment=m.alignment, max_size=m.max_block, is_host=m.host,
            capacity=m.size,
        )
        for m in profile.memories.values()
    }  # fmt: skip
    for device in profile.devices:
        types[device.memory].in_host = device.kind == "IGPU"
    return [PaperDevice(d, types[d.memory], [types[n] for n in d.reads]) for d in profile.devices]
