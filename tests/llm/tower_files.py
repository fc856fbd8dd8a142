"""Comparisons of files of towers."""

from __future__ import annotations

import numpy as np

from weft.frontends.gguf import GGUFFile
from weft.quants import decode

__all__ = ["require_same_towers"]


def require_same_towers(got: GGUFFile, want: GGUFFile, *, exact: bool = True) -> None:
    """Both files have the same keys of towers and the same tensors."""
    assert got.architecture == "clip"
    assert got.get_str("general.type") == "mmproj"
    for key in want.metadata:
        if key.startswith("clip."):
            assert str(got.metadata[key]) == str(want.metadata[key]), key
    assert set(got.tensors) == set(want.tensors)
    for name, info in want.tensors.items():
        mine = got.tensors[name]
        assert mine.ne == info.ne, name
        values = [decode(np.asarray(t.data), t.dtype).reshape(-1) for t in (mine, info)]
        np.testing.assert_allclose(values[0], values[1], rtol=0 if exact else 1e-3, atol=1e-4)
