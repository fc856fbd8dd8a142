"""Hyper-connections (arXiv 2409.19606, with DeepSeek-V4's constraint): several residual streams.

A half of a block reads the sum of the streams, weighted by `pre`. Its output y goes back to all of
them, weighted by `post`, while a matrix `comb`, whose rows and columns sum to 1, mixes the streams:

    x[k] = post[k] y + sum over j of comb[j, k] x[j]

All three are computed from the streams of the token. Hy4's connections are independent: streams
are not mixed, and there is no `comb`.

Qwen4-Exp's are gated: each element of each stream has a weight of its own in the input,

    y = mean over streams j of  sigmoid(up silu(down norm(x)))[j] norm(x)[j]

and streams are not mixed, either.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import HyperConfig
from weft.llm.models.common import linear
from weft.llm.models.parts import linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need
from weft.records import dataclass

_SIZE = 4  # bytes of a float32
COUNT = 4
"""The number of streams that the kernels mix."""


def read_hyper(keys: Keys, *, mixed: bool = True) -> HyperConfig:
    """The sizes of hyper-connections in a file, whose streams are `mixed` or not."""
    count = keys.count("hyper_connection.count", most=1 << 8)
    eps = keys.number("hyper_connection.epsilon", 1e-6, above=0.0)
    if not mixed:
        return HyperConfig(count, 0, eps, keys.number("hyper_connection.magnitude", 2.0))
    if count != COUNT:
        raise keys.bad("hyper_connection.count", count, f"{COUNT}; weft mixes no other number")
    n_iter = keys.count("hyper_connection.sinkhorn_iterations", most=1 << 10)
    return HyperConfig(count, n_iter, eps)


def hyper(c: ModelConfig) -> HyperConfig:
    """The sizes of hyper-connections, which `configure` has set."""
    assert c.hyper is not None
    return c.hyper


def hyper_rows(c: ModelConfig, name: str) -> Iterator[Row]:
    """The weights of one half of a block, whose names begin with `name`."""
    n, mixed = hyper(c).count, hyper(c).n_iter > 0
    n_out = (2 + n * mixed) * n
    yield need(f"{name}_fn.weight", n * c.n_embd, n_out)
    yield need(f"{name}_base.weight", n_out)
    yield need(f"{name}_scale.weight", 2 + mixed)


def head_rows(c: ModelConfig) -> Iterator[Row]:
    """The weights that collapse the streams behind the last layer."""
    n = hyper(c).count
    yield need("output_hc_fn.weight", n * c.n_embd, n)
    yield need("output_hc_base.weight", n)
    yield need("output_hc_scale.weight", 1)


@dataclass(frozen=True, slots=True)
class Collapsed:
    """The input of one half of a block, and how its output goes back to the streams."""

    x: Tensor
    """[n_embd, n_tokens]"""
    streams: Tensor
    """[n_embd, n_streams, n_tokens]"""
    post: Tensor
    """[n_streams, n_tokens]"""
    comb: Tensor | None
    """[n_streams, n_streams, n_tokens]; None: streams are not mixed."""

    def expanded(self, y: Tensor) -> Tensor:
        """The streams behind the half, whose output is y [n_embd, n_tokens]."""
        return G.dsv4_hc_post(y, self.streams, self.post, self.comb)


def streams(step: Step, x: Tensor) -> Tensor:
    """The streams of embeddings x [n_embd, n_tokens], which are all the same."""
    n_embd, n_tokens = x.ne[:2]
    n = hyper(step.config).count
    return G.repeat(G.reshape(x, n_embd, 1, n_tokens), (n_embd, n, n_tokens, 1))


def collapsed(step: Step, w: Weights, name: str, il: int, x: Tensor) -> Collapsed:
    """Collapses the streams x [n_embd, n_streams, n_tokens] for one half of block `il`, whose
    weights are in `w` and whose names begin with `name`."""
    h, n_tokens = hyper(step.config), x.ne[2]
    n = h.count
    mixes = _mixes(step, w, name, x)
    scale, base = w[f"{name}_scale.weight"], w[f"{name}_base.weight"]
    gates = []
    for i, part in enumerate(("pre", "post")):
        gate = G.view_2d(mixes, n, n_tokens, mixes.nb[1], _SIZE * n * i)
        gate = G.mul(gate, G.view_1d(scale, 1, _SIZE * i)).named(f"{name}_{part}_scaled-{il}")
        gate = G.add(gate, G.view_1d(base, n, _SIZE * n * i)).named(f"{name}_{part}_base-{il}")
        gates.append(G.sigmoid(gate).named(f"{name}_{part}_gate-{il}"))
    comb = None
    if h.n_iter:
        comb = G.dsv4_hc_comb(mixes, scale, base, eps=h.eps, n_iter=h.n_iter)
        comb = comb.named(f"{name}_comb-{il}")
    post = G.scale(gates[1], h.magnitude, 0.0 if h.n_iter else h.eps)
    weights = G.scale(gates[0], 1.0, h.eps).named(f"{name}_weights-{il}")
    y = G.dsv4_hc_pre(x, weights).named(f"{name}_pre-{il}")
    return Collapsed(y, x, post.named(f"{name}_post_weights-{il}"), comb)


def summed(step: Step, w: Weights, x: Tensor) -> Tensor:
    """The streams x [n_embd, n_streams, n_tokens] collapsed behind the last layer."""
    mixes = G.mul(_mixes(step, w, "output_hc", x), w["output_hc_scale.weight"])
    pre = G.sigmoid(G.add(mixes, w["output_hc_base.weight"]))
    return G.dsv4_hc_pre(x, G.scale(pre, 1.0, hyper(step.config).eps))


# Gated connections.


def gated_rows(c: ModelConfig, name: str, *, injects: bool = True) -> Iterator[Row]:
    """The weights of one half of a block, whose names begin with `name`; with `injects` also of
    the weights with which its output goes back to the streams."""
    h = hyper(c)
    wide = h.count * c.n_embd
    yield need(f"{name}_norm.weight", wide)
    yield from linear_rows(f"{name}_down", wide, h.rank)
    yield from linear_rows(f"{name}_up", h.rank, wide)
    if injects:
        yield from linear_rows(f"{name}_inject", wide, h.count)


def gated(step: Step, w: Weights, name: str, il: int, x: Tensor) -> Collapsed:
    """The streams x [n_embd, n_streams, n_tokens] collapsed for one half of block `il`, whose
    weights are in `w` and whose names begin with `name`."""
    y, flat = gated_mean(step, w, name, il, x)
    scores = linear(w, f"{name}_inject", flat).named(f"hc_inject-{il}")
    scores = G.scale(scores, 1 / hyper(step.config).count).named(f"hc_inject_scaled-{il}")
    post = G.scale(G.sigmoid(scores).named(f"hc_post_gate-{il}"), 2.0).named(f"hc_post-{il}")
    return Collapsed(y, x, post, None)


def gated_mean(step: Step, w: Weights, name: str, il: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The streams x [n_embd, n_streams, n_tokens] collapsed to [n_embd, n_tokens], and their norms
    side by side, [n_embd * n_streams, n_tokens]; see `gated`."""
    n_embd, n, n_tokens, _ = x.ne
    normed = grouped(step.config, w, f"{name}_norm", x).named(f"hc_norm-{il}")
    flat = G.reshape(normed, n_embd * n, n_tokens)
    inner = G.scale(linear(w, f"{name}_down", flat), 1 / hyper(step.config).count)
    inner = G.silu(inner.named(f"hc_down_scaled-{il}")).named(f"hc_down_silu-{il}")
    gate = G.sigmoid(linear(w, f"{name}_up", inner).named(f"hc_gate-{il}"))
    weighted = G.mul(flat, gate.named(f"hc_gate_sigmoid-{il}")).named(f"hc_gated-{il}")
    return averaged(G.reshape(weighted, n_embd, n, n_tokens)).named(f"hc_mixed-{il}"), flat


def grouped(c: ModelConfig, w: Weights, name: str, x: Tensor) -> Tensor:
    """The RMS norm of each stream of x [n_embd, n_streams, n_tokens], each with a learned gain."""
    return G.mul(G.rms_norm(x, c.rms_eps), G.reshape(w[f"{name}.weight"], *x.ne[:2]))


def averaged(x: Tensor) -> Tensor:
    """The mean [n_embd, n_tokens] of streams x [n_embd, n_streams, n_tokens]."""
    n, n_tokens = x.ne[1:3]
    assert isinstance(n, int)
    return G.dsv4_hc_pre(x, G.repeat(G.constant([1.0 / n]), (n, n_tokens, 1, 1)))


def _mixes(step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
    n_embd, n, n_tokens, _ = x.ne
    flat = G.reshape(x, n_embd * n, n_tokens)
    return G.mul_mat(w[f"{name}_fn.weight"], G.rms_norm(flat, step.config.rms_eps))
