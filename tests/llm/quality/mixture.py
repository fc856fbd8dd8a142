"""A mixture of eight experts with the demo model's other weights, and output.weight apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.frontends.gguf.reader import open_gguf
from weft.frontends.gguf.writer import write_gguf


def write_mixture(f32: Path, path: Path) -> None:
    """Writes it, from the demo model in f32; `tests/data/quality/README.md` names its figures."""
    rng = np.random.default_rng(3)
    rows = []
    with open_gguf(f32) as file:
        metadata = {key: file.metadata.raw(key) for key in file.metadata}
        extra = {"llama.expert_count": np.uint32(8), "llama.expert_used_count": np.uint32(2)}
        for t in file.tensors.values():
            x = np.asarray(t.data).view("<f4").reshape(tuple(reversed(t.ne))).squeeze()
            kind = t.name.split(".")[2] if t.name.startswith("blk") else ""
            if not kind.startswith("ffn_") or kind == "ffn_norm":
                rows.append((t.name, "f32", x.shape[::-1], np.ascontiguousarray(x)))
                if t.name == "token_embd.weight":
                    rows.append(("output.weight", "f32", x.shape[::-1], np.ascontiguousarray(x)))
                continue
            stack = [
                x * (1 + 0.1 * e / 8) + rng.normal(size=x.shape) * x.std() * 0.5 for e in range(8)
            ]
            experts = np.stack(stack).astype("<f4")
            name = t.name.replace(kind, f"{kind}_exps")
            rows.append((name, "f32", experts.shape[::-1], experts))
            if kind == "ffn_gate":
                gate = rng.normal(size=(8, x.shape[1])).astype("<f4")
                rows.append((t.name.replace(kind, "ffn_gate_inp"), "f32", (x.shape[1], 8), gate))
        write_gguf(path, {**metadata, **extra}, rows)
