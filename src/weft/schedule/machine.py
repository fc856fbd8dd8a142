"""Devices as a profile describes them, to plan for a machine that is not at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.backends.base import YES, Support, Use
from weft.backends.cpu import CpuBackend
from weft.backends.cpu.threads import ThreadOptions
from weft.backends.memory import Memory, WeightBufferType
from weft.backends.null import NullBackend, NullBufferType
from weft.dtype import DType
from weft.graph.node import batch_of
from weft.graph.tensor import Tensor
from weft.program import Layout
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


class PaperCpu(PaperDevice):
    """A cpu of a profile, with the fusions, scratch and repacked weights of the cpu here.

    Its number of threads is the profile's, or else the default of this machine."""

    runs_stages = CpuBackend.runs_stages

    def __init__(
        self, device: DeviceProfile, own: NullBufferType, reads: list[NullBufferType]
    ) -> None:
        super().__init__(device, own, reads)
        self._rules = CpuBackend(n_threads=1, name=device.name, even_if_failing=True)
        self._threads = device.threads or max(ThreadOptions().resolved())
        self._weights: dict[Layout, PaperWeights] = {}
        self.rewrites = self._rules.rewrites
        self.generalizes = self._rules.generalizes

    def supports_op(self, node: Tensor) -> Support:
        """Supports what the cpu here does, except ops that the profile lists under `refuses`."""
        support = super().supports_op(node)
        return self._rules.supports_op(node) if support.ok else support

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        """The nodes as the cpu here would run them."""
        return self._rules.optimize(nodes)

    def work_bytes(self, node: Tensor) -> int:
        """The scratch bytes for the threads of the profile."""
        return self._rules.scratch_bytes(node, self._threads)

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """The layout that the cpu here would choose, in the memory of the profile."""
        inner = self._rules.weight_layout(leaf, uses)
        if inner is None:
            return None
        return self._weights.setdefault(inner.layout, PaperWeights(self.buffer_type, inner))


class PaperWeights:
    """Repacked weights in a memory of a profile."""

    is_host = False

    def __init__(self, home: NullBufferType, inner: WeightBufferType) -> None:
        """`inner` is the buffer type of the cpu here, which computes sizes."""
        self.name = home.name + inner.name.removeprefix("CPU")
        self.device = home.device
        self.alignment, self.max_size = inner.alignment, home.max_size
        self.layout: Layout = inner.layout
        self._inner = inner

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the tensor in this layout."""
        return self._inner.alloc_size(tensor)

    def allocate(self, nbytes: int) -> Memory:
        """Raises DeviceError, because this memory holds only weights that `load` repacks."""
        return self._inner.allocate(nbytes)

    def load(self, source: Any, dtype: DType, ne: tuple[int, ...]) -> Memory:
        """The tensor, repacked here."""
        return self._inner.load(source, dtype, ne)

    def __repr__(self) -> str:
        return self.name


def paper_devices(profile: Profile) -> list[PaperDevice]:
    """The devices of a profile, in its order."""
    types = {
        m.name: NullBufferType(
            m.name, m.name, alignment=m.alignment, max_size=m.max_block, is_host=m.host,
            capacity=m.size, in_host=m.in_host,
        )
        for m in profile.memories.values()
    }  # fmt: skip
    return [
        (PaperCpu if d.kind == "CPU" else PaperDevice)(
            d, types[d.memory], [types[name] for name in d.reads]
        )
        for d in profile.devices
    ]
