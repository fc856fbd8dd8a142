"""The demo model as a GGUF file: how it is written, and a forward pass in NumPy to check it by.

The forward pass reads nothing but the file, so it is a second opinion on the model in torch. It is
also the shortest account of the architecture: a Llama with grouped keys and values.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from demo_tokenizer import BOS, EOS, FIRST_PIECE, UNK, Tokenizer
from numpy.typing import NDArray

Array = NDArray[np.float32]
# Token ids [B, T] to logits [B, T, n_vocab].
Forward = Callable[[NDArray[np.int64]], Array]


class Config(NamedTuple):
    """Sizes of the model. Every row is a multiple of 32, the block of Q8_0."""

    n_vocab: int
    n_ctx: int = 256
    n_embd: int = 128
    n_layer: int = 5
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 384
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head


def write(path: Path, cfg: Config, tok: Tokenizer, tensors: Mapping[str, Array]) -> None:
    """Write matrices as Q8_0 and norms as F32; the embedding serves as the output matrix too."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("weft demo")
    w.add_author("The weft authors")
    w.add_license("MIT")
    w.add_description("Answers ten kinds of small question; made by weft's examples/train_demo.py")
    w.add_languages(["en"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_context_length(cfg.n_ctx)
    w.add_embedding_length(cfg.n_embd)
    w.add_block_count(cfg.n_layer)
    w.add_feed_forward_length(cfg.n_ff)
    w.add_head_count(cfg.n_head)
    w.add_head_count_kv(cfg.n_head_kv)
    w.add_layer_norm_rms_eps(cfg.norm_eps)
    w.add_rope_dimension_count(cfg.head_dim)
    w.add_rope_freq_base(cfg.rope_base)
    w.add_vocab_size(cfg.n_vocab)
    kind = gguf.TokenType
    types = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tok.tokens)
    w.add_token_scores(tok.scores)
    w.add_token_types(types + [kind.NORMAL] * (cfg.n_vocab - FIRST_PIECE))
    w.add_unk_token_id(UNK)
    w.add_bos_token_id(BOS)
    w.add_eos_token_id(EOS)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    # A line starts with the same tokens at the start of a text as after a newline.
    w.add_add_space_prefix(False)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for name, data in tensors.items():
        if data.ndim == 2:
            w.add_tensor(name, gguf.quants.quantize(data, q8_0), raw_dtype=q8_0)
        else:
            w.add_tensor(name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def load(path: Path) -> tuple[Tokenizer, Forward]:
    """The tokenizer and the forward pass of a file that `write` made."""
    reader = gguf.GGUFReader(path)

    def value(key: str) -> Any:
        field = reader.get_field(key)
        if field is None:
            raise SystemExit(f"{path}: no metadata key {key}")
        return field.contents()

    t: dict[str, Array] = {
        x.name: gguf.quants.dequantize(x.data, x.tensor_type) for x in reader.tensors
    }
    n_head, n_head_kv = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    head_dim = value("llama.rope.dimension_count")
    eps = value("llama.attention.layer_norm_rms_epsilon")
    base = value("llama.rope.freq_base")

    def norm(x: Array, weight: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * t[weight]

    def heads(y: Array, n: int) -> Array:  # [B, T, n * head_dim] -> [B, n_head, T, head_dim]
        y = y.reshape(*y.shape[:2], n, head_dim).transpose(0, 2, 1, 3)
        return y.repeat(n_head // n, axis=1)

    def rotate(x: Array) -> Array:
        # A pair (even, odd) as one complex number, turned by an angle that grows with position.
        angle = np.outer(np.arange(x.shape[2]), base ** (-np.arange(0, head_dim, 2) / head_dim))
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
        return np.stack((z.real, z.imag), -1).reshape(x.shape).astype(np.float32)

    def forward(ids: NDArray[np.int64]) -> Array:
        x = t["token_embd.weight"][ids]
        future = np.triu(np.full((ids.shape[1], ids.shape[1]), -np.inf, np.float32), 1)
        for i in range(value("llama.block_count")):
            b = f"blk.{i}."
            y = norm(x, b + "attn_norm.weight")
            q = rotate(heads(y @ t[b + "attn_q.weight"].T, n_head))
            k = rotate(heads(y @ t[b + "attn_k.weight"].T, n_head_kv))
            v = heads(y @ t[b + "attn_v.weight"].T, n_head_kv)
            scores = q @ k.swapaxes(2, 3) / np.float32(head_dim**0.5) + future
            p = np.exp(scores - scores.max(-1, keepdims=True))
            a = (p / p.sum(-1, keepdims=True)) @ v
            x = x + a.transpose(0, 2, 1, 3).reshape(x.shape) @ t[b + "attn_output.weight"].T
            y = norm(x, b + "ffn_norm.weight")
            gate = y @ t[b + "ffn_gate.weight"].T
            h = gate / (1 + np.exp(-gate)) * (y @ t[b + "ffn_up.weight"].T)
            x = x + h @ t[b + "ffn_down.weight"].T
        return norm(x, "output_norm.weight") @ t["token_embd.weight"].T

    return Tokenizer(value("tokenizer.ggml.tokens")[FIRST_PIECE:]), forward
