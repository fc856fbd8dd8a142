"""Networks over images of any height and width, small and with random weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

__all__ = ["NETWORKS", "SIZES", "images", "sizes_in"]


class Fire(nn.Module):
    """SqueezeNet's block: a narrow 1x1, then 1x1 and 3x3 beside each other."""

    def __init__(self, ins: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(ins, narrow, 1)
        self.one = nn.Conv2d(narrow, wide, 1)
        self.three = nn.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(ins, outs, 3, stride, 1, bias=False), nn.BatchNorm2d(outs)
        )
        self.second = nn.Sequential(
            nn.Conv2d(outs, outs, 3, 1, 1, bias=False), nn.BatchNorm2d(outs)
        )
        self.beside = nn.Identity()
        if stride > 1 or ins != outs:
            self.beside = nn.Sequential(
                nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.beside(x))


def _squeezenet() -> nn.Module:
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), pool(), Fire(16, 4, 8), Fire(16, 4, 8)),
        *(pool(), Fire(16, 4, 8), pool(), Fire(16, 4, 8)),
        *(nn.Conv2d(16, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


def _resnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


def _chain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *(nn.Conv2d(8, 8, 3) for _ in range(3)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "chain": _chain,
    "pointwise": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)),
    "strides": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3, 2), nn.Conv2d(8, 8, 5, 2)
    ),
    "ceil_max": lambda: nn.MaxPool2d(3, 2, ceil_mode=True),
    "ceil_max_behind": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.MaxPool2d(3, 2, ceil_mode=True)
    ),
    "ceil_avg": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.AvgPool2d(3, 2, padding=1, ceil_mode=True)
    ),
    "squeezenet": _squeezenet,
    "resnet": _resnet,
}
"""By name; images have 3 channels."""

SIZES = (48, 112, 160)
"""Heights and widths to try, within those of `sizes_in`."""


def sizes_in(name: str, square: bool) -> dict[int, Any]:
    """The dynamic dimensions of a network: any from 40 to 160, whole multiples of 16 where the
    guards of ceil_mode allow no others; one symbol for both where images are square."""
    step = 16 if "ceil" in name or name == "squeezenet" else 1

    def dim(letter: str) -> Any:
        return step * Dim(letter, min=-(-40 // step), max=160 // step)

    height = dim("h")
    return {2: height, 3: height if square else dim("w")}


def images(square: bool) -> Iterator[Tensor]:
    """An image of every size."""
    generator = torch.Generator().manual_seed(0)
    for h, w in itertools.product(SIZES, SIZES):
        if h == w or not square:
            yield torch.randn(1, 3, h, w, generator=generator)
