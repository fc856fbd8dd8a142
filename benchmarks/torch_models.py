"""`weft.from_torch` against eager PyTorch and inductor, on models of transformers.

    python benchmarks/torch_models.py [--only vit,swin] [--rounds 5] [--no-inductor]

Weights are random, so nothing is downloaded. One thread; the engines take turns, an untimed call
each, then rounds of as many calls as fit in 0.3 s. Times are those of the processor, so that other
programs on the machine count little. A ratio above 1 means that weft is faster. `apart` is the
largest difference from eager's result, in parts of its largest number. Needs torch, transformers
and, for inductor, a C++ compiler.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
import transformers as tf  # noqa: E402

import weft  # noqa: E402
from weft.backends import make_backend  # noqa: E402

Made = tuple[torch.nn.Module, torch.Tensor]
TEXT = {"vocab_size": 2000, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}


class First(torch.nn.Module):
    """The first result of a model of transformers, for its first argument."""

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, return_dict=False, **self.options)[0]


def image(n: int = 224) -> torch.Tensor:
    return torch.randn(1, 3, n, n)


def words(n: int = 128) -> torch.Tensor:
    return torch.randint(0, 2000, (1, n))


MODELS: dict[str, Callable[[], Made]] = {
    "resnet18": lambda: (
        First(tf.ResNetModel(tf.ResNetConfig(
            embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
            layer_type="basic"))), image()),
    "mobilenet_v2": lambda: (First(tf.MobileNetV2Model(tf.MobileNetV2Config())), image()),
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
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-inductor", action="store_true")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--only has {', '.join(unknown)}; choose from {', '.join(MODELS)}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| model | weft ms | eager ms | inductor ms | eager/weft | inductor/weft | apart |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        print(row(name, args.rounds, not args.no_inductor), flush=True)


def row(name: str, rounds: int, inductor: bool) -> str:
    module, x = MODELS[name]()
    module.eval()
    engines: dict[str, Callable[[torch.Tensor], Any]] = {"eager": module}
    try:
        engines["weft"] = weft.from_torch(module, (x,), devices=[make_backend("cpu", n_threads=1)])
    except Exception as e:
        return f"| {name} | {type(e).__name__}: {str(e)[:80]} |"
    if inductor:
        engines["inductor"] = torch.compile(module)
    with torch.no_grad():
        for key in list(engines):
            try:
                engines[key](x)
            except Exception as e:
                print(f"{name}: {key} failed: {str(e)[:200]}", file=sys.stderr)
                del engines[key]
        expected, got = (torch.as_tensor(engines[key](x)) for key in ("eager", "weft"))
        apart = float((expected - got).abs().max() / expected.abs().max())
        times = timed(engines, x, rounds)
    ms = [
        f"{times[key] * 1e3:.2f}" if key in times else "-" for key in ("weft", "eager", "inductor")
    ]
    ratios = [f"{times[key] / times['weft']:.2f}x" if key in times else "-"
              for key in ("eager", "inductor")]  # fmt: skip
    return f"| {name} | {' | '.join([*ms, *ratios])} | {apart:.1e} |"


def timed(engines: dict[str, Callable[..., Any]], x: torch.Tensor, rounds: int) -> dict[str, float]:
    """Median seconds of the processor for a call of each engine."""
    samples: dict[str, list[float]] = {key: [] for key in engines}
    for number in range(rounds):
        for key in list(engines)[:: -1 if number % 2 else 1]:
            engines[key](x)
            samples[key].append(statistics.mean(calls(engines[key], x)))
    return {key: statistics.median(values) for key, values in samples.items()}


def calls(run: Callable[..., Any], x: torch.Tensor, seconds: float = 0.3) -> Iterator[float]:
    end = time.process_time() + seconds
    while (start := time.process_time()) < end:
        run(x)
        yield time.process_time() - start


if __name__ == "__main__":
    main()
