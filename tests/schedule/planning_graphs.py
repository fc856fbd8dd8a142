"""Small graphs and stub devices for tests of the planner."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from weft.backends.base import DeviceKind, Support
from weft.backends.null import NullBackend, NullBufferType
from weft.dtype import find_dtype
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.op import find_op
from weft.graph.tensor import Buffer, Tensor

__all__ = ["Stub", "chain", "cpu", "gpu", "node", "random_plans", "value", "view", "weight"]

SHAPE = (64, 4, 1, 1)


class Stub(NullBackend):
    """A device that runs only some ops and may require large batches."""

    def __init__(
        self,
        name: str,
        kind: DeviceKind,
        *,
        ops: Sequence[str] | None = None,
        refused: Sequence[str] = (),
        offload_from: int | None = None,
        memory: NullBufferType | None = None,
        reads: Sequence[NullBufferType] = (),
        max_size: int | None = None,
        alignment: int = 32,
    ) -> None:
        own = memory or NullBufferType(
            name, name, alignment=alignment, max_size=max_size, is_host=kind == "CPU"
        )
        super().__init__(name, kind, own)
        self.ops = ops
        self.refused = refused
        self.offload_from = offload_from
        self.reads = reads

    def supports_op(self, node: Tensor) -> Support:
        name = node.op.name
        if name in self.refused or (self.ops is not None and name not in (*self.ops, "NONE")):
            return Support(False, f"no kernel for {name}")
        return Support(True)

    def supports_buffer_type(self, buffer_type: object) -> bool:
        known = (self.buffer_type, *self.reads)
        return any(buffer_type is t for t in known)

    def offload_op(self, node: Tensor) -> bool:
        return self.offload_from is not None and node.ne[1] >= self.offload_from


def gpu(name: str = "gpu", **options: object) -> Stub:
    """A device with memory of its own."""
    return Stub(name, "GPU", **options)  # type: ignore[arg-type]


def cpu(**options: object) -> Stub:
    """The device that runs every op and comes last."""
    return Stub("cpu", "CPU", **options)  # type: ignore[arg-type]


def value(name: str, shape: Sequence[int] = SHAPE, *flags: str) -> Tensor:
    """An input (or a leaf with other flags)."""
    return leaf("f32", shape, name, frozenset(flags or ("input",)))


def weight(name: str, device: NullBackend, shape: Sequence[int] = (64, 64)) -> Tensor:
    """A weight in the memory of a device."""
    return leaf("f32", shape, name, buffer=Buffer("weights", device.buffer_type))


def node(op: str, name: str, *src: Tensor | None, shape: Sequence[int] | None = None) -> Tensor:
    """A node with the shape of its first source, or `shape`."""
    first = next(s for s in src if s is not None)
    ne = first.ne if shape is None else (*shape, *[1] * (4 - len(shape)))
    return Tensor(find_dtype("f32"), ne, name=name, op=find_op(op), src=src)


def view(name: str, of: Tensor, op: str = "VIEW") -> Tensor:
    """A view of a whole tensor."""
    base = of if of.view_src is None else of.view_src
    tensor = node(op, name, of)
    tensor.view_src = base
    return tensor


def chain(pattern: str, devices: dict[str, Stub]) -> Graph:
    """A chain of nodes behind an input. A letter of `devices` gives a node a weight on that device,
    `?` gives it none."""
    x = value("x")
    for i, letter in enumerate(pattern):
        if letter == "?":
            x = node("SQR", f"n{i}", x)
        else:
            x = node("MUL_MAT", f"n{i}", weight(f"w{i}", devices[letter]), x, shape=SHAPE)
    return Graph(x.as_output())


@st.composite
def random_plans(draw: st.DrawFn) -> tuple[Graph, list[Stub], dict[Tensor, int], int]:
    """A graph of many kinds of nodes, devices that refuse some of them, user assignments, copies.

    Not every draw can be planned: a node may find no device."""
    seed_ops = ("ADD", "MUL", "SQR", "MUL_MAT", "CONT", "SOFT_MAX", "CLAMP", "CPY", "DUP")
    n_devices = draw(st.integers(1, 4))
    limits = st.sampled_from([None, None, 512, 4096])
    refusals = st.lists(st.sampled_from(seed_ops), max_size=3)
    devices: list[Stub] = []
    for i in range(n_devices - 1):
        shared = draw(st.sampled_from([None, *[d.buffer_type for d in devices]]))
        devices.append(
            gpu(
                f"gpu{i}",
                refused=draw(refusals),
                offload_from=draw(st.sampled_from([None, 1, 32])),
                memory=shared,
                reads=[d.buffer_type for d in devices if draw(st.booleans())],
                max_size=draw(limits),
                alignment=draw(st.sampled_from([1, 32, 128])),
            )
        )
    reads = [d.buffer_type for d in devices if draw(st.integers(0, 3)) == 0]
    devices.append(cpu(reads=reads, refused=draw(refusals) if draw(st.booleans()) else ()))

    tensors: list[Tensor] = []
    for i in range(draw(st.integers(1, 4))):
        flags = draw(st.sampled_from([("input",), ("input",), ("input", "output"), ("param",)]))
        tensors.append(value(f"in{i}", draw(st.sampled_from([SHAPE, (64, 40), (1, 0)])), *flags))
    for i in range(draw(st.integers(0, 3))):
        owner = draw(st.sampled_from(devices))
        usage = draw(st.sampled_from(["weights", "compute", "any"]))
        buffer = Buffer(usage, draw(st.sampled_from([owner.buffer_type, None])))
        tensors.append(leaf("f32", SHAPE, f"w{i}", buffer=buffer))
    if draw(st.booleans()):
        tensors.append(leaf("f32", SHAPE, "loose"))
    for i in range(draw(st.integers(1, 25))):
        pick = st.sampled_from(tensors)
        kind = draw(st.sampled_from((*seed_ops, "VIEW", "RESHAPE", "LEAF_VIEW", "INPLACE")))
        first = draw(pick)
        if kind in ("VIEW", "RESHAPE"):
            tensor = view(f"n{i}", first, kind)
        elif kind == "LEAF_VIEW":
            tensor = view(f"n{i}", first, "NONE")
            tensor.src = ()
        elif kind in ("INPLACE", "CPY"):
            tensor = node("SQR" if kind == "INPLACE" else "CPY", f"n{i}", first, draw(pick))
            target = tensor.src[-1]
            tensor.view_src = target.view_src or target
        else:
            tensor = node(kind, f"n{i}", first, *draw(st.lists(pick, max_size=2)))
        if draw(st.integers(0, 5)) == 0:
            tensor.flags = tensor.flags | {"output"}
        tensors.append(tensor)
    outputs = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=4))
    assign = {
        t: draw(st.integers(0, n_devices - 1)) for t in tensors if draw(st.integers(0, 9)) == 0
    }
    return Graph(*outputs), devices, assign, draw(st.sampled_from([1, 1, 2, 4]))
