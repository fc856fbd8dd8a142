"""Convolutions with channels innermost: when, what follows them, and which copies are left."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from tests.frontends.fx.exported import check, convert, ops_of  # noqa: E402
from weft.frontends.fx.layout import channels_last, inverse, memory_order  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

nn, F = torch.nn, torch.nn.functional


def steps(converted: Any) -> list[str]:
    """The ops that run, in order."""
    return [s.op.name for split in converted.session.program.splits for s in split.steps]


def images(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """Something between convolutions of 8 channels."""

    def __init__(self, body: Callable[[Any], Any], into: int = 8, out: int = 8, n: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, 1, 1) for i in range(n))
        self.body = body
        self.after = nn.Conv2d(into, 4, 3)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Any) -> Any:
        for conv in self.before:
            x = conv(x)
        return self.last(self.after(self.body(x))).mean((2, 3))


# -- orders in memory ------------------------------------------------------------------------------


def test_memory_order() -> None:
    for shape in ((2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 1, 5), (2, 3, 4, 1), (2, 3, 5)):
        plain = torch.empty(shape)
        assert memory_order(shape, plain.stride()) == tuple(range(len(shape)))
        assert memory_order(shape, [2 * s for s in plain.stride()]) is None
    x = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert memory_order(x.shape, x.stride()) == channels_last(4) == (0, 2, 3, 1)
    x = torch.empty(1, 3, 4, 5).to(memory_format=torch.channels_last)
    assert memory_order(x.shape, x.stride()) == channels_last(4)
    assert memory_order((4, 5, 6), (1, 24, 4)) == (1, 2, 0)
    assert memory_order((4, 5, 6), (0, 6, 1)) is None
    assert inverse(channels_last(4)) == (0, 3, 1, 2)


# -- what goes on without copies -------------------------------------------------------------------

KEEP: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "hardswish": F.hardswish,
    "silu, gate": lambda x: F.silu(x) * x,
    "gelu": F.gelu,
    "numbers": lambda x: (x * 2 + 1) / 4 - 3,
    "channel factors": lambda x: x * torch.arange(8.0)[:, None, None] + x.mean((2, 3), True),
    "squeeze and excite": lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max pool, dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2, ceil_mode=True),
    "average pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average pool, all": lambda x: F.avg_pool2d(x, (2, 3), (2, 1), (1, 0), True, True, 5),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, (5, 4)),
    "adaptive max pool": lambda x: F.adaptive_max_pool2d(x, (5, 4)),
    "upsampling, nearest": lambda x: F.interpolate(x, scale_factor=2),
    "upsampling, linear": lambda x: F.interpolate(x, size=(17, 19), mode="bilinear"),
    "padding": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "padding of channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, -1)),
    "padding by reflection": lambda x: F.pad(x, (1, 2, 0, 3), mode="reflect"),
    "where": lambda x: torch.where(x > 0, x, torch.tensor(0.5)),
    "clamped": lambda x: x.clamp(-0.2, 0.3),
}


@pytest.mark.parametrize("name", KEEP)
def test_values_stay_as_they_are(name: str) -> None:
    ops = steps(check(Between(KEEP[name]), images(2, 3, 12, 10)))
    assert ops.count("CONV_2D_LAST") == 5 and ops.count("CONT") == 1, ops


def test_concatenation_along_channels() -> None:
    def body(x: Any) -> Any:
        a, b = x.chunk(2, 1)
        return torch.cat([F.relu(b), x, a], 1)

    ops = steps(check(Between(body, 16), images(2, 3, 12, 10)))
    # the parts are gathered out of their gaps
    assert ops.count("CONV_2D_LAST") == 5 and ops.count("CONCAT") == 2


def test_a_sum_with_planes_is_channels_last() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, 1, 1) for _ in range(4))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + F.relu(layer(x))
            return x.mean((2, 3))

    ops = steps(check(Sum(), images(1, 8, 9, 7)))
    assert ops.count("CONT") == 1


def test_what_needs_planes_gets_them() -> None:
    def body(x: Any) -> Any:
        return F.group_norm(x, 2)

    program = check(Between(body), images(2, 3, 12, 10))
    assert steps(program).count("CONT") == 3  # the images, and around the norm

    def flat(x: Any) -> Any:
        return x.flatten(1)[:, :128].reshape(-1, 8, 4, 4)

    check(Between(flat), images(2, 3, 12, 10))
    check(Between(lambda x: x.cumsum(1).flip(1).roll(1, 3)), images(2, 3, 12, 10))
    check(Between(lambda x: F.softmax(x, 1) + x.argmax(1, True)), images(2, 3, 12, 10))
    check(Between(lambda x: F.max_pool2d(x, 2, return_indices=True)[1] * 0.01), images(1, 3, 9, 9))
    check(Between(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")), images(1, 3, 9, 9))


def test_reductions_of_all_kinds() -> None:
    def body(x: Any) -> Any:
        parts = [x.sum((1, 3)), x.amax(1).mean(1), x.var((0, 2)).mean(1, True), x.norm(dim=1)[0, 0]]
        return x * sum(p.mean() for p in parts) + (x > 0).any(1, True).float() + x.argmax(2, True)

    check(Between(body), images(2, 3, 12, 10))


# -- convolutions ----------------------------------------------------------------------------------


def pair(first: nn.Module, channels: int) -> nn.Module:
    """A convolution among others that go channels last."""
    torch.manual_seed(0)
    begin = nn.Conv2d(3, first.in_channels, 3)
    return nn.Sequential(begin, first, nn.ReLU(), nn.Conv2d(channels, 4, 1), nn.AvgPool2d(2))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 5, (3, 2), (2, 1), (1, 0), (1, 3)),
        nn.Conv2d(6, 6, 3, 2, 1, groups=6),
        nn.Conv2d(6, 6, (5, 3), 1, (2, 1), groups=6, bias=False),
        nn.Conv2d(6, 9, 1, bias=False),
        nn.Conv2d(1, 7, 3),
        nn.Conv2d(1, 1, 3, groups=1),
        nn.Conv2d(6, 5, 3, padding="same"),
        nn.ConvTranspose2d(6, 5, 2, 2),
        nn.ConvTranspose2d(6, 7, (1, 3), (1, 3), bias=False),
    ],
)
def test_kinds_of_convolutions(layer: nn.Module) -> None:
    ops = steps(check(pair(layer, layer.out_channels), images(2, 3, 14, 13)))
    assert ops.count("CONV_2D_LAST") == 3


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 9, 3, groups=3),
        nn.Conv2d(6, 12, 3, groups=6),
        nn.ConvTranspose2d(6, 5, 3, 2, 1, 1),
        nn.ConvTranspose2d(6, 6, 2, 2, groups=2),
        nn.ConvTranspose2d(6, 5, 2, 2, 1),
        nn.ConvTranspose2d(6, 5, 2, 3),
    ],
)
def test_others_stay_in_planes(layer: nn.Module) -> None:
    ops = steps(check(pair(layer, layer.out_channels), images(2, 3, 14, 13)))
    assert "CONV_ND" in ops


def test_weights_that_are_no_constants_and_half_floats() -> None:
    def dynamic(x: Any, w: Any) -> Any:
        return F.conv2d(F.relu(F.conv2d(x, w)), w).mean((2, 3))

    program = check(dynamic, images(1, 4, 9, 9), images(4, 4, 3, 3))
    assert ops_of(program.converted)["CONV_ND"] == 2
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.AvgPool2d(5)).half()
    assert ops_of(convert(layers, images(1, 3, 9, 9).half()))["CONV_ND"] == 2


def test_one_dimension_and_no_batch() -> None:
    class Sound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv1d(3, 8, 3, 2, 1), nn.Conv1d(8, 8, 3, 1, 2, 2)
            self.third = nn.Conv1d(8, 8, 5, groups=8)

        def forward(self, x: Any) -> Any:
            x = F.max_pool1d(F.gelu(self.first(x)), 2)
            return self.third(x + self.second(x)).permute(0, 2, 1)

    torch.manual_seed(0)
    ops = steps(check(Sound(), images(2, 3, 50)))
    # the result is a view of what has channels last
    assert ops.count("CONV_2D_LAST") == 3 and ops.count("CONT") == 1
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    check(layers, images(3, 12, 10))


def test_weights_are_shared_and_norms_folded() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            return (self.conv(self.conv(self.conv(x))) + self.norm(x)).mean((2, 3))

    torch.manual_seed(0)
    program = check(Twice(), images(1, 4, 8, 8))
    kernels = {t.src[1] for t in program.graph.nodes if t.op.name == "CONV_2D_LAST"}
    assert len(kernels) == 1


# -- when ------------------------------------------------------------------------------------------


def test_a_lone_convolution_stays_in_planes() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3)
    assert steps(check(conv, images(1, 3, 9, 9))) == ["CONV_ND"]
    assert "CONV_ND" in steps(check(nn.Sequential(nn.ReLU(), conv, nn.ReLU()), images(1, 3, 9, 9)))


def test_patches_are_tokens_without_a_copy() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 4, 4)

        def forward(self, x: Any) -> Any:
            return self.conv(x).flatten(2).transpose(1, 2) * 2

    torch.manual_seed(0)
    assert steps(check(Patches(), images(2, 3, 16, 12))) == ["CONT", "CONV_2D_LAST", "SCALE"]


def test_any_batch_and_size() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
            self.deep, self.last = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 8, 1)

        def forward(self, x: Any) -> Any:
            x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
            x = F.relu(x + self.last(F.relu6(self.deep(x))))
            return F.adaptive_avg_pool2d(x, 1).flatten(1)

    torch.manual_seed(0)
    module = Small().eval()
    n, h = torch.export.Dim("n", max=8), torch.export.Dim("h", min=8, max=64)
    for dims in ({0: n}, {0: n, 2: h}):
        f = weft.from_torch(module, (images(2, 3, 24, 20),), dynamic_shapes=({**dims},))
        for shape in ((2, 3, 24, 20), (5, 3, 24 if len(dims) == 1 else 47, 20)):
            torch.testing.assert_close(f(images(*shape)), module(images(*shape)))
        assert steps(f).count("CONT") == 1


# -- whole networks --------------------------------------------------------------------------------


def normed(a: int, b: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    norm = nn.BatchNorm2d(b)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return [nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=False), norm]


class Basic(nn.Module):
    """A block of a ResNet."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*normed(a, b, 3, stride), nn.ReLU(), *normed(b, b, 3))
        self.short = nn.Identity() if a == b else nn.Sequential(*normed(a, b, 1, stride))

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.short(x))


class Inverted(nn.Module):
    """A block of a MobileNetV2."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        up, deep = normed(a, 4 * a, 1), normed(4 * a, 4 * a, 3, stride, 4 * a)
        self.body = nn.Sequential(*up, nn.ReLU6(), *deep, nn.ReLU6(), *normed(4 * a, b, 1))
        self.adds = a == b and stride == 1

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.adds else self.body(x)


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def test_a_resnet_is_convolutions_and_one_copy() -> None:
    torch.manual_seed(0)
    stem = [*normed(3, 8, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [Basic(8, 8, 1), Basic(8, 16, 2), Basic(16, 16, 1)]
    program = check(nn.Sequential(*stem, *blocks, *head(16)), images(2, 3, 40, 36))
    kinds = steps(program)
    assert kinds[:3] == ["CONT", "CONV_2D_LAST", "POOL_ND"]
    assert kinds[3:-2] == ["CONV_2D_LAST"] * 7
    assert kinds[-2:] == ["REDUCE", "MUL_MAT"]


def test_a_mobilenet_is_convolutions_and_one_copy() -> None:
    torch.manual_seed(0)
    blocks = [Inverted(8, 8, 1), Inverted(8, 12, 2), Inverted(12, 12, 1)]
    layers = [*normed(3, 8, 3, 2), nn.ReLU6(), *blocks, *normed(12, 24, 1), nn.ReLU6(), *head(24)]
    program = check(nn.Sequential(*layers), images(2, 3, 40, 36))
    assert steps(program) == ["CONT", *["CONV_2D_LAST"] * 11, "REDUCE", "MUL_MAT"]
    names = {t.name for t in program.graph.nodes if t.op.name == "CONV_2D_LAST"}
    assert all(not name.startswith("node") for name in names)


class Squeezed(nn.Module):
    """An inverted residual of EfficientNet: squeeze and excitation, zeros on one side."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        wide, self.pads = 4 * a, (0, 1, 0, 1) if stride == 2 else (1, 1, 1, 1)
        self.up = nn.Sequential(*normed(a, wide, 1), nn.SiLU())
        deep = [nn.Conv2d(wide, wide, 3, stride, groups=wide, bias=False), nn.BatchNorm2d(wide)]
        self.deep = nn.Sequential(*deep, nn.SiLU())
        squeeze = [nn.Conv2d(wide, 2, 1), nn.SiLU(), nn.Conv2d(2, wide, 1), nn.Sigmoid()]
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), *squeeze)
        self.down = nn.Sequential(*normed(wide, b, 1))
        self.adds = stride == 1 and a == b

    def forward(self, x: Any) -> Any:
        y = self.deep(F.pad(self.up(x), self.pads))
        y = self.down(y * self.gate(y))
        return x + y if self.adds else y


def test_an_efficientnet_is_convolutions_and_one_copy() -> None:
    torch.manual_seed(0)
    blocks = [Squeezed(8, 12, 2), Squeezed(12, 12, 1)]
    layers = [*normed(3, 8, 3, 2), nn.SiLU(), *blocks, *normed(12, 24, 1), nn.SiLU(), *head(24)]
    program = check(nn.Sequential(*layers), images(2, 3, 40, 36))
    block = ["CONV_2D_LAST"] * 2 + ["REDUCE"] + ["CONV_2D_LAST"] * 3
    expected = ["CONT", "CONV_2D_LAST", *block, *block, "CONV_2D_LAST", "REDUCE", "MUL_MAT"]
    assert steps(program) == expected
