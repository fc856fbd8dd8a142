"""Writes the beginning of a model file: metadata and the list of tensors, without any weight.

    python examples/machines/make_head.py

`weft explain` needs no more than that to plan. What is written is Llama 3 70B as llama-quantize's
Q4_K_M, with the sizes that its config.json has and without a vocabulary. Of a file that you can
download, the first megabytes do as well: `curl -L -r 0-20000000 -o head.gguf URL`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from weft.dtype import find_dtype
from weft.frontends.gguf.filemap import BytesMap
from weft.frontends.gguf.format import tensor_bytes
from weft.frontends.gguf.mixes import find_mix, mix_types
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import lay_out

OUT = Path(__file__).parent / "llama-3-70b.head.gguf"
MIX = "Q4_K_M"

N_EMBD, N_LAYER, N_HEAD, N_HEAD_KV, N_FF, N_VOCAB = 8192, 80, 64, 8, 28672, 128256
METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "Llama 3 70B, sizes only",
    "general.file_type": find_mix(MIX).number,
    "general.quantization_version": 2,
    "llama.block_count": N_LAYER,
    "llama.context_length": 8192,
    "llama.embedding_length": N_EMBD,
    "llama.feed_forward_length": N_FF,
    "llama.attention.head_count": N_HEAD,
    "llama.attention.head_count_kv": N_HEAD_KV,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": N_EMBD // N_HEAD,
    "llama.rope.freq_base": 500000.0,
    "llama.vocab_size": N_VOCAB,
}


def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes, innermost first."""
    n_kv = N_EMBD // N_HEAD * N_HEAD_KV
    yield "token_embd.weight", (N_EMBD, N_VOCAB)
    for il in range(N_LAYER):
        for name, ne in (
            ("attn_norm", (N_EMBD,)),
            ("attn_q", (N_EMBD, N_EMBD)),
            ("attn_k", (N_EMBD, n_kv)),
            ("attn_v", (N_EMBD, n_kv)),
            ("attn_output", (N_EMBD, N_EMBD)),
            ("ffn_norm", (N_EMBD,)),
            ("ffn_gate", (N_EMBD, N_FF)),
            ("ffn_up", (N_EMBD, N_FF)),
            ("ffn_down", (N_FF, N_EMBD)),
        ):
            yield f"blk.{il}.{name}.weight", ne
    yield "output_norm.weight", (N_EMBD,)
    yield "output.weight", (N_EMBD, N_VOCAB)


def main() -> None:
    infos = [_info(name, ne) for name, ne in tensors()]
    types = mix_types(infos, METADATA, find_mix(MIX))
    rows = [(t.name, types[t.name], t.ne[: t.n_dims], b"") for t in infos]
    layout = lay_out(OUT, METADATA, rows)
    OUT.write_bytes(layout.head)
    print(f"{OUT.name}: {len(layout.head)} bytes of a file of {layout.size}")


def _info(name: str, ne: tuple[int, ...]) -> TensorInfo:
    """A tensor as a converter writes it: norms in f32, matrices in f16."""
    dtype = find_dtype("f32" if len(ne) == 1 else "f16")
    four = (*ne, *[1] * (4 - len(ne)))
    file = BytesMap(OUT, b"")
    return TensorInfo(name, dtype, four, len(ne), 0, tensor_bytes(dtype, ne), file)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
