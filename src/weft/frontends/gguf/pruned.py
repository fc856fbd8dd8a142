"""Leaving layers of a model out: the names of those that stay, and the keys that change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from weft.errors import FormatError
from weft.frontends.gguf.reader import GGUFFile
from weft.frontends.gguf.tensors import TensorInfo
from weft.records import dataclass

_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Pruned:
    """The tensors that stay, under their new names, and the names that they had."""

    tensors: Mapping[str, TensorInfo]
    old_names: Mapping[str, str]
    keys: Mapping[str, object]
    """New values of metadata keys, by key."""


def prune(file: GGUFFile, layers: Iterable[int]) -> Pruned:
    """The model without `layers`; later layers move up, as llama-quantize numbers them.

    Raises FormatError for a layer that the model does not have, or if none would stay."""
    left_out = set(layers)
    if not left_out:
        return Pruned(file.tensors, {name: name for name in file.tensors}, {})
    found = sorted({int(m[1]) for name in file.tensors if (m := _LAYER.search(name))})
    unknown = sorted(left_out - set(found))
    if unknown:
        raise FormatError(
            f"--prune-layers: there is no layer {unknown[0]}; the model has layers "
            f"{found[0] if found else 0} to {found[-1] if found else 0}"
        )
    kept = [layer for layer in found if layer not in left_out]
    if not kept:
        raise FormatError("--prune-layers: no layer would be left; name fewer")
    number = {layer: i for i, layer in enumerate(kept)}
    tensors: dict[str, TensorInfo] = {}
    old_names: dict[str, str] = {}
    for name, t in file.tensors.items():
        match = _LAYER.search(name)
        if match and int(match[1]) in left_out:
            continue
        new = name
        if match:
            new = f"{name[: match.start(1)]}{number[int(match[1])]}{name[match.end(1) :]}"
        tensors[new] = replace(t, name=new)
        old_names[new] = name
    return Pruned(tensors, old_names, {f"{file.architecture}.block_count": np.uint32(len(kept))})
