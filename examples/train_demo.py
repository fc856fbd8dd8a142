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
from pathlib import Path

import demo_questions
import demo_tokenizer
import numpy as np
import torch
import torch.nn.functional as F
from demo_gguf import Array, Config, Forward, load, write
from demo_tokenizer import BOS, EOS, Tokenizer
from torch import Tensor, nn

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
        torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1),
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
        logits, targets = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        counts = weights[:, 1:].flatten()
        loss = (F.cross_entropy(logits, targets, reduction="none") * counts).sum() / counts.sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if step % 500 == 0 or step == args.steps:
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
    parser.add_argument("--steps", type=int, default=4500, help="optimizer steps")
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
        model = train(cfg, tok, args)
        write(args.out, cfg, tok, {name: p.numpy() for name, p in model.state_dict().items()})
    if check(args.out, args.questions) < 0.99:
        raise SystemExit("fewer than 99% right: train for more --steps or with another --seed")


if __name__ == "__main__":
    main()
