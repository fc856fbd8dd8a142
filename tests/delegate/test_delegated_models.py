"""Whole models through the delegate: nothing left outside, equal to eager."""

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]
programs = pytest.mark.part("programs")


class Cnn(nn.Module):
    """Convolutions with batch norm, a residual, pooling, a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.stem(x)), 2)
        x = x + F.hardswish(self.point(self.deep(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Block(nn.Module):
    """A transformer block with grouped queries, rotary positions and a gated MLP."""

    def __init__(self, dim=64, heads=4, kv_heads=2):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, dim // heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.v = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 128), nn.Linear(dim, 128)
        self.down = nn.Linear(128, dim)

    def project(self, x):
        b, t, _ = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, t, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(h).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        return q, k, v

    def finish(self, x, q, k, v, mask):
        b, t, dim = x.shape
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(h.transpose(1, 2).reshape(b, t, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, x):
        t = x.shape[1]
        q, k, v = self.project(x)
        mask = torch.full((t, t), float("-inf")).triu(1)
        return self.finish(x, q, k, v, mask)


class Cached(Block):
    """The same with a static cache that a call writes at `positions`."""

    def __init__(self, room=32):
        super().__init__()
        shape = (1, self.kv_heads, room, self.size)
        self.register_buffer("k_cache", torch.zeros(shape))
        self.register_buffer("v_cache", torch.zeros(shape))

    def forward(self, x, positions):
        q, k, v = self.project(x)
        self.k_cache[:, :, positions] = k
        self.v_cache[:, :, positions] = v
        cells = torch.arange(self.k_cache.shape[2])
        mask = torch.where(cells[None, :] <= positions[:, None], 0.0, float("-inf"))
        return self.finish(x, q, self.k_cache, self.v_cache, mask)


def test_a_cnn(lower, same):
    module = Cnn().eval()
    module.stem[1].running_mean.normal_()
    lowered = lower(module, (torch.randn(2, 3, 16, 16),))
    assert lowered.left() == [], lowered.partitioner.report()
    same(lowered.method(), module, torch.randn(2, 3, 16, 16))


def test_a_cnn_on_channels_last(lower, same):
    module = Cnn().eval()
    x = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    lowered = lower(module, (x,))
    same(lowered.method(), module, x)


@programs  # test_a_transformer_block_of_any_length has its ops
def test_a_transformer_block(lower, same):
    module = Block().eval()
    x = torch.randn(1, 12, 64)
    lowered = lower(module, (x,))
    assert lowered.left() == [], lowered.partitioner.report()
    same(lowered.method(), module, x)


def test_a_transformer_block_of_any_length(lower, same):
    module = Block().eval()
    length = Dim("length", min=2, max=40)
    lowered = lower(module, (torch.randn(1, 12, 64),), dynamic_shapes=({1: length},))
    assert lowered.left() == [], lowered.partitioner.report()
    method = lowered.method()
    for n in (12, 2, 40, 7, 40):
        same(method, module, torch.randn(1, n, 64))
    with pytest.raises(RuntimeError):
        method.execute([torch.randn(1, 41, 64)])


@programs  # a part of test_prefill_and_decode_share_weights_and_cache
def test_a_static_cache(lower, same):
    module = Cached().eval()
    inputs = (torch.randn(1, 1, 64), torch.tensor([0]))
    lowered = lower(module, inputs)
    assert lowered.left() == [], lowered.partitioner.report()
    module.k_cache.zero_()
    module.v_cache.zero_()
    method = lowered.method()
    for position in range(10):
        same(method, module, torch.randn(1, 1, 64), torch.tensor([position]))


def test_prefill_and_decode_share_weights_and_cache(lower, same):
    from weft_executorch import Options

    module = Cached().eval()
    prompt = (torch.randn(1, 8, 64), torch.arange(8))
    token = (torch.randn(1, 1, 64), torch.tensor([8]))
    modules, inputs = {"prefill": module, "decode": module}, {"prefill": prompt, "decode": token}
    lowered = lower(modules, inputs, Options(share_state=True))
    assert lowered.left("prefill") == lowered.left("decode") == []
    alone = lower({"decode": module}, {"decode": token}, Options(share_state=True))
    n_weights = sum(p.numel() * 4 for p in module.parameters())
    assert len(lowered.pte) - len(alone.pte) < n_weights // 4
    module.k_cache.zero_()
    module.v_cache.zero_()
    program = lowered.program()
    prefill, decode = program.load_method("prefill"), program.load_method("decode")
    same(prefill, module, *prompt)
    for position in range(8, 14):
        same(decode, module, torch.randn(1, 1, 64), torch.tensor([position]))
