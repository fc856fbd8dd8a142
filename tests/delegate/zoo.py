"""Small models with random weights, for whole-model tests: name -> (module, inputs)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["ZOO", "Generator", "tiny_llama", "tiny_qwen3"]

Made = tuple[nn.Module, tuple[Any, ...]]

_TEXT = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, max_position_embeddings=64)  # fmt: skip


def _transformers() -> Any:
    with warnings.catch_warnings():  # theirs, not ours
        warnings.simplefilter("ignore")
        import transformers
    return transformers


class _One(nn.Module):
    """A model of `transformers` by one of its arguments, tensors out."""

    def __init__(self, model: nn.Module, argument: str, *results: str) -> None:
        super().__init__()
        self.model, self.argument, self.results = model, argument, results

    def forward(self, x: Any) -> Any:
        """The results that the model was made for."""
        out = self.model(**{self.argument: x})
        outputs = tuple(out[name] for name in self.results)
        return outputs if len(outputs) > 1 else outputs[0]


def tiny_llama(**changes: Any) -> nn.Module:
    """Grouped queries, rotary positions, a gated MLP."""
    t = _transformers()
    torch.manual_seed(1)
    config = t.LlamaConfig(**_TEXT | {"num_key_value_heads": 2, "use_cache": False} | changes)
    return t.LlamaForCausalLM(config).eval()


def tiny_qwen3(**changes: Any) -> nn.Module:
    """The same with norms of queries and keys and heads wider than the model's share; weights so
    large that greedy texts vary."""
    t = _transformers()
    torch.manual_seed(2)
    own = {"num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.3}
    config = t.Qwen3Config(**_TEXT | own | {"use_cache": False} | changes)
    return t.Qwen3ForCausalLM(config).eval()


class Generator(nn.Module):
    """A causal model with a static KV cache in buffers of its own: token ids [1, n] at positions
    [n] to logits [1, n, vocabulary]."""

    def __init__(self, model: nn.Module, room: int = 32) -> None:
        super().__init__()
        _transformers()
        from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

        model.config._attn_implementation = "sdpa"
        model.generation_config.use_cache = True
        model.generation_config.cache_implementation = "static"
        model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": room}
        self.cached = TorchExportableModuleWithStaticCache(
            model, batch_size=1, max_cache_len=room, device=torch.device("cpu")
        )

    def forward(self, tokens: Any, positions: Any) -> Any:
        """Writes the cache at the positions."""
        for i, layer in enumerate(self.cached.static_cache.layers):
            # an export that is not strict knows tensors as buffers only through the module
            layer.keys = getattr(self.cached, f"key_cache_{i}")
            layer.values = getattr(self.cached, f"value_cache_{i}")
            layer.cumulative_length = getattr(self.cached, f"cumulative_length_{i}")
        return self.cached(input_ids=tokens, cache_position=positions)


def _llama() -> Made:
    return _One(tiny_llama(), "input_ids", "logits"), (torch.randint(0, 96, (1, 7)),)


def _bert() -> Made:
    t = _transformers()
    model = t.BertModel(t.BertConfig(**_TEXT)).eval()
    one = _One(model, "input_ids", "last_hidden_state", "pooler_output")
    return one, (torch.randint(0, 96, (2, 9)),)


def _vit() -> Made:
    t = _transformers()
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    config = t.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5)
    one = _One(t.ViTForImageClassification(config).eval(), "pixel_values", "logits")
    return one, (torch.randn(2, 3, 32, 32),)


def _whisper() -> Made:
    t = _transformers()
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    # whisper-tiny's six heads of 64 and 80 mels; two layers and 2 s of sound instead of 30
    config = t.WhisperConfig(
        d_model=384, encoder_layers=2, encoder_attention_heads=6, encoder_ffn_dim=512,
        max_source_positions=100, num_mel_bins=80,
    )  # fmt: skip
    one = _One(WhisperEncoder(config).eval(), "input_features", "last_hidden_state")
    return one, (torch.randn(1, 80, 200),)


class _Residual(nn.Module):
    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(n, m, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(m)
        self.second = nn.Conv2d(m, m, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(m)
        self.short: nn.Module = nn.Identity()
        if n != m:
            self.short = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))

    def forward(self, x: Any) -> Any:
        h = F.relu(self.norm1(self.first(x)), inplace=True)
        return F.relu(self.norm2(self.second(h)) + self.short(x))


class _Inverted(nn.Module):
    def __init__(self, n: int, m: int, stride: int, wider: int = 4) -> None:
        super().__init__()
        k = n * wider
        self.body = nn.Sequential(
            nn.Conv2d(n, k, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU6(inplace=True),
            nn.Conv2d(k, k, 3, stride, 1, groups=k, bias=False), nn.BatchNorm2d(k),
            nn.ReLU6(inplace=True), nn.Conv2d(k, m, 1, bias=False), nn.BatchNorm2d(m),
        )  # fmt: skip
        self.keeps = n == m and stride == 1

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.keeps else self.body(x)


def _lively(module: nn.Module) -> nn.Module:
    """Batch norms with statistics that are not those of a new module."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, 0, 0.2)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias, 0, 0.2)
    return module.eval()


def _resnet() -> Made:
    """A ResNet: a strided stem, residual blocks of which some halve the picture."""
    stem = (nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(True))
    body = (_Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    net = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *body, *head)
    return _lively(net), (torch.randn(2, 3, 64, 64),)


def _mobilenet() -> Made:
    """A MobileNetV2: inverted residuals around depthwise convolutions."""
    stem = (nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(True))
    body = (_Inverted(16, 24, 2), _Inverted(24, 24, 1), _Inverted(24, 32, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 10))
    return _lively(nn.Sequential(*stem, *body, *head)), (torch.randn(2, 3, 48, 48),)


ZOO: dict[str, Callable[[], Made]] = {
    "llama": _llama,
    "bert": _bert,
    "vit": _vit,
    "whisper encoder": _whisper,
    "resnet": _resnet,
    "mobilenet": _mobilenet,
}
