"""Makes a Mamba file of random weights to measure recurrent models with.

    python benchmarks/make_mamba.py OUT.gguf --format q8_0

The shape is that of mamba-130m (768 wide, 24 layers, 16 states) with a vocabulary of 32,000.
Weights are seeded and normal; decays are those that Mamba starts training with.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from make_model import FORMATS, SHAPES, TERNARY, matrix_type, matrix_values, vocabulary

from weft import quants
from weft.dtype import DTYPES
from weft.frontends.gguf.mixes import find_mix
from weft.frontends.gguf.writer import TensorSource, write_gguf

N_EMBD, N_LAYER, N_VOCAB = 768, 24, SHAPES["1b"].n_vocab
D_INNER, D_STATE, D_CONV, DT_RANK = 2 * N_EMBD, 16, 4, 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=[f for f in FORMATS if f not in TERNARY],
                        default="q8_0")  # fmt: skip
    args = parser.parse_args()
    write_gguf(args.out, metadata(args.format), list(tensors(args.format)))
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.0f} MiB")


def metadata(format: str) -> dict[str, object]:
    return {
        "general.architecture": "mamba",
        "general.name": "random mamba-130m",
        "general.file_type": find_mix(format).number,
        "general.quantization_version": 2,
        "mamba.block_count": N_LAYER,
        "mamba.context_length": 1 << 20,
        "mamba.embedding_length": N_EMBD,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": D_CONV,
        "mamba.ssm.inner_size": D_INNER,
        "mamba.ssm.state_size": D_STATE,
        "mamba.ssm.time_step_rank": DT_RANK,
        **vocabulary(N_VOCAB),
    }


def tensors(format: str) -> Iterator[TensorSource]:
    def matrix(name: str, n_in: int, n_out: int, il: int = 0) -> TensorSource:
        dtype = matrix_type(name, format, il, N_LAYER)

        def make() -> np.ndarray:
            rows = np.concatenate(list(matrix_values(name, n_in, n_out)))
            return quants.encode(rows, dtype).reshape(-1)

        return name, dtype, (n_in, n_out), make

    def floats(name: str, values: np.ndarray) -> TensorSource:
        return name, DTYPES["f32"], values.shape[::-1], values.astype(np.float32)

    yield matrix("token_embd.weight", N_EMBD, N_VOCAB)
    for il in range(N_LAYER):
        b, rng = f"blk.{il}", np.random.default_rng(il)
        rate = -np.arange(1, D_STATE + 1) * np.ones((D_INNER, 1))
        # steps of 0.001 to 0.1, behind a softplus
        step = np.exp(rng.uniform(math.log(1e-3), math.log(1e-1), D_INNER))
        yield floats(f"{b}.attn_norm.weight", np.ones(N_EMBD))
        yield matrix(f"{b}.ssm_in.weight", N_EMBD, 2 * D_INNER, il)
        yield floats(f"{b}.ssm_conv1d.weight", rng.standard_normal((D_INNER, D_CONV)) / 2)
        yield floats(f"{b}.ssm_conv1d.bias", np.zeros(D_INNER))
        x = rng.standard_normal((DT_RANK + 2 * D_STATE, D_INNER)) / math.sqrt(D_INNER)
        yield floats(f"{b}.ssm_x.weight", x)
        yield floats(f"{b}.ssm_dt.weight", rng.standard_normal((D_INNER, DT_RANK)) / 50)
        yield floats(f"{b}.ssm_dt.bias", np.log(np.expm1(step)))
        yield floats(f"{b}.ssm_a", rate)
        yield floats(f"{b}.ssm_d", np.ones(D_INNER))
        yield matrix(f"{b}.ssm_out.weight", D_INNER, N_EMBD, il)
    yield floats("output_norm.weight", np.ones(N_EMBD))
    yield matrix("output.weight", N_EMBD, N_VOCAB)


if __name__ == "__main__":
    main()
