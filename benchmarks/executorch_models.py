"""The models of `executorch.py`: random weights, written out here so that nothing is downloaded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(width: int = 1024) -> nn.Module:
    """Four linear layers with ReLU, 784 in and 10 out."""
    sizes = (784, width, width, width)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def _conv(a: int, b: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(b)]


class Basic(nn.Module):
    """ResNet's block of two 3x3 convolutions."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_conv(a, b, 3, stride), nn.ReLU(), *_conv(b, b, 3))
        same = a == b and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(*_conv(a, b, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class Inverted(nn.Module):
    """MobileNetV2's block: 1x1 up, 3x3 by channel, 1x1 down."""

    def __init__(self, a: int, b: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = a * factor
        up = [*_conv(a, wide, 1), nn.ReLU6()] if factor > 1 else []
        deep = [*_conv(wide, wide, 3, stride, wide), nn.ReLU6()]
        self.body = nn.Sequential(*up, *deep, *_conv(wide, b, 1))
        self.adds = a == b and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]


def resnet() -> nn.Module:
    """ResNet-18."""
    layers = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    a = 64
    for b, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Basic(a, b, stride), Basic(b, b, 1)]
        a = b
    return nn.Sequential(*layers, *_head(512))


def mobilenet() -> nn.Module:
    """MobileNetV2 of width 1."""
    layers = [*_conv(3, 32, 3, 2), nn.ReLU6()]
    a = 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
             (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for factor, b, count, stride in table:
        for i in range(count):
            layers.append(Inverted(a, b, stride if i == 0 else 1, factor))
            a = b
    return nn.Sequential(*layers, *_conv(320, 1280, 1), nn.ReLU6(), *_head(1280))


class Block(nn.Module):
    """A layer as Llama's: grouped queries, RMS norms, a gated MLP; no rotary positions."""

    def __init__(self, dim: int, heads: int, kv_heads: int, ff: int, room: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, dim // heads
        self.norm1, self.norm2 = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.v = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.gate, self.up = nn.Linear(dim, ff, bias=False), nn.Linear(dim, ff, bias=False)
        self.down = nn.Linear(ff, dim, bias=False)
        if room:
            shape = (1, kv_heads, room, self.size)
            self.register_buffer("k_cache", torch.zeros(shape))
            self.register_buffer("v_cache", torch.zeros(shape))

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor | None = None) -> Tensor:
        b, t, dim = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, t, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(h).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        if positions is not None:
            self.k_cache[:, :, positions] = k
            self.v_cache[:, :, positions] = v
            k, v = self.k_cache, self.v_cache
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(h.transpose(1, 2).reshape(b, t, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Prefill(nn.Module):
    """One block over a causal prompt."""

    def __init__(self, tokens: int = 128) -> None:
        super().__init__()
        self.block = Block(1024, 16, 8, 2816, 0)
        self.register_buffer("mask", torch.full((tokens, tokens), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, self.mask)


class Decode(nn.Module):
    """Blocks with static caches and an output matrix, one token a call."""

    def __init__(self, layers: int = 4, room: int = 256, vocabulary: int = 8192) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(1024, 16, 8, 2816, room) for _ in range(layers))
        self.norm = nn.RMSNorm(1024, 1e-5)
        self.head = nn.Linear(1024, vocabulary, bias=False)
        self.room = room

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        cells = torch.arange(self.room)
        mask = torch.where(cells[None, :] <= positions[:, None], 0.0, float("-inf"))
        for block in self.blocks:
            x = block(x, mask, positions)
        return self.head(self.norm(x))


class Tiny(nn.Module):
    """A model that computes almost nothing, to measure what a call costs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def _settled(module: nn.Module) -> nn.Module:
    """Norms with statistics that keep the numbers of a deep network in range."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_var.fill_(0.5)
            m.running_mean.normal_(0, 0.1)
    return module.eval()


def models() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Module and inputs by name."""
    token = (torch.randn(1, 1, 1024), torch.tensor([128]))
    return {
        "empty call": (Tiny(), (torch.randn(1, 16),)),
        "MLP, batch 1": (mlp(), (torch.randn(1, 784),)),
        "MLP, batch 64": (mlp(), (torch.randn(64, 784),)),
        "ResNet-18, 224": (_settled(resnet()), (torch.randn(1, 3, 224, 224),)),
        "MobileNetV2, 224": (_settled(mobilenet()), (torch.randn(1, 3, 224, 224),)),
        "block, 128 tokens": (Prefill().eval(), (torch.randn(1, 128, 1024),)),
        "decode, 4 layers": (Decode().eval(), token),
        **{name: published(name) for name in PUBLISHED},
    }


PUBLISHED = ("mobilenet_v2", "mobilenet_v3", "vit_small", "bert_base", "lstm")
"""Programs of torch_programs.py that stand here, too."""


def published(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A program of torch_programs.py, with inputs."""
    from torch_programs import MODELS

    module, x = MODELS[name]()
    return _settled(module), (x,)
