"""The PyTorch programs that `torch_models.py` times: published shapes with random weights.

Most come from transformers; the ones that it lacks are written here after their papers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

Made = tuple[nn.Module, Tensor]
TEXT = {"vocab_size": 2000, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}


class First(nn.Module):
    """The first result of a model of transformers, for its first argument."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, return_dict=False, **self.options)[0]


class Recurrent(nn.Module):
    """All outputs of an LSTM or a GRU of PyTorch, without its last state."""

    def __init__(self, net: nn.RNNBase) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[0]


def conv(
    a: int, b: int, size: int, stride: int = 1, groups: int = 1, *, act: Any = None
) -> list[nn.Module]:
    """A convolution of `a` to `b` channels with normalization and, if given, an activation."""
    layers = [
        nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(b),
    ]
    return [*layers, act()] if act else layers


class Squeeze(nn.Module):
    """Squeeze and excitation of MobileNetV3."""

    def __init__(self, n: int) -> None:
        super().__init__()
        inner = (n // 4 + 7) // 8 * 8
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(n, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, n, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Inverted(nn.Module):
    """An inverted residual of MobileNetV3."""

    def __init__(
        self, a: int, wide: int, b: int, size: int, stride: int, squeeze: bool, act: Any
    ) -> None:
        super().__init__()
        expand = conv(a, wide, 1, act=act) if wide != a else []
        middle = [
            *conv(wide, wide, size, stride, wide, act=act),
            *([Squeeze(wide)] if squeeze else []),
        ]
        self.layers = nn.Sequential(*expand, *middle, *conv(wide, b, 1))
        self.keeps = stride == 1 and a == b

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.keeps else self.layers(x)


def mobilenet_v3() -> nn.Module:
    """MobileNetV3 Large, 5.4 M parameters."""
    relu, swish = nn.ReLU, nn.Hardswish
    rows = [  # wide, out, kernel, stride, squeeze, activation
        (16, 16, 3, 1, False, relu), (64, 24, 3, 2, False, relu), (72, 24, 3, 1, False, relu),
        (72, 40, 5, 2, True, relu), (120, 40, 5, 1, True, relu), (120, 40, 5, 1, True, relu),
        (240, 80, 3, 2, False, swish), (200, 80, 3, 1, False, swish), (184, 80, 3, 1, False, swish),
        (184, 80, 3, 1, False, swish), (480, 112, 3, 1, True, swish), (672, 112, 3, 1, True, swish),
        (672, 160, 5, 2, True, swish), (960, 160, 5, 1, True, swish), (960, 160, 5, 1, True, swish),
    ]  # fmt: skip
    layers = conv(3, 16, 3, 2, act=swish)
    n = 16
    for wide, out, size, stride, squeeze, act in rows:
        layers.append(Inverted(n, wide, out, size, stride, squeeze, act))
        n = out
    layers += [*conv(n, 960, 1, act=swish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), swish(), nn.Linear(1280, 1000))


class UNet(nn.Module):
    """A U-Net of four levels, 32 to 256 channels, that upsamples by transposed convolutions."""

    def __init__(self, n: int = 32) -> None:
        super().__init__()
        widths = [n, 2 * n, 4 * n, 8 * n]

        def pair(a: int, b: int) -> nn.Module:
            return nn.Sequential(*conv(a, b, 3, act=nn.ReLU), *conv(b, b, 3, act=nn.ReLU))

        self.down = nn.ModuleList(
            pair(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.join = nn.ModuleList(pair(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(n, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, layer in enumerate(self.down):
            x = layer(x if i == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        return self.head(x)


class GraphNet(nn.Module):
    """A graph convolutional network of two layers, on a graph of random edges."""

    def __init__(self, nodes: int = 34, edges: int = 156, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 4)
        self.register_buffer("edges", torch.randint(0, nodes, (2, edges)))

    def spread(self, x: Tensor) -> Tensor:
        source, to = self.edges
        degree = torch.zeros(x.shape[0]).index_add(0, to, torch.ones(to.shape[0]))
        scale = degree.clamp(min=1).rsqrt()
        messages = x[source] * (scale[source] * scale[to])[:, None]
        return torch.zeros_like(x).index_add(0, to, messages)

    def forward(self, x: Tensor) -> Tensor:
        return self.spread(self.second(self.spread(self.first(x)).relu())).log_softmax(1)


class Siren(nn.Module):
    """An image as a function of places: linear layers with sines between them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), *(nn.Linear(width, width),) * 3])
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(30 * layer(x))
        return self.last(x)


class Kalman(nn.Module):
    """A Kalman filter with 4 states over a series of 2 measurements each."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.eye(4) + 0.1 * torch.diag(torch.ones(2), 2))
        self.register_buffer("seen", torch.eye(2, 4))

    def forward(self, series: Tensor) -> Tensor:
        x, p, states = torch.zeros(4), torch.eye(4), []
        for z in series:
            x, p = self.step @ x, self.step @ p @ self.step.T + 0.01 * torch.eye(4)
            s = self.seen @ p @ self.seen.T + 0.1 * torch.eye(2)
            gain = torch.linalg.solve(s, self.seen @ p).T
            x, p = x + gain @ (z - self.seen @ x), p - gain @ self.seen @ p
            states.append(x)
        return torch.stack(states)


def scaled(module: nn.Module, x: Tensor) -> Made:
    """The module, whose normalizations have unit weights and the statistics of `x`, so that values
    keep their size as in trained models; with random weights of transformers they shrink to
    subnormal numbers, with which processors are slow."""
    module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
            layer.momentum = 1.0
            layer.train()
    with torch.no_grad():
        module(x)
    return module.eval(), x


def image(n: int = 224) -> Tensor:
    return torch.randn(1, 3, n, n)


def words(n: int = 128) -> Tensor:
    return torch.randint(0, 2000, (1, n))


MODELS: dict[str, Callable[[], Made]] = {
    "resnet18": lambda: (
        First(tf.ResNetModel(tf.ResNetConfig(
            embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
            layer_type="basic"))), image()),
    "mobilenet_v2": lambda: scaled(First(tf.MobileNetV2Model(tf.MobileNetV2Config())), image()),
    "regnet": lambda: (
        First(tf.RegNetModel(tf.RegNetConfig(
            embedding_size=32, hidden_sizes=[24, 56, 152, 368], depths=[1, 1, 4, 7],
            groups_width=8, layer_type="y"))), image()),
    "convnext": lambda: (
        First(tf.ConvNextModel(tf.ConvNextConfig(
            hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2]))), image()),
    "vit_tiny": lambda: (
        First(tf.ViTModel(tf.ViTConfig(
            hidden_size=192, num_hidden_layers=12, num_attention_heads=3,
            intermediate_size=768))), image()),
    "swin_tiny": lambda: (First(tf.SwinModel(tf.SwinConfig())), image()),
    "levit": lambda: (
        First(tf.LevitModel(tf.LevitConfig(
            hidden_sizes=[128, 256, 384], num_attention_heads=[4, 6, 8], depths=[2, 3, 4],
            key_dim=[16, 16, 16]))), image()),
    "bert 512x4": lambda: (
        First(tf.BertModel(tf.BertConfig(intermediate_size=2048, **TEXT))), words()),
    "qwen3 512x4": lambda: (
        First(tf.Qwen3ForCausalLM(tf.Qwen3Config(
            intermediate_size=1536, num_key_value_heads=4, head_dim=64, **TEXT)),
            use_cache=False), words()),
    "t5 256x4": lambda: (
        First(tf.T5EncoderModel(tf.T5Config(
            vocab_size=2000, d_model=256, d_ff=1024, num_layers=4, num_heads=4))), words()),
    "mamba 256x4": lambda: (
        First(tf.MambaModel(tf.MambaConfig(
            vocab_size=2000, hidden_size=256, num_hidden_layers=4)), use_cache=False), words(64)),
    "wav2vec2": lambda: (
        First(tf.Wav2Vec2Model(tf.Wav2Vec2Config(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            num_conv_pos_embedding_groups=8))), torch.randn(1, 16000)),
    "resnet50": lambda: (First(tf.ResNetModel(tf.ResNetConfig())), image()),
    "unet": lambda: (UNet(), image(256)),
    "mobilenet_v3": lambda: (mobilenet_v3(), image()),
    "efficientnet_b0": lambda: scaled(
        First(tf.EfficientNetModel(tf.EfficientNetConfig(
            width_coefficient=1.0, depth_coefficient=1.0, image_size=224,
            hidden_dim=1280))), image()),
    "vit_small": lambda: (
        First(tf.ViTModel(tf.ViTConfig(
            hidden_size=384, num_attention_heads=6, intermediate_size=1536))), image()),
    "convnext_tiny": lambda: (First(tf.ConvNextModel(tf.ConvNextConfig())), image()),
    "bert_base": lambda: (First(tf.BertModel(tf.BertConfig(vocab_size=2000))), words()),
    "wav2vec2_base": lambda: (First(tf.Wav2Vec2Model(tf.Wav2Vec2Config())), torch.randn(1, 16000)),
    "mamba 4x256": lambda: (
        First(tf.MambaModel(tf.MambaConfig(
            vocab_size=2000, hidden_size=256, num_hidden_layers=4)), use_cache=False), words()),
    "mlp": lambda: (
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(1, 64)),
    "gcn": lambda: (GraphNet(), torch.randn(34, 16)),
    "siren": lambda: (Siren(), torch.rand(256, 2)),
    "kalman": lambda: (Kalman(), torch.randn(10, 2)),
    "lstm": lambda: (Recurrent(nn.LSTM(128, 256, 2, batch_first=True)), torch.randn(1, 100, 128)),
    "gru": lambda: (Recurrent(nn.GRU(128, 256, 2, batch_first=True)), torch.randn(1, 100, 128)),
}  # fmt: skip
