"""The symbols that a delegated part knows: the size of one of its inputs must determine each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.fx import Node

from weft.errors import WeftError
from weft.frontends.fx.sizes import Sizes
from weft.graph.size import Size, Sym, symbols

__all__ = ["linear", "untold"]


def linear(size: Size, symbol: Sym) -> tuple[int, int] | None:
    """(mul, add) with size = mul * symbol + add and mul > 0; None for any other size."""
    if isinstance(size, int) or set(symbols(size)) != {symbol}:
        return None
    mul, add = 0, 0
    for mono, coefficient in size.terms.items():
        if mono == ():
            add = coefficient
        elif mono == (symbol,):
            mul = coefficient
        else:
            return None
    return (mul, add) if mul > 0 else None


def untold(nodes: Collection[Node], sizes: Sizes) -> dict[Node, str]:
    """The nodes of a part with a size that no input of the part determines, each with a sentence.

    Behind a convolution with stride that is left outside, say, a part sees (h - 1) // 2 + 1, while
    its own sizes are written with h."""
    inputs = {n for node in nodes for n in node.all_input_nodes} - set(nodes)
    input_sizes = [size for node in inputs for size in _sizes(node, sizes)]
    refused = {}
    for node in nodes:
        needed = _symbols(size for n in (node, *node.all_input_nodes) for size in _sizes(n, sizes))
        for symbol in sorted(needed, key=lambda s: s.name):
            if all(linear(size, symbol) is None for size in input_sizes):
                refused[node] = (
                    f"no input of the part that weft would run here determines the value of size "
                    f"{symbol.name}"
                )
                break
    return refused


def _symbols(sizes: Iterable[Size]) -> set[Sym]:
    return {symbol for size in sizes for symbol in symbols(size)}


def _sizes(node: Node, sizes: Sizes) -> list[Size]:
    """The sizes of a node's results; sizes that weft cannot express are refused elsewhere."""
    values = node.meta.get("val")
    dims: list[Any] = []
    for value in values if isinstance(values, list | tuple) else [values]:
        dims += value.shape if isinstance(value, torch.Tensor) else [value]
    try:
        return [sizes.of(n) for n in dims if isinstance(n, int | torch.SymInt)]
    except WeftError:
        return []
