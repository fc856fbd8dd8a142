"""Tiny models with a layer that drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import keys_of, made_up, plain
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.frontends.gguf import open_gguf
from weft.llm.config_keys import Keys, read_config
from weft.llm.models import ARCHITECTURES
from weft.llm.models.next_layer import next_config, next_layer
from weft.llm.weights import Row

__all__ = ["with_next_layer"]

Wanted = Callable[[Row], bool]


def with_next_layer(
    folder: Path,
    name: str,
    *,
    own: tuple[str, ...] = ("shared_head_norm",),
    dense: bool = False,
    n_draft: int = 1,
) -> Path:
    """Writes the model `name` of other tests with `n_draft` more layers, which draft; they have the
    tensors `own` themselves. `dense`: they have no experts. Where files of the architecture have
    windows and heads of layers that draft, these are the last layer's."""
    arch, changes = (OTHERS | RELATIVES)[name]
    n_layer = int(str(changes.get("block_count", 2)))
    meta = keys_of(
        arch, changes | {"block_count": n_layer + n_draft, "nextn_predict_layers": n_draft}
    )
    meta[f"{arch}.context_length"] = 256
    for key in ("head_count", "head_count_kv", "sliding_window_pattern"):
        each = meta.get(f"{arch}.attention.{key}")
        if arch in ("step35", "mimo2") and isinstance(each, np.ndarray):
            meta[f"{arch}.attention.{key}"] = np.append(each, [each[-1]] * n_draft)
    router = {} if dense else {f"blk.{n_layer}.ffn_gate_inp.weight": np.zeros(1, np.float32)}
    indexer = {f"blk.{n_layer}.indexer.proj.weight": np.zeros(1, np.float32)}
    few = {"x": np.zeros(1, np.float32), **router, **(indexer if "indexer" in str(changes) else {})}
    file = open_gguf(write_model(folder / "config.gguf", meta, few))
    base = ARCHITECTURES[arch]
    config = base.configure(read_config(file), Keys(file))
    tensors = made_up(config)
    random = np.random.default_rng(7)
    for row in next_layer(base).table(next_config(config, Keys(file))):
        if not row.name.startswith("blk.0."):
            continue
        name = row.name.split(".")[-2]
        if row.optional and name not in (*own, "exp_probs_b"):
            continue
        if row.unless and not plain(row):
            continue
        for il in range(n_layer, n_layer + n_draft):
            x = random.standard_normal(row.ne[::-1])
            gain = "norm" in row.name
            x = 1 + 0.2 * x if gain else 1.5 * x / np.sqrt(row.ne[0])
            tensors[row.name.replace("blk.0.", f"blk.{il}.")] = x.astype(np.float32)
    return write_model(folder / f"{name}.gguf", meta, tensors)
