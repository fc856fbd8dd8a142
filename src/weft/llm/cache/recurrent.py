"""States of recurrent layers: one slot a sequence, in a table beside the KV cache.

slot 0     zeros, where every sequence starts; never written
slot 1..   twice as many as sequences: what a decode writes is another slot than what it reads,
           so a decode that fails has changed nothing, and a fork only shares a slot
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import BufferType
from weft.dtype import DTYPES
from weft.errors import ContextError
from weft.graph.tensor import Buffer, Tensor
from weft.llm.config import ModelConfig
from weft.llm.planning.memory import PlannedMemory, allocate

__all__ = ["StateTable", "state_bytes"]

_F32 = DTYPES["f32"]


class StateTable:
    """The states of up to `n_seq_max` sequences, f32."""

    def __init__(
        self, config: ModelConfig, n_seq_max: int, types: Sequence[BufferType | None]
    ) -> None:
        """`types`: where each layer's states live; None: plain host memory. They have no memory
        until `allocate`."""
        r = config.recurrent
        assert r is not None
        self.n_slots = 2 * n_seq_max + 1
        self.slot: NDArray[np.int32] = np.zeros(n_seq_max, np.int32)
        """Slot of each sequence."""
        layers = [il for il, recurrent in enumerate(r.layers) if recurrent]

        def leaf(name: str, il: int, n: int) -> Tensor:
            buffer = Buffer("any", types[il], PlannedMemory(4 * n * self.n_slots))
            return Tensor(_F32, (n, self.n_slots, 1, 1), name=f"{name}_{il}", buffer=buffer)

        self.conv = {il: leaf("cache_r", il, r.conv_size) for il in layers}
        """Per recurrent layer, [conv_size, n_slots]: the last inputs of the convolution."""
        self.state = {il: leaf("cache_s", il, r.state_size) for il in layers if r.state_size}
        """Per state-space layer, [state_size, n_slots]."""

    def allocate(self) -> None:
        """Gives the leaves their memory; raises OutOfMemoryError without room."""
        for t in self.tensors:
            assert t.buffer is not None
            if not isinstance(t.buffer.data, PlannedMemory):
                continue
            nbytes = t.buffer.data.nbytes
            memory = allocate(t.buffer.type, nbytes, t.name, "n_seq_max")
            memory.write(0, np.zeros(nbytes // self.n_slots, np.uint8))
            t.buffer.data = memory

    @property
    def tensors(self) -> list[Tensor]:
        """All leaves."""
        return [*self.conv.values(), *self.state.values()]

    def free_slots(self, taken: Iterable[int] = ()) -> list[int]:
        """The slots that no sequence has, nor `taken`."""
        used = {0, *taken, *self.slot.tolist()}
        return [s for s in range(1, self.n_slots) if s not in used]

    def read(self, seq: int) -> bytes:
        """The states of a sequence, leaf after leaf."""
        rows = []
        for t in self.tensors:
            assert t.buffer is not None
            size = t.max_bytes // self.n_slots
            rows.append(t.buffer.data.read(int(self.slot[seq]) * size, size).tobytes())
        return b"".join(rows)

    def write(self, seq: int, data: bytes) -> None:
        """Puts back what `read` gave."""
        slot, at = self.free_slots()[0], 0
        for t in self.tensors:
            assert t.buffer is not None
            size = t.max_bytes // self.n_slots
            t.buffer.data.write(slot * size, np.frombuffer(data, np.uint8, size, at))
            at += size
        self.slot[seq] = slot


def state_bytes(config: ModelConfig) -> int:
    """Bytes of one sequence's states; 0 for models without."""
    r = config.recurrent
    return 4 * sum(r.layers) * (r.conv_size + r.state_size) if r else 0


def refuse_part(what: str) -> ContextError:
    """An error to raise: a state cannot go back to an earlier token."""
    return ContextError(f"{what} of a part of a sequence: a recurrent state is that of the whole")
