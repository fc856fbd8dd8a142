"""Makes a model file of random weights to measure speed with.

    python benchmarks/make_model.py OUT.gguf --format q4_K_M [--shape 1b]
    python benchmarks/make_model.py OUT.gguf --format q4_0 --n-layer 4 --n-expert 8
    python benchmarks/make_model.py OUT.gguf --n-expert 64 --n-expert-used 8 --expert-skew 1.5

The default shape is that of Llama-3.2-1B with a vocabulary of 32,000: 2048 wide, 16 layers, 32
heads, 8 of the cache, 8192 feed-forward, output not tied to the embedding; any of its numbers can
be given instead. Weights are normal with a deviation of 0.02, or their signs for ternary formats;
they are seeded, so that all files of a shape hold the same model, and quantized by weft; codebook
types (iq1 to iq3) are random bytes with one scale. One matrix is in memory at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from weft import quants
from weft.dtype import DTYPES, DType
from weft.errors import WeftError
from weft.frontends.gguf.mixes import find_mix
from weft.frontends.gguf.writer import TensorSource, lay_out, write_gguf

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K",
           "q4_K_M", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "mxfp4", "tq1_0", "tq2_0",
           "i2_s", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")  # fmt: skip
CODEBOOK = {"iq1_s": 24, "iq1_m": 31, "iq2_xxs": 19, "iq2_xs": 20, "iq2_s": 28, "iq3_xxs": 23,
            "iq3_s": 26}  # fmt: skip
"""Types that weft does not write, with the numbers of their files' mixtures."""
TERNARY = ("tq1_0", "tq2_0", "i2_s")


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama model."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_vocab: int = 32000
    n_ctx: int = 4096
    n_expert: int = 0
    n_expert_used: int = 2
    expert_skew: float = 0.0
    """Deviation of the biases of a router: 0 chooses experts nearly evenly, 1 and more let some
    lead."""

    def __post_init__(self) -> None:
        """Says what cannot be, with the option that would change it."""
        if min(self.n_embd, self.n_layer, self.n_head, self.n_head_kv, self.n_ff, self.n_ctx) < 1:
            raise ValueError("sizes must be 1 or more")
        if self.n_embd % (2 * self.n_head) or self.n_head % self.n_head_kv:
            raise ValueError(
                f"--n-head {self.n_head} and --n-head-kv {self.n_head_kv}: heads must share "
                f"--n-embd {self.n_embd} in even parts, and be a multiple of the cache's heads"
            )
        if self.n_vocab < 259:
            raise ValueError(f"--n-vocab is {self.n_vocab}; it must be 259 or more (bytes)")
        if self.n_expert and not 1 <= self.n_expert_used <= self.n_expert:
            raise ValueError(f"--n-expert-used must be 1 to {self.n_expert}")

    @property
    def n_embd_kv(self) -> int:
        """Width of the keys of a token."""
        return self.n_embd // self.n_head * self.n_head_kv

    @property
    def label(self) -> str:
        """The preset's name, or the numbers."""
        for name, preset in SHAPES.items():
            if preset == self:
                return name
        experts = f"-{self.n_expert}x{self.n_expert_used}" if self.n_expert else ""
        heads = f"{self.n_head}-{self.n_head_kv}"
        sizes = f"{self.n_embd}-{self.n_layer}-{heads}-{self.n_ff}-{self.n_vocab}"
        skew = f"-skew{self.expert_skew:g}" if self.expert_skew else ""
        return sizes + (f"-{self.n_ctx}" if self.n_ctx != 4096 else "") + experts + skew


SHAPES = {
    "1b": Shape(2048, 16, 32, 8, 8192),
    "300m": Shape(1024, 12, 16, 4, 4096),
    "3b": Shape(3072, 28, 24, 8, 8192),
    "8b": Shape(4096, 32, 32, 8, 14336),
    "moe": Shape(1024, 12, 16, 4, 1792, n_expert=8, n_expert_used=2),
    "tiny": Shape(256, 2, 4, 2, 768, 1000, 1024),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=FORMATS, default="q4_0")
    add_shape_options(parser)
    args = parser.parse_args()
    start = perf_counter()
    try:
        make_model(args.out, args.format, shape_of(args))
    except (ValueError, WeftError) as e:
        sys.exit(f"make_model: {e}")
    size = args.out.stat().st_size / 2**20
    print(f"{args.out}: {size:.0f} MiB in {perf_counter() - start:.1f} s")


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """`--shape`, and an option for each of its numbers."""
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    for field in fields(Shape):
        kind = float if field.name == "expert_skew" else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, metavar="N")


def shape_of(args: argparse.Namespace) -> Shape:
    """The preset, with the numbers that were given. Raises ValueError for what cannot be."""
    values = {field.name: getattr(args, field.name) for field in fields(Shape)}
    return replace(SHAPES[args.shape], **{k: v for k, v in values.items() if v is not None})


def make_model(path: Path, format: str, shape: Shape) -> None:
    """Writes the model with its matrices as `format`. Raises ValueError where rows of the shape
    are not whole blocks of a type."""
    write_gguf(path, _metadata(shape, format), list(_tensors(shape, format)))


def head_of(path: Path, format: str, shape: Shape) -> bytes:
    """The beginning of such a file, without vocabulary and weights, which is enough for a plan.

    Raises ValueError as `make_model` does."""
    metadata = {k: v for k, v in _metadata(shape, format).items() if not k.startswith("tokenizer.")}
    return lay_out(path, metadata, _tensors(shape, format)).head


def matrix_type(name: str, format: str, il: int, n_layer: int) -> DType:
    """The type of one matrix, as llama-quantize chooses.

    The output has at least q6_K. `q4_K_M` is the mixture of that name: q6_K for attn_v and ffn_down
    in the first and last eighth of the layers and in every third between, q4_K else. The other
    formats are uniform. Ternary ones keep an f16 embedding, as converted models have it, and
    codebook types have one of q4_K."""
    if name == "token_embd.weight" and format in (*TERNARY, *CODEBOOK):
        return DTYPES["f16" if format in TERNARY else "q4_K"]
    base = DTYPES["q4_K" if format == "q4_K_M" else format]
    if name == "output.weight":
        return base if base.bits_per_weight >= 6.5 else DTYPES["q6_K"]
    if format == "q4_K_M" and ("attn_v" in name or "ffn_down" in name):
        first = n_layer // 8
        if il < first or il >= 7 * n_layer // 8 or (il - first) % 3 == 2:
            return DTYPES["q6_K"]
    return base


def _metadata(s: Shape, format: str) -> dict[str, object]:
    experts = {"llama.expert_count": s.n_expert, "llama.expert_used_count": s.n_expert_used}
    return {
        "general.architecture": "llama",
        "general.name": f"random {s.label}",
        "general.file_type": CODEBOOK.get(format) or find_mix(format).number,
        "general.quantization_version": 2,
        "llama.block_count": s.n_layer,
        "llama.context_length": s.n_ctx,
        "llama.embedding_length": s.n_embd,
        "llama.feed_forward_length": s.n_ff,
        "llama.attention.head_count": s.n_head,
        "llama.attention.head_count_kv": s.n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": s.n_embd // s.n_head,
        "llama.rope.freq_base": 500000.0,
        "llama.vocab_size": s.n_vocab,
        **(experts if s.n_expert else {}),
        **vocabulary(s.n_vocab),
    }


def vocabulary(n_vocab: int) -> dict[str, object]:
    """Metadata of so many tokens: bytes, and words with a number."""
    pieces = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]
    pieces += [f"\N{LOWER ONE EIGHTH BLOCK}w{i}".encode() for i in range(n_vocab - len(pieces))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (n_vocab - 259)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.arange(0, -n_vocab, -1, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _tensors(s: Shape, format: str) -> Iterator[TensorSource]:
    def matrix(name: str, n_in: int, n_out: int, il: int = 0, n_expert: int = 0) -> TensorSource:
        dtype = matrix_type(name, format, il, s.n_layer)
        return _matrix(name, (n_in, n_out, n_expert), dtype, format in TERNARY)

    yield matrix("token_embd.weight", s.n_embd, s.n_vocab)
    for il in range(s.n_layer):
        blk = f"blk.{il}"
        yield _norm(f"{blk}.attn_norm.weight", s.n_embd)
        yield _norm(f"{blk}.ffn_norm.weight", s.n_embd)
        yield matrix(f"{blk}.attn_q.weight", s.n_embd, s.n_embd, il)
        yield matrix(f"{blk}.attn_k.weight", s.n_embd, s.n_embd_kv, il)
        yield matrix(f"{blk}.attn_v.weight", s.n_embd, s.n_embd_kv, il)
        yield matrix(f"{blk}.attn_output.weight", s.n_embd, s.n_embd, il)
        exps = "_exps" if s.n_expert else ""
        if s.n_expert:
            router = (s.n_embd, s.n_expert, 0)
            yield _matrix(f"{blk}.ffn_gate_inp.weight", router, DTYPES["f32"], False)
            if s.expert_skew:
                yield _leading(f"{blk}.ffn_gate_inp.bias", s.n_expert, s.expert_skew)
        yield matrix(f"{blk}.ffn_gate{exps}.weight", s.n_embd, s.n_ff, il, s.n_expert)
        yield matrix(f"{blk}.ffn_up{exps}.weight", s.n_embd, s.n_ff, il, s.n_expert)
        yield matrix(f"{blk}.ffn_down{exps}.weight", s.n_ff, s.n_embd, il, s.n_expert)
    yield _norm("output_norm.weight", s.n_embd)
    yield matrix("output.weight", s.n_embd, s.n_vocab)


def _matrix(name: str, ne: tuple[int, int, int], dtype: DType, ternary: bool) -> TensorSource:
    """A matrix of `ne` columns, rows and experts (0: no experts)."""
    n_in, n_out, n_expert = ne
    if n_in % dtype.block:
        raise ValueError(
            f"{name} has rows of {n_in}, which are not whole blocks of {dtype.name} "
            f"({dtype.block}); choose another width or format"
        )

    def make() -> np.ndarray:
        if dtype.name in CODEBOOK:
            return codebook_blocks(name, dtype, n_in * n_out * max(1, n_expert) // dtype.block)
        parts = matrix_values(name, n_in, n_out * max(1, n_expert), ternary and name[:4] == "blk.")
        if dtype.name == "i2_s":  # one scale for the whole tensor
            return quants.encode_i2_s(np.concatenate(list(parts)).reshape(-1))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            encoded = pool.map(lambda x: quants.encode(x, dtype).reshape(-1), parts)
            return np.concatenate(list(encoded))

    return (name, dtype, ne if n_expert else ne[:2], make)


def matrix_values(name: str, n_in: int, n_out: int, ternary: bool = False) -> Iterator[np.ndarray]:
    """The rows of a matrix as float32, some at a time. About half of ternary ones are zero."""
    rng = np.random.default_rng(list(name.encode()))
    step = max(1, (1 << 22) // n_in)
    for start in range(0, n_out, step):
        x = rng.standard_normal((min(step, n_out - start), n_in), np.float32) * np.float32(0.02)
        yield np.sign(np.round(x * 33)) * np.float32(0.02) if ternary else x


def codebook_blocks(name: str, dtype: DType, n: int) -> np.ndarray:
    """Blocks of random codes whose weights have a deviation of some 0.02."""
    levels = {"iq1": 6.0, "iq2": 58.0, "iq3_xxs": 150.0, "iq3_s": 147.0}  # of weights, by d
    level = levels.get(dtype.name, levels.get(dtype.name[:3], 1.0))
    d = np.float16(0.02 / level).view(np.uint16)
    blocks = np.random.default_rng(list(name.encode())).integers(0, 256, (n, dtype.bytes), np.uint8)
    if dtype.name == "iq1_m":  # the highest 4 bits of four words
        for i in range(4):
            blocks[:, i * 2 - 7] = blocks[:, i * 2 - 7] & 15 | (int(d) >> 4 * i & 15) << 4
    else:
        blocks[:, :2] = np.frombuffer(d.tobytes(), np.uint8)
    return blocks.reshape(-1)


def _leading(name: str, n: int, deviation: float) -> TensorSource:
    """Biases of a router, so that it prefers some experts, others in each layer."""
    rng = np.random.default_rng(list(name.encode()))
    return (name, DTYPES["f32"], (n,), (deviation * rng.standard_normal(n)).astype(np.float32))


def _norm(name: str, n: int) -> TensorSource:
    return (name, DTYPES["f32"], (n,), np.ones(n, np.float32))


if __name__ == "__main__":
    main()
