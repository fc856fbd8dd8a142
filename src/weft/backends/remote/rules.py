"""The rules of a worker's device, answered by a local device of the same kind.

Of a cpu whose kernel target this machine cannot run, the kernels are asked over the link, once for
each kind of node (`weft.cluster.lent`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.base import Backend, BackendBase, DeviceKind, Support, Use
from weft.backends.cpu import CpuBackend
from weft.backends.memory import BufferType, WeightBufferType
from weft.backends.remote.encode import numbers
from weft.backends.remote.machine import Machine
from weft.errors import DeviceError
from weft.graph.tensor import Tensor
from weft.native import _native
from weft.program import LAYOUTS, Layout


def rules_like(facts: Mapping[str, Any], name: str, machine: Machine, number: int) -> Backend:
    """A backend here that answers for the device `name` of a worker, with these facts, its number
    there being `number`.

    Raises DeviceError for a kind of device whose rules are not known here."""
    kind = str(facts.get("kind"))
    if kind == "cpu":
        return _CpuRules(facts, name, machine, number)
    if kind == "reference":
        from weft.backends.reference import ReferenceBackend

        reference = ReferenceBackend()
        reference.name = name
        return reference
    if kind in ("opencl", "cuda", "webgpu"):
        return _OpenCLLike(facts, name)
    raise DeviceError(
        f"{machine.name}: its device {facts.get('name')!r} is of a kind that is not used over "
        "links; start the worker with --devices cpu, or opencl,cpu"
    )


class _CpuRules(CpuBackend):
    """A cpu that plans for a worker."""

    def __init__(self, facts: Mapping[str, Any], name: str, machine: Machine, number: int) -> None:
        target = str(facts["target"])
        self._is_here = bool(dict(_native.targets()).get(target))
        self._threads_there = max(1, int(facts.get("n_threads", 1)))
        super().__init__(
            n_threads=1,
            target=target,
            activations=facts.get("activations", "native"),
            name=name,
            even_if_failing=True,
            kernels=None if self._is_here else _FarKernels(machine, number),
        )

    def work_bytes(self, node: Tensor) -> int:
        """The scratch bytes for the worker's threads."""
        return self.scratch_bytes(node, self._threads_there)

    def _looks_up(self, leaf: Tensor, uses: Sequence[Use]) -> bool:
        # which layout is faster is measured, which needs the kernels
        return self._is_here and super()._looks_up(leaf, uses)


class _FarKernels:
    """The questions to the native module that planning asks, put to a worker's."""

    def __init__(self, machine: Machine, number: int) -> None:
        self._machine, self._number = machine, number
        self._known: dict[str, Any] = {}

    def _ask(self, *question: Any) -> Any:
        key = repr(question)
        if key not in self._known:
            self._known[key] = self._machine.call(["ask", self._number, *question])[0]
        return self._known[key]

    def interleaved_types(self, target: str) -> list[int]:
        """Types whose weights may become panels."""
        return list(self._ask("interleaved_types"))

    def level_types(self, target: str) -> list[int]:
        """Types whose weights may become panels of levels."""
        return list(self._ask("level_types"))

    def lookup_types(self, target: str) -> list[int]:
        """Types whose weights may become indices of tables."""
        return list(self._ask("lookup_types"))

    def activation_type(self, target: str, type_id: int) -> int:
        """The type of activations beside weights of a type."""
        return int(self._ask("activation_type", type_id))

    def refusal(
        self, target: str, op: int, dst: Any, src: Any, params: list[float], layout: int = 0
    ) -> str | None:
        """The sentence with which a kernel refuses a node; None where it takes it."""
        why = self._ask("refusal", op, list(dst), [list(s) for s in src], numbers(params), layout)
        return None if why is None else str(why)

    def scratch_bytes(
        self, target: str, op: int, dst: Any, src: Any, params: list[float], threads: int
    ) -> int:
        """The scratch memory of a node for each of some threads."""
        sources = [list(s) for s in src]
        return int(self._ask("scratch_bytes", op, list(dst), sources, numbers(params), threads))


class _OpenCLLike(BackendBase):
    """The rules of devices with kernels, without one."""

    kind: DeviceKind = "ACCEL"

    def __init__(self, facts: Mapping[str, Any], name: str) -> None:
        from weft.backends.kernels.support import GENERALIZED
        from weft.graph.rewrite import REWRITES

        self.name = name
        self.rewrites, self.generalizes = tuple(REWRITES), GENERALIZED
        self.buffer_type: BufferType = None  # type: ignore[assignment]  # never asked for
        self._planes = _Planes() if "planes" in facts.get("layouts", ()) else None

    def supports_op(self, node: Tensor) -> Support:
        """Supports the nodes for which there are kernels."""
        from weft.backends.kernels.support import supports

        return supports(node, self.name)

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """Planes, where the worker uses them."""
        from weft.backends.kernels.planes import can_be_planes

        return self._planes if self._planes and can_be_planes(leaf, uses) else None

    def lower(self, program: Any, split: int, memories: Any) -> Any:
        """Raises DeviceError: it plans only."""
        raise DeviceError(f"{self.name} plans only")


class _Planes:
    """A name and sizes for weights in planes."""

    name = "P16"
    layout: Layout = LAYOUTS[LAYOUTS.index("planes")]

    def __init__(self) -> None:
        self.device, self.alignment, self.is_host = "", 64, False
        self.max_size: int | None = None

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the blocks."""
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> Any:
        """Raises DeviceError: it plans only."""
        raise DeviceError("it plans only")

    def load(self, source: Any, dtype: Any, ne: tuple[int, ...]) -> Any:
        """Raises DeviceError: it plans only."""
        raise DeviceError("it plans only")
