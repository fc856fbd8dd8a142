"""An importance matrix for the tensors of a file: which weights a tensor is quantized with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DType
from weft.errors import FormatError, UnsupportedOpError
from weft.frontends.gguf.imatrix_file import chosen, imatrix_keys, importance_of, read_imatrix
from weft.frontends.gguf.mixes import Mix, is_quantized, needs_imatrix
from weft.frontends.gguf.pruned import Pruned
from weft.frontends.gguf.tensors import TensorInfo
from weft.quants import can_encode
from weft.quants.native_rows import NEEDS_WEIGHTS, can_convert
from weft.records import dataclass

__all__ = ["Importance", "check_importance", "read_importance"]

_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


@dataclass(frozen=True, slots=True)
class Importance:
    """The weights of columns by the name of the tensor, and the keys that tell of them."""

    weights: Mapping[str, NDArray[np.float32]]
    keys: Mapping[str, object]

    def of(self, t: TensorInfo, name: str | None = None) -> NDArray[np.float32] | None:
        """The weights of a tensor, `[matrices, ne0]`, or None without any. `name` is the tensor's
        where the matrix was measured. Raises FormatError if they are of other sizes."""
        weights = self.weights.get(name or t.name)
        if weights is None:
            return None
        if weights.size != t.ne[0] * t.ne[2]:
            if t.name in _EMBEDDINGS:
                return None
            raise FormatError(
                f"the importance matrix has {weights.size} weights for {t.name}, and the tensor "
                f"{t.ne[0]} columns and {t.ne[2]} matrices; measure one with this model"
            )
        return weights.reshape(-1, t.ne[0])


def read_importance(
    path: str | os.PathLike[str], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Importance | None:
    """Reads an importance matrix; with `include`, only for tensors whose names have one of these
    parts, and with `exclude`, for none whose name has one. None if nothing is left.

    Raises FormatError for a file that is none or has no `imatrix.*` keys."""
    imatrix = read_imatrix(path)
    if not imatrix.has_metadata:
        raise FormatError(
            f"{os.fspath(path)}: the keys imatrix.datasets, imatrix.chunk_count and "
            "imatrix.chunk_size are missing; measure the importance matrix again"
        )
    weights = chosen(importance_of(imatrix), include, exclude)
    if not weights:
        return None
    return Importance(weights, imatrix_keys(path, imatrix, len(weights)))


def check_importance(
    kept: Pruned, types: Mapping[str, DType], mix: Mix, importance: Importance | None, arch: str
) -> None:
    """Raises UnsupportedOpError for a tensor whose new type is of no use without an importance
    matrix when there is none, or it lacks the tensor; and for one that weft cannot write."""
    for t in kept.tensors.values():
        after = types[t.name]
        name = kept.old_names[t.name]
        weights = None if importance is None else importance.of(t, name)
        changes = after is not t.dtype
        if weights is None and (changes or (importance is None and is_quantized(t, arch))):
            low = needs_imatrix(t.name, after, mix)
            if low or (changes and after.name in NEEDS_WEIGHTS):
                lack = "" if importance is None else ", and the one that was given does not have it"
                raise UnsupportedOpError(
                    f"{t.name} as {after.name} needs an importance matrix{lack}; make one with "
                    "`weft imatrix` and pass it with --imatrix, or use another type"
                )
        if changes and not _can_write(t.dtype, after, weights is not None):
            raise UnsupportedOpError(
                f"weft cannot write {after.name}, which {mix.name} has for {t.name}; use another "
                "type"
            )


def _can_write(before: DType, after: DType, weighted: bool) -> bool:
    if after.name == "i2_s" or can_encode(after):
        return True
    return can_convert(before, after, weighted=weighted)
