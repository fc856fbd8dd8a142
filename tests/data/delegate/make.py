"""Writes the small models that the native test of the delegate runs: python make.py [FOLDER].

Together they have what the delegate does: sizes that vary, weights in each stored layout, states
that methods share, inputs and outputs of several types, convolutions."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, export

from weft_executorch import Options

__all__ = ["MODELS", "lowered"]


class Cache(nn.Module):
    """Attention of new rows over rows that are kept; `tokens` at `positions`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 32)
        self.mix = nn.Linear(32, 32)
        self.register_buffer("kept", torch.zeros(8, 32))

    def forward(self, tokens: Any, positions: Any) -> Any:
        """Rows of [n, 32]."""
        self.kept.index_copy_(0, positions, self.mix(self.table(tokens)))
        return torch.softmax(self.table(tokens) @ self.kept.t(), -1) @ self.kept


class Types(nn.Module):
    """Integers, booleans, halves."""

    def forward(self, x: Any, n: Any, flags: Any) -> Any:
        """Three tensors, of three types."""
        return torch.where(flags, x.float(), n.float()), n * 2 + 1, n > 2


def _mlp(inner: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(64, inner), nn.ReLU(), nn.Linear(inner, 32)).eval()


def _conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).eval()


def _ternary() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 64), nn.Tanh()).eval()


def _ids(n: int) -> tuple[Any, Any]:
    return torch.arange(n), torch.arange(n)


_ROWS = ({0: Dim("rows", min=1, max=9)},)
_X = (torch.randn(5, 64),)
_TYPES = (torch.randn(2, 6).half(), torch.arange(12).reshape(2, 6), torch.ones(2, 6).bool())

MODELS: dict[str, Any] = {
    "sizes": (_mlp, {"forward": (_X, _ROWS)}, Options(weights="q8_0")),
    "rows": (_mlp, {"forward": (_X, None)}, Options(weights="q4_0", pack=False, threads=2)),
    "ternary": (_ternary, {"forward": ((torch.randn(2, 256),), None)}, Options(weights="tq2_0")),
    "state": (Cache, {"prefill": (_ids(4), None), "decode": (_ids(1), None)},
              Options(share_state=True)),
    "types": (Types, {"forward": (_TYPES, None)}, None),
    "conv": (_conv, {"forward": ((torch.randn(1, 3, 8, 8),), None)}, None),
}  # fmt: skip
"""Name -> (module, {method: (inputs, dynamic shapes)}, options)."""


def lowered(name: str) -> bytes:
    """The file of a model; weights are the same every time."""
    make, methods, options = MODELS[name]
    torch.manual_seed(1)
    module = make().eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # theirs, not ours
        from executorch.exir import to_edge_transform_and_lower

        from weft_executorch import WeftPartitioner

        programs = {
            method: export(module, inputs, dynamic_shapes=shapes, strict=False)
            for method, (inputs, shapes) in methods.items()
        }
        partitioners = {method: [WeftPartitioner(options)] for method in methods}
        edge = to_edge_transform_and_lower(programs, partitioner=partitioners)
        return bytes(edge.to_executorch().buffer)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name in MODELS:
        (folder / f"{name}.pte").write_bytes(lowered(name))
