"""weft as an ExecuTorch backend.

To export, pass `WeftPartitioner()` to `to_edge_transform_and_lower`. To run, call `load()` before
the first use of ExecuTorch's runtime, which then knows the backend "WeftBackend".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft_executorch.library import library_path, load

if TYPE_CHECKING:
    from weft_executorch.backend import WeftBackend
    from weft_executorch.int8_tensors import exportable
    from weft_executorch.options import Options
    from weft_executorch.partitioner import WeftPartitioner
    from weft_executorch.quantizer import WeftQuantizer

__all__ = [
    "Options",
    "WeftBackend",
    "WeftPartitioner",
    "WeftQuantizer",
    "exportable",
    "library_path",
    "load",
]

_LAZY = {
    "Options": "weft_executorch.options",
    "WeftBackend": "weft_executorch.backend",
    "WeftPartitioner": "weft_executorch.partitioner",
    "WeftQuantizer": "weft_executorch.quantizer",
    "exportable": "weft_executorch.int8_tensors",
}


def __getattr__(name: str) -> Any:
    # running a .pte needs no exporter, whose import takes seconds
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
