"""Train the demo model: a small Llama that answers ten kinds of question, written as GGUF.

    python examples/train_demo.py                 # train, then write examples/weft-demo.gguf
    python examples/train_demo.py --check         # accuracy of the file, by NumPy alone

Needs torch, numpy and gguf. The text comes from demo_questions.py, the vocabulary from
demo_tokenizer.py; nothing is downloaded. The same seed, thread count and torch version give the
same file.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo_questions
import demo_tokenizer
import gguf
import numpy as np
import torch
import torch.nn.functional as F
from demo_tokenizer import BOS, EOS, FIRST_PIECE, UNK, Tokenizer
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float32]
# Token ids [B, T] to logits [B, T, n_vocab].
Forward = Callable[[NDArray[np.int64]], Array]


@dataclass(frozen=True)
class Config:
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


# --- the model in torch -----------------------------------------------------------------------


def rope_table(cfg: Config) -> tuple[Array, Array]:
    """Cosines and sines [n_ctx, head_dim / 2] of the angles pos * base^(-2i / head_dim)."""
    inv_freq = cfg.rope_base ** (-np.arange(0, cfg.head_dim, 2) / cfg.head_dim)
    angle = np.outer(np.arange(cfg.n_ctx), inv_freq)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent pairs of `x` [..., T, head_dim]: the order that GGUF's "llama" expects."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """Attention with grouped keys and values, then SwiGLU; names are the GGUF tensor names."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        kv = cfg.n_head_kv * cfg.head_dim
        self.attn_norm = nn.RMSNorm(cfg.n_embd, eps=cfg.norm_eps)
        self.attn_q = nn.Linear(cfg.n_embd, cfg.n_embd, bias=False)
        self.attn_k = nn.Linear(cfg.n_embd, kv, bias=False)
        self.attn_v = nn.Linear(cfg.n_embd, kv, bias=False)
        self.attn_output = nn.Linear(cfg.n_embd, cfg.n_embd, bias=False)
        self.ffn_norm = nn.RMSNorm(cfg.n_embd, eps=cfg.norm_eps)
        self.ffn_gate = nn.Linear(cfg.n_embd, cfg.n_ff, bias=False)
        self.ffn_up = nn.Linear(cfg.n_embd, cfg.n_ff, bias=False)
        self.ffn_down = nn.Linear(cfg.n_ff, cfg.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:  # [B, T, n * head_dim] -> [B, n, T, head_dim]
            return y.unflatten(-1, (-1, self.cfg.head_dim)).transpose(1, 2)

        y = self.attn_norm(x)
        q = rope(heads(self.attn_q(y)), cos, sin)
        k = rope(heads(self.attn_k(y)), cos, sin)
        v = heads(self.attn_v(y))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.attn_output(a.transpose(1, 2).flatten(-2))
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Llama(nn.Module):
    """Token ids [B, T] to logits [B, T, n_vocab]; the output matrix is the embedding."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(cfg.n_vocab, cfg.n_embd)
        self.blk = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.output_norm = nn.RMSNorm(cfg.n_embd, eps=cfg.norm_eps)
        cos, sin = rope_table(cfg)
        self.register_buffer("cos", torch.from_numpy(cos), persistent=False)
        self.register_buffer("sin", torch.from_numpy(sin), persistent=False)
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for name, p in self.named_parameters():
            if name.startswith("blk.") and p.ndim == 2:
                # What a block adds to the stream starts smaller the more blocks there are.
                adds = name.endswith(("attn_output.weight", "ffn_down.weight"))
                std = cfg.n_embd**-0.5 / ((2 * cfg.n_layer) ** 0.5 if adds else 1)
                nn.init.normal_(p, std=std)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return F.linear(self.output_norm(x), self.token_embd.weight)


# --- training ---------------------------------------------------------------------------------


def encode_page(tok: Tokenizer, rng: random.Random) -> tuple[list[int], list[float]]:
    """A page as ids (BOS, ten lines, EOS), and for each id how much predicting it counts.

    The words of a question are a free choice and cannot be predicted; they count little.
    """
    ids, weights = [BOS], [0.0]
    for prompt, answer in demo_questions.page(rng):
        for text, weight in ((prompt, 0.1), (f" {answer}\n", 1.0)):
            new = tok.encode(text)
            ids += new
            weights += [weight] * len(new)
    return [*ids, EOS], [*weights, 1.0]


def batch(tok: Tokenizer, rng: random.Random, n_pages: int) -> tuple[Tensor, Tensor]:
    """Ids and weights of `n_pages` pages, [n_pages, longest], padded with weight 0."""
    pages = [encode_page(tok, rng) for _ in range(n_pages)]
    longest = max(len(ids) for ids, _ in pages)
    ids = [ids + [EOS] * (longest - len(ids)) for ids, _ in pages]
    weights = [w + [0.0] * (longest - len(w)) for _, w in pages]
    return torch.tensor(ids), torch.tensor(weights)


def train(cfg: Config, tok: Tokenizer, args: argparse.Namespace) -> Llama:
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = Llama(cfg)
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim == 1] + [model.token_embd.weight]
    # Muon learns from fewer pages than AdamW does, but is meant for hidden matrices alone.
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.01, weight_decay=0.02),
        torch.optim.AdamW(others, lr=0.003, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    peaks = [o.param_groups[0]["lr"] for o in optimizers]
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        # Warm up over 50 steps, then fall to zero in a straight line.
        scale = min(step / 50, 1 - (step - 1) / args.steps)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * scale
            optimizer.zero_grad()
        ids, weights = batch(tok, rng, args.batch)
        losses = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none")
        loss = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if step % 250 == 0 or step == args.steps:
            right, asked = evaluate(lambda ids: model(torch.from_numpy(ids)).numpy(), tok, 500)
            print(
                f"step {step:5}  loss {loss.item():.4f}  held-out right "
                f"{right.total() / asked.total():6.1%}  {time.perf_counter() - start:4.0f} s",
                flush=True,
            )
    return model


# --- accuracy ---------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(
    forward: Forward, tok: Tokenizer, n: int, seed: int = 0
) -> tuple[Counter[str], Counter[str]]:
    """Ask `n` held-out questions, 100 at a time; how many were right and asked, by kind."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    questions = list(demo_questions.held_out(n, seed))
    for i in range(0, n, 100):
        chunk = [
            ([BOS, *tok.encode(prompt)], tok.encode(f" {answer}\n"), prompt)
            for prompt, answer in questions[i : i + 100]
        ]
        ids = np.full((len(chunk), max(len(head + tail) for head, tail, _ in chunk)), EOS)
        for row, (head, tail, _) in zip(ids, chunk, strict=True):
            row[: len(head + tail)] = head + tail
        # If each token is the first choice after those before it, greedy decoding gives them all.
        choice = forward(ids).argmax(-1)
        for row, (head, tail, prompt) in zip(choice, chunk, strict=True):
            kind = demo_questions.kind_of(prompt) or ""
            asked[kind] += 1
            right[kind] += row[len(head) - 1 :][: len(tail)].tolist() == tail
    return right, asked


# --- the file ---------------------------------------------------------------------------------


def write(path: Path, cfg: Config, tok: Tokenizer, model: Llama) -> None:
    """Write the GGUF file: matrices as Q8_0, norms as F32; the embedding is the output matrix."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("weft demo")
    w.add_author("The weft authors")
    w.add_license("MIT")
    w.add_description("Answers ten kinds of small question; see examples/README.md in weft")
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
    types += [kind.NORMAL] * (cfg.n_vocab - FIRST_PIECE)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tok.tokens)
    w.add_token_scores(tok.scores)
    w.add_token_types(types)
    w.add_unk_token_id(UNK)
    w.add_bos_token_id(BOS)
    w.add_eos_token_id(EOS)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(False)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for name, value in model.state_dict().items():
        data = value.numpy()
        if data.ndim == 2:
            w.add_tensor(name, gguf.quants.quantize(data, q8_0), raw_dtype=q8_0)
        else:
            w.add_tensor(name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def load(path: Path) -> tuple[Tokenizer, Forward]:
    """The tokenizer of a file, and its forward pass in NumPy: a second opinion on the torch one."""
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


def check(path: Path, n: int) -> float:
    """Print the file's accuracy on `n` held-out questions by kind, and a page it writes alone."""
    tok, forward = load(path)
    right, asked = evaluate(forward, tok, n, seed=1)
    for kind in demo_questions.KINDS:
        print(f"  {kind:10} {right[kind]:4} of {asked[kind]:4}")
    share = right.total() / asked.total()
    print(f"{path}: {path.stat().st_size} bytes, {share:.2%} of {n} held-out questions right\n")
    ids = [BOS, *tok.encode("What is 17 + 25?")]
    while ids[-1] != EOS and len(ids) < 256:
        ids.append(int(forward(np.array([ids]))[0, -1].argmax()))
    for line in tok.decode(ids).splitlines():
        print(f"  {line}{'' if demo_questions.is_right(line) else '   <-- wrong'}")
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model and write it as GGUF.")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the text")
    parser.add_argument("--steps", type=int, default=4000, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=8, help="pages of ten questions a step")
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    parser.add_argument("--questions", type=int, default=2000, help="held-out questions to check")
    parser.add_argument("--check", action="store_true", help="only check the file at --out")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("weft-demo.gguf"))
    args = parser.parse_args()
    if not args.check:
        torch.set_num_threads(args.threads)
        rng = random.Random(args.seed)
        pages = [demo_questions.page(rng) for _ in range(300)]
        lines = [f"{prompt} {answer}" for page in pages for prompt, answer in page]
        tok = demo_tokenizer.train(lines)
        cfg = Config(n_vocab=len(tok.tokens))
        write(args.out, cfg, tok, train(cfg, tok, args))
    if check(args.out, args.questions) < 0.99:
        raise SystemExit("fewer than 99% right: train for more --steps or with another --seed")


if __name__ == "__main__":
    main()
