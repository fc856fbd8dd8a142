"""A small random LoRA adapter of SmolLM2-135M, the same one for weft and for those beside it.

python -m tests.real.adapter OUT.gguf
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.llm.adapter_files import pairs, write_adapter

__all__ = ["write_random_adapter"]

SHAPES = {"attn_q": (576, 576), "attn_v": (192, 576), "ffn_down": (576, 1536)}
LAYERS = (0, 7, 29)


def write_random_adapter(path: Path) -> Path:
    """Writes an adapter of rank 4 for three matrices of three layers."""
    shapes = {f"blk.{il}.{name}.weight": size for il in LAYERS for name, size in SHAPES.items()}
    return write_adapter(path, pairs(7, 4, shapes), alpha=2.0)


if __name__ == "__main__":
    write_random_adapter(Path(sys.argv[1]))
