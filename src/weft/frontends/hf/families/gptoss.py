"""gpt-oss: experts with biases and MXFP4 weights, attention sinks."""

from __future__ import annotations

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import NORM_BEHIND, Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]


def _keys(c: Config) -> Pairs:
    yield "attention.sliding_window", c["sliding_window"]
    yield "expert_feed_forward_length", c["intermediate_size"]


def _change(c: Config, name: str, values: Values) -> Named:
    """Rows of gate and up take turns in the folder."""
    if name.endswith("sinks"):
        yield f"{name}.weight", values
    elif name.endswith("gate_up_proj_bias"):
        n = values.shape[-1] // 2
        for part, start in (("gate", 0), ("up", 1)):
            new = name.replace("gate_up_proj_bias", f"{part}_proj.bias")
            yield new, values.taken(..., slice(start, None, 2), shape=(values.shape[0], n))
    elif name.endswith("down_proj_bias"):
        yield name.replace("_bias", ".bias"), values
    elif name.endswith("gate_up_proj_mxfp4"):
        for part, start in (("gate", 0), ("up", 1)):
            yield name.replace("gate_up_proj_mxfp4", f"{part}_proj.weight"), _rows(values, start)
    elif name.endswith("down_proj_mxfp4"):
        yield name.replace("_mxfp4", ".weight"), values
    elif name.endswith("gate_up_proj"):
        n_expert, width, n = values.shape
        for part, start in (("gate", 0), ("up", 1)):
            columns = values.taken(..., slice(start, None, 2), shape=(n_expert, width, n // 2))
            yield name.replace("gate_up_proj", f"{part}_proj.weight"), _transposed(columns)
    elif name.endswith("down_proj"):
        yield f"{name}.weight", _transposed(values)
    else:
        yield name, values


def _transposed(values: Values) -> Values:
    n, rows, columns = values.shape
    return values.through(lambda x: x.swapaxes(-1, -2), (n, columns, rows))


def _rows(values: Values, start: int) -> Values:
    """Every second row from `start` on of blocks that are quantized already."""
    packed = values.packed
    assert packed is not None
    shape = (values.shape[0], values.shape[1] // 2, values.shape[2])
    return Values(
        shape, values.kind, lambda: values.load()[:, start::2],
        packed=lambda: np.ascontiguousarray(packed()[:, start::2]),
    )  # fmt: skip


FAMILIES = {
    "gpt-oss": Family(
        "gpt-oss",
        _keys,
        change=_change,
        names=NORM_BEHIND,
        defaults={"rope_theta": 150000.0, "head_dim": 64, "sliding_window": 128},
        windows=lambda il: il % 2 != 1,
    ),
}
