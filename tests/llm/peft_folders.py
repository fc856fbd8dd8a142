"""Writes LoRA adapters as PEFT saves them, and merges them into models of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

__all__ = ["make_peft", "merge_into"]


def make_peft(
    folder: Path,
    model: Any,
    takes: Callable[[str], bool],
    *,
    rank: int = 3,
    alpha: float = 4.0,
    seed: int = 0,
    dtype: str = "float32",
    **settings: Any,
) -> dict[str, Any]:
    """Saves a random adapter of the matrices of `model` whose names `takes` says; returns what it
    adds to each, by the name of the parameter."""
    torch.manual_seed(seed)
    tensors, sums = {}, {}
    flipped = settings.get("fan_in_fan_out", False)
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.dim() != 2 or not takes(name):
            continue
        n_out, n_in = weight.shape[::-1] if flipped else weight.shape
        embeds = isinstance(module, torch.nn.Embedding)
        if embeds:
            n_in, n_out = n_out, n_in
        a = (torch.randn(rank, n_in) / n_in**0.5).to(getattr(torch, dtype))
        b = torch.randn(n_out, rank).to(getattr(torch, dtype)) / 4
        names = ("lora_embedding_A", "lora_embedding_B")
        if not embeds:
            names = ("lora_A.weight", "lora_B.weight")
        tensors |= {f"base_model.model.{name}.{n}": t for n, t in zip(names, (a, b), strict=True)}
        root = rank**0.5 if settings.get("use_rslora") else rank
        own = settings.get("alpha_pattern", {}).get(name.rpartition(".")[2], alpha)
        delta = b.float() @ a.float() * (own / root)
        sums[f"{name}.weight"] = delta.T if embeds or flipped else delta
    assert tensors
    folder.mkdir(exist_ok=True)
    safetensors.save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha,
              "base_model_name_or_path": "someone/model"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    return sums


def merge_into(model: Any, sums: dict[str, Any], scale: float = 1.0) -> None:
    """Adds what an adapter adds."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in sums:
                parameter += scale * sums[name]
