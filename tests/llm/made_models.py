"""Tiny models made up from the weight tables of their architectures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.llm.tiny import metadata, write_model
from weft.frontends.gguf import open_gguf
from weft.llm.compute.context import Context
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys, read_config
from weft.llm.model import Model
from weft.llm.models import ARCHITECTURES
from weft.llm.weights import Row

__all__ = [
    "EXPERTS", "TOKENS", "WINDOW", "YARN", "Tensors", "configure", "context", "keys_of", "made_up",
    "plain",
]  # fmt: skip

TOKENS = [1, *range(250, 268), 5, 9]
Tensors = dict[str, NDArray[np.float32]]

EXPERTS = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 10}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "attention.key_length": 8,
    "attention.value_length": 8,
}
WINDOW = {"attention.sliding_window": 6}


def keys_of(arch: str, changes: dict[str, object]) -> dict[str, object]:
    """Metadata of a tiny model; `changes` without the architecture's prefix."""
    meta = metadata()
    own = {key.split(".", 1)[1]: meta.pop(key) for key in list(meta) if key.startswith("llama.")}
    own["attention.layer_norm_epsilon"] = 1e-5
    named = {f"{arch}.{key}": value for key, value in (own | changes).items()}
    for name in ("alpha_n", "alpha_p", "beta", "eps") if arch == "apertus" else ():
        named[f"xielu.{name}"] = np.linspace(-0.2, 0.6, 4).astype(np.float32)
    return meta | {"general.architecture": arch} | named


def configure(tmp_path: Path, meta: dict[str, object]) -> ModelConfig:
    """The config that `meta` gives."""
    path = write_model(tmp_path / "config.gguf", meta, {"x": np.zeros(1, np.float32)})
    file = open_gguf(path)
    return ARCHITECTURES[file.architecture].configure(read_config(file), Keys(file))


def plain(row: Row) -> bool:
    """Leaves out what stands for other tensors, and scales."""
    fused = ("gate_up_exps", "rope_", "time_mix_lerp_fused", "ssm_in")
    if "attn_qkv" in row.name and not row.unless:
        return False
    return not any(name in row.name for name in fused) and not row.name.endswith(
        (".scale", "_norm")
    )


def made_up(config: ModelConfig, wanted: Callable[[Row], bool] = plain) -> Tensors:
    """Random weights for the wanted rows of the table and those that must be there."""
    random = np.random.default_rng(0)
    tensors: Tensors = {}
    for row in ARCHITECTURES[config.arch].table(config):
        if not wanted(row) and (row.optional or row.unless):
            continue
        if row.name.endswith("tid2eid.weight") and config.moe is not None:
            shape = (row.ne[1], config.moe.n_expert)
            chosen = random.random(shape).argsort(axis=1)[:, : row.ne[0]]
            tensors[row.name] = chosen.astype(np.int32)
            continue
        x = random.standard_normal(row.ne[::-1])
        if row.name.endswith((".bias", ".scale")) or "norm" in row.name or "rope_" in row.name:
            x = 0.2 * x + (not row.name.endswith(".bias"))
        else:
            x *= 1.5 / np.sqrt(row.ne[0]) * (4 if row.name.startswith("token_embd") else 1)
        x = -np.abs(x) if row.name.endswith("ssm_a") else x  # states decay
        tensors[row.name] = x.astype(np.float32)
    return tensors


def context(path: Path, **options: Any) -> Context:
    """A context of 48 tokens whose numbers are all float32."""
    return Context(
        Model.open(path), 48, type_k="f32", type_v="f32", devices=["reference"], **options
    )
