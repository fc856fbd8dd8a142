"""Makes files of random weights whose attention has windows or a latent, for long texts.

    python benchmarks/make_attention.py OUT.gguf --kind windows|latent [--format q4_0]

`windows` is one round of Gemma 3 1B's layers: five with a window of 512, one that sees all; 4 heads
of 256 with one of the cache. `latent` is two dense layers with the attention of DeepSeek-V2-Lite:
16 heads that share a latent of 512 and 64 rotated numbers, with queries through a rank of 768.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from make_model import FORMATS, TERNARY, matrix_type, matrix_values, vocabulary

from weft import quants
from weft.dtype import DTYPES
from weft.frontends.gguf.mixes import find_mix
from weft.frontends.gguf.writer import TensorSource, write_gguf

N_VOCAB, N_CTX = 2048, 65536
WINDOWS = {"layers": 6, "embd": 1152, "heads": 4, "head": 256, "ff": 6912, "window": 512}
LATENT = {"layers": 2, "embd": 2048, "heads": 16, "ff": 8192, "rank": 512, "q_rank": 768,
          "rotated": 64, "nope": 128, "value": 128}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=("windows", "latent"), default="windows")
    parser.add_argument("--format", choices=[f for f in FORMATS if f not in TERNARY],
                        default="q4_0")  # fmt: skip
    args = parser.parse_args()
    metadata, shapes = windows() if args.kind == "windows" else latent()
    arch = "gemma3" if args.kind == "windows" else "deepseek2"
    n_layer = (WINDOWS if args.kind == "windows" else LATENT)["layers"]
    write_gguf(
        args.out,
        {
            "general.architecture": arch,
            "general.name": f"random {arch}",
            "general.file_type": find_mix(args.format).number,
            "general.quantization_version": 2,
            **{f"{arch}.{k}": v for k, v in metadata.items()},
            **vocabulary(N_VOCAB),
        },
        list(tensors(shapes, args.format, n_layer)),
    )
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.0f} MiB")


Shapes = dict[str, tuple[int, ...]]
"""Of the tensors of a layer: columns, rows and heads; one number for a norm."""


def windows() -> tuple[dict[str, object], Shapes]:
    """The metadata and the tensors of a layer of Gemma 3."""
    s = WINDOWS
    width = s["heads"] * s["head"]
    metadata = _sizes(s) | {
        "attention.head_count_kv": 1,
        "attention.key_length": s["head"],
        "attention.value_length": s["head"],
        "attention.sliding_window": s["window"],
        "rope.freq_base": 1e6,
    }
    norms = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
    return metadata, {
        **{name: (s["embd"],) for name in norms},
        **{name: (s["head"],) for name in ("attn_q_norm", "attn_k_norm")},
        "attn_q": (s["embd"], width),
        "attn_k": (s["embd"], s["head"]),
        "attn_v": (s["embd"], s["head"]),
        "attn_output": (width, s["embd"]),
        **_feed_forward(s),
    }


def latent() -> tuple[dict[str, object], Shapes]:
    """The metadata and the tensors of a layer of DeepSeek-V2, its experts left out."""
    s = LATENT
    metadata = _sizes(s) | {
        "attention.head_count_kv": 1,
        "attention.key_length": s["rank"] + s["rotated"],
        "attention.value_length": s["rank"],
        "attention.key_length_mla": s["nope"] + s["rotated"],
        "attention.value_length_mla": s["value"],
        "attention.kv_lora_rank": s["rank"],
        "attention.q_lora_rank": s["q_rank"],
        "rope.dimension_count": s["rotated"],
        "leading_dense_block_count": s["layers"],
        "expert_feed_forward_length": s["ff"],
        "expert_shared_count": 0,
    }
    return metadata, {
        **{name: (s["embd"],) for name in ("attn_norm", "ffn_norm")},
        "attn_q_a_norm": (s["q_rank"],),
        "attn_kv_a_norm": (s["rank"],),
        "attn_q_a": (s["embd"], s["q_rank"]),
        "attn_q_b": (s["q_rank"], s["heads"] * (s["nope"] + s["rotated"])),
        "attn_kv_a_mqa": (s["embd"], s["rank"] + s["rotated"]),
        "attn_k_b": (s["nope"], s["rank"], s["heads"]),
        "attn_v_b": (s["rank"], s["value"], s["heads"]),
        "attn_output": (s["heads"] * s["value"], s["embd"]),
        **_feed_forward(s),
    }


def tensors(shapes: Shapes, format: str, n_layer: int) -> Iterator[TensorSource]:
    """All tensors of the file; the output is the embedding."""
    n_embd = shapes["attn_norm"][0]
    yield _tensor("token_embd.weight", (n_embd, N_VOCAB), format, 0, n_layer)
    for il in range(n_layer):
        for name, ne in shapes.items():
            yield _tensor(f"blk.{il}.{name}.weight", ne, format, il, n_layer)
    yield _tensor("output_norm.weight", (n_embd,), format, 0, n_layer)


def _sizes(s: dict[str, int]) -> dict[str, object]:
    return {
        "block_count": s["layers"],
        "context_length": N_CTX,
        "embedding_length": s["embd"],
        "feed_forward_length": s["ff"],
        "attention.head_count": s["heads"],
        "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": N_VOCAB,
    }


def _feed_forward(s: dict[str, int]) -> Shapes:
    up = (s["embd"], s["ff"])
    return {"ffn_gate": up, "ffn_up": up, "ffn_down": (s["ff"], s["embd"])}


def _tensor(name: str, ne: tuple[int, ...], format: str, il: int, n_layer: int) -> TensorSource:
    """A norm of ones, or a seeded matrix."""
    if len(ne) == 1:
        return (name, DTYPES["f32"], ne, np.ones(ne[0], np.float32))
    dtype = matrix_type(name, format, il, n_layer)

    def make() -> np.ndarray:
        rows = ne[1] * (ne[2] if len(ne) > 2 else 1)
        return np.concatenate(
            [quants.encode(x, dtype).reshape(-1) for x in matrix_values(name, ne[0], rows)]
        )

    return (name, dtype, ne, make)


if __name__ == "__main__":
    main()
