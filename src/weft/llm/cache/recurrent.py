"""The states of recurrent layers: one slot per sequence, in a table beside the KV cache.

Slot 0 is all zeros, the state in which every sequence starts; it is never written. There are two
more slots for each sequence: a decode reads one and writes another, so that a decode that fails
changes nothing. A copy of a sequence shares the slot of the original until it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import BufferType
from weft.dtype import DTYPES
from weft.errors import ContextError
from weft.graph.tensor import Buffer, Tensor
from weft.llm.cache.memory import PlannedMemory, allocate
from weft.llm.config import ModelConfig

_F32 = DTYPES["f32"]


class StateTable:
    """The states of up to `n_seq_max` sequences, f32."""

    def __init__(
        self, config: ModelConfig, n_seq_max: int, types: Sequence[BufferType | None]
    ) -> None:
        """`types` is the memory of each layer's states; None is host memory. The states have no
        memory until `allocate` is called."""
        r = config.recurrent
        assert r is not None
        self.n_slots = 2 * n_seq_max + 1
        self.slot: NDArray[np.int32] = np.zeros(n_seq_max, np.int32)
        layers = [il for il, recurrent in enumerate(r.layers) if recurrent]

        def leaf(name: str, il: int, n: int) -> Tensor:
            buffer = Buffer("any", types[il], PlannedMemory(4 * n * self.n_slots))
            return Tensor(_F32, (n, self.n_slots, 1, 1), name=f"{name}_{il}", buffer=buffer)

        self.conv = {il: leaf("cache_r", il, r.conv_size) for il in layers if r.conv_size}
        """Per layer with a convolution, [conv_size, n_slots]: its last inputs."""
        self.state = {il: leaf("cache_s", il, r.state_size) for il in layers if r.state_size}
        """The states, per state-space layer [state_size, n_slots]."""
        self.dilated = {il: leaf("cache_d", il, n) for il, n in enumerate(r.dilated) if n}
        """Per layer with a dilated convolution, [n, n_slots]: its last inputs."""

    def allocate(self) -> None:
        """Allocates the memory of all leaves; raises OutOfMemoryError if there is not enough."""
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
        return [*self.conv.values(), *self.state.values(), *self.dilated.values()]

    def free_slots(self, taken: Iterable[int] = ()) -> list[int]:
        """The slots that no sequence has and that are not in `taken`."""
        used = {0, *taken, *self.slot.tolist()}
        return [s for s in range(1, self.n_slots) if s not in used]

    def read(self, seq: int) -> bytes:
        """Reads the states of a sequence, leaf after leaf."""
        rows = []
        for t in self.tensors:
            assert t.buffer is not None
            size = t.max_bytes // self.n_slots
            rows.append(t.buffer.data.read(int(self.slot[seq]) * size, size).tobytes())
        return b"".join(rows)

    def write(self, seq: int, data: bytes) -> None:
        """Writes states, as `read` returns them, to a free slot, which becomes the sequence's."""
        slot, at = self.free_slots()[0], 0
        for t in self.tensors:
            assert t.buffer is not None
            size = t.max_bytes // self.n_slots
            t.buffer.data.write(slot * size, np.frombuffer(data, np.uint8, size, at))
            at += size
        self.slot[seq] = slot


def state_bytes(config: ModelConfig) -> int:
    """Bytes of one sequence's recurrent states; 0 if the model has none."""
    r = config.recurrent
    if r is None:
        return 0
    return 4 * (sum(r.layers) * (r.conv_size + r.state_size) + sum(r.dilated))


def refuse_part(what: str) -> ContextError:
    """The error for a call on a part of a sequence whose states cannot go back to a token."""
    return ContextError(
        f"{what} of a part of a sequence: a recurrent state is that of the whole; name the whole "
        "sequence"
    )
