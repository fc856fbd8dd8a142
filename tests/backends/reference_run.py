"""Runs a graph on the reference backend with every tensor in memory of its own: no planner."""

from collections.abc import Mapping

import numpy as np

from weft.backends.reference import REFERENCE, ReferenceBackend
from weft.backends.reference.backend import ReferenceExecutable
from weft.backends.reference.memory import ReferenceMemory
from weft.backends.reference.view import ArrayView
from weft.graph import Graph, Tensor
from weft.graph.size import evaluate
from weft.program import BufferSpec, Program, SplitSpec, StepSpec, TensorSpec


class Lowered:
    """A graph as a program of one split, bound to fresh reference memory; constants are copied."""

    def __init__(self, *outputs: Tensor) -> None:
        tensors = list(Graph(*outputs).tensors)
        self.index = {t: i for i, t in enumerate(tensors)}
        bases = [t for t in tensors if not t.is_view]
        self.memories: dict[Tensor, ReferenceMemory] = {
            t: REFERENCE.allocate(REFERENCE.alloc_size(t)) for t in bases
        }
        place = {t: i for i, t in enumerate(bases)}
        for t in bases:
            if t.buffer is not None and t.buffer.data is not None:
                self.memories[t].write(0, t.buffer.data.reshape(-1).view(np.uint8))
        specs = tuple(
            TensorSpec(t.name, t.dtype, t.ne, t.nb, place[t.view_src or t], t.view_offs)
            for t in tensors
        )
        steps = tuple(
            StepSpec(
                t.op,
                self.index[t],
                tuple(-1 if s is None else self.index[s] for s in t.src),
                t.params,
            )
            for t in tensors
            if t.op.name != "NONE" and not t.op.is_view
        )
        self.program = Program(
            {},
            tuple(BufferSpec("arena", REFERENCE, m.nbytes, "any") for m in self.memories.values()),
            specs,
            (SplitSpec("reference", (), steps, ((0, len(steps)),)),),
            {},
            {},
        )
        self.executable: ReferenceExecutable = ReferenceBackend().lower(
            self.program, 0, list(self.memories.values())
        )

    def run(self, values: Mapping[str, int] | None = None, **inputs: np.ndarray) -> None:
        """Writes inputs by name, runs."""
        for t, memory in self.memories.items():
            if t.name in inputs:
                data = np.ascontiguousarray(inputs[t.name]).astype(t.dtype.storage, copy=False)
                memory.write(0, data.reshape(-1).view(np.uint8))
        self.executable.run(values or {})

    def view(self, t: Tensor, values: Mapping[str, int] | None = None) -> ArrayView:
        """A tensor's place in memory at these sizes."""
        ne, nb = (tuple(evaluate(n, values or {}) for n in sizes) for sizes in (t.ne, t.nb))
        memory = self.memories[t.view_src or t]
        return ArrayView(
            t.dtype, ne, nb, memory.private(), evaluate(t.view_offs, values or {}), t.name
        )


def compute(node: Tensor, **inputs: np.ndarray) -> np.ndarray:
    """The values of `node`, shape `ne[::-1]`."""
    lowered = Lowered(node)
    lowered.run(**inputs)
    return lowered.view(node).read()
