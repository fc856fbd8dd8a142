"""A cpu that has weights repacked whatever its kernels read: it unpacks them again to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft import _native
from weft.backends.base import Executable
from weft.backends.cpu.backend import CpuBackend
from weft.backends.cpu.repack import PanelMemory
from weft.backends.memory import HostMemory, Memory
from weft.dtype import DTYPES
from weft.graph.tensor import Tensor
from weft.program import Program

__all__ = ["PanelCpu"]


class PanelCpu(CpuBackend):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"n_threads": 2, **options})
        have = {d.id for d in DTYPES.values() if _native.interleaved_block(d.id)}
        self._panel_types = frozenset(have)

    def _takes_panels(self, node: Tensor) -> bool:
        return node.op.name in ("MUL_MAT", "MUL_MAT_ID")

    def lower(self, program: Program, split: int, memories: Sequence[Memory]) -> Executable:
        rows = [
            HostMemory(m.read(0, m.nbytes)) if isinstance(m, PanelMemory) else m for m in memories
        ]
        tensors = tuple(replace(t, layout="rows") for t in program.tensors)
        return super().lower(replace(program, tensors=tensors), split, rows)
