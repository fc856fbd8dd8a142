"""Builds SentencePiece's precompiled tables of characters, for tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["chars_map"]


def chars_map(rules: Mapping[str, str]) -> NDArray[np.uint8]:
    """The table that replaces each key by its value (see `CharsMap` for the layout)."""
    texts, places = b"", {}
    for key, value in rules.items():
        places[key.encode()] = len(texts)
        texts += value.encode() + b"\0"
    units: dict[int, int] = {0: 0}

    def build(node: int, keys: list[bytes], depth: int) -> None:
        """Places the children of `node`, whose keys agree in their first `depth` bytes."""
        labels = {key[depth] if len(key) > depth else 0 for key in keys}
        # Offsets are shifted by 10 bits or, when bit 9 is set, by 2: multiples of 256 then.
        offset = next(
            o
            for o in range(256, 1 << 28, 256)
            if all(node ^ o ^ label not in units for label in labels)
        )
        units[node] |= (offset >> 8) << 10 | 0x200 | (0x100 if 0 in labels else 0)
        for label in labels:
            units[node ^ offset ^ label] = label
        for label in labels:
            child = node ^ offset ^ label
            below = [key for key in keys if (key[depth] if len(key) > depth else 0) == label]
            if label == 0:
                units[child] = 0x80000000 | places[below[0]]
            else:
                build(child, below, depth + 1)

    build(0, list(places), 0)
    size = (max(units) | 0xFF) + 1
    trie = np.zeros(size, "<u4")
    for at, unit in units.items():
        trie[at] = unit
    head = np.array([4 * size], "<u4")
    return np.frombuffer(head.tobytes() + trie.tobytes() + texts, np.uint8)
