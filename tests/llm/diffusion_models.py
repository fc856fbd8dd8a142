"""Tiny models that write by diffusion."""

from __future__ import annotations

from pathlib import Path

from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.tiny import write_model

__all__ = ["MASK", "make_diffusion"]

MASK = 0
"""The mask of their vocabulary, which no text has."""


def make_diffusion(folder: Path, arch: str = "llada", **meta: object) -> Path:
    """Writes a random model of the architecture; returns its path."""
    keys = keys_of(arch, {"attention.causal": False}) | {"tokenizer.ggml.mask_token_id": MASK}
    if arch == "llada":
        keys["diffusion.shift_logits"] = False
    keys = {name: value for name, value in (keys | meta).items() if value is not None}
    return write_model(folder / f"{arch}.gguf", keys, made_up(configure(folder, keys)))
