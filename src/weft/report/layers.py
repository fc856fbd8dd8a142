"""Layers of a graph: which rows of its table belong together, and which layers repeat.

The names of weights and caches tell the layer of what reads them (`blk.3.attn_q.weight`,
`cache_k_3`, `model.layers.3.mlp.weight`), and some nodes have a number of their own (`l_out-3`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_PERIODS = 12
"""The most blocks that repeat together: models alternate kinds of layers, such as five with a
window and one without."""


class Block(NamedTuple):
    """Rows `start` to `end` (exclusive)."""

    start: int
    end: int
    name: str
    """`layer 3`, or empty for nodes that are of no layer."""


def layers_data(
    columns: Mapping[str, Sequence[Any]], splits: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Layers of the graph with this table (see `weft.report.tables.COLUMNS`) and these splits.

    `first` is the row of the first node; all rows from there on are in the order in which they
    run. `blocks` are [start, end, name], rows that belong to a layer or stand between layers.
    `folds` are [block, period, times]: from that block on, `period` blocks repeat `times` times,
    alike in ops, sizes, types, devices, causes, refusals and splits."""
    n = len(columns["name"])
    first = next((row for row in range(n) if columns["time"][row] >= 0), n)
    layers = [_layer(columns, row) for row in range(first, n)]
    if len(set(layers) - {None, -1}) < 2:  # a number that names no layer
        layers = [None] * len(layers)
    blocks = [Block(b.start + first, b.end + first, b.name) for b in blocks_of(layers)]
    copies = [len(split["inputs"]) for split in splits]

    def kind(row: int) -> tuple[object, ...]:
        split, before = columns["split"][row], columns["split"][row - 1] if row > first else -1
        begins = copies[split] if split >= 0 and split != before else -1
        what = tuple(columns[key][row] for key in ("kind", "op", "shape", "type", "device"))
        return (*what, columns["cause"][row][:5], tuple(columns["refused"][row] or ()), begins)

    kinds = [tuple(kind(row) for row in range(b.start, b.end)) for b in blocks]
    return {"first": first, "blocks": [list(block) for block in blocks], "folds": folds_of(kinds)}


def _layer(columns: Mapping[str, Sequence[Any]], row: int) -> int | None:
    """The number of a node's layer; -1 where it reads a weight that is of no layer; None where
    nothing tells."""
    if columns["kind"][row] != "node":
        return None
    own = number_in(columns["name"][row], "-")
    if own is not None:
        return own
    kept = []
    for source in columns["src"][row]:
        base = columns["view"][source] if columns["view"][source] >= 0 else source
        if columns["kind"][base] in ("weights", "cache", "state"):
            kept.append(base)
    numbers = [number_in(columns["name"][base]) for base in kept]
    known = [number for number in numbers if number is not None]
    if known:
        return known[0]
    return -1 if any(columns["kind"][base] == "weights" for base in kept) else None


def number_in(name: str, before: str = "._") -> int | None:
    """The first number that is a part of a name between dots and underscores, such as 3 in
    `blk.3.attn_q.weight` and `cache_k_3`; with `before="-"` the one at the end of `l_out-3`."""
    if before == "-":
        found = re.search(r"-(\d+)(?: \(.*\))?$", name)
    else:
        found = re.search(r"(?:^|[._])(\d+)(?=[._]|$)", name)
    return None if found is None else int(found[1])


def blocks_of(layers: Sequence[int | None]) -> list[Block]:
    """The blocks of nodes, from the layer of each node as far as it is known (-1: of none).

    A node whose layer is unknown belongs to the next node whose layer is known, since a layer
    begins with a norm that names nothing; the last ones belong to the node before them."""
    known: list[int] = []
    after: int | None = None
    for layer in reversed(layers):
        after = layer if layer is not None else after
        known.append(-1 if after is None else after)
    known.reverse()
    told = [i for i, layer in enumerate(layers) if layer is not None]
    if told:
        known[told[-1] :] = [known[told[-1]]] * (len(known) - told[-1])
    blocks: list[Block] = []
    for i, layer in enumerate(known):
        name = "" if layer < 0 else f"layer {layer}"
        if blocks and blocks[-1].name == name:
            blocks[-1] = blocks[-1]._replace(end=i + 1)
        else:
            blocks.append(Block(i, i + 1, name))
    return blocks


def folds_of(kinds: Sequence[Any]) -> list[list[int]]:
    """[block, period, times] of blocks that repeat, in order and without overlap.

    `kinds` has the kind of each block; equal ones look alike. At each block the period that covers
    most is taken, the shortest of those."""
    folds: list[list[int]] = []
    i = 0
    while i < len(kinds):
        best = (0, 0, 0)
        for period in range(1, min(_PERIODS, (len(kinds) - i) // 2) + 1):
            times = _times(kinds, i, period)
            if times > 1 and times * period > best[0]:
                best = (times * period, period, times)
        covered, period, times = best
        if covered:
            folds.append([i, period, times])
        i += covered or 1
    return folds


def _times(kinds: Sequence[Any], start: int, period: int) -> int:
    first = kinds[start : start + period]
    times = 1
    while kinds[start + times * period : start + (times + 1) * period] == first:
        times += 1
    return times
