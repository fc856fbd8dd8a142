"""The tower of dots.ocr (arXiv 2512.02498): Qwen2-VL's with RMS norms and gated layers, over
patches of one frame that are normed. dots.3 Note's norms queries and keys, too, and has experts in
some layers, of which a sigmoid and a bias choose a few.

Patches of a square follow one another, so that merging them is a reshape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft import graph as G
from weft.errors import FormatError
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.config_parts import MoeConfig
from weft.llm.models import common
from weft.llm.models.experts import Experts
from weft.llm.vision import blocks, qwen
from weft.llm.vision.config import Family, TowerConfig, limited, rows_by, sized_by
from weft.llm.weights import Row, Weights, maybe, need

LEAST, MOST = 56 * 56, 11_289_600
"""Pixels of an image, if the file says nothing else."""


def rows(c: TowerConfig) -> Iterator[Row]:
    blocks.require_pairs(c)
    own = need if c.projector == "dots3note_v" else maybe
    if c.experts and not c.n_used:
        raise FormatError(
            "the tower has experts, and its file no clip.vision.expert_used_count of 1 or more; "
            "convert it again"
        )
    yield from blocks.patch_rows(c)
    yield need("v.pre_ln.weight", c.n_embd)
    for il in range(c.n_layer):
        at = f"v.blk.{il}"
        yield need(f"{at}.ln1.weight", c.n_embd)
        yield need(f"{at}.ln2.weight", c.n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield own(f"{at}.{name}.weight", c.n_embd // c.n_head)
        n_expert, n_ff = c.experts[il] if c.experts else (0, 0)
        sizes = [("attn_qkv", c.n_embd, 3 * c.n_embd), ("attn_out", c.n_embd, c.n_embd)]
        if n_expert:
            yield need(f"{at}.ffn_gate_inp.weight", c.n_embd, n_expert)
            yield maybe(f"{at}.exp_probs_b.weight", n_expert)
            for name, n_in, n_out in _gated("_exps", c.n_embd, n_ff):
                yield need(f"{at}.{name}.weight", n_in, n_out, n_expert)
        else:
            sizes += _gated("", c.n_embd, c.n_ff)
        for name, n_in, n_out in sizes:
            yield need(f"{at}.{name}.weight", n_in, n_out)
            yield maybe(f"{at}.{name}.bias", n_out)
    yield own("mm.post_norm.weight", c.n_embd)
    wide = c.n_embd * c.merge**2
    for end in ("weight", "bias"):
        yield need(f"mm.input_norm.{end}", c.n_embd)
    for name, n_out in (("mm.0", wide), ("mm.2", c.n_out)):
        yield need(f"{name}.weight", wide, n_out)
        yield need(f"{name}.bias", n_out)


def _gated(end: str, n_embd: int, n_ff: int) -> list[tuple[str, int, int]]:
    """The matrices of a gated layer, from what to what."""
    return [(f"ffn_{name}{end}", n_embd, n_ff) for name in ("gate", "up")] + [
        (f"ffn_down{end}", n_ff, n_embd)
    ]


def in_limits(c: TowerConfig) -> TowerConfig:
    """The config with the limits of the family, if the file has none."""
    return limited(c, LEAST, MOST)


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    n = inputs["patches"].ne[1]
    x = common.norm(w, "v.pre_ln", blocks.embed_patches(c, w, inputs["patches"]), c.eps)
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = common.linear(layer, "attn_qkv", common.norm(layer, "ln1", x, c.eps))
        q, k, v = blocks.split_qkv(c, y, n)
        if "attn_q_norm.weight" in layer:
            q, k = (
                common.norm(layer, f"attn_{name}_norm", x, c.eps)
                for name, x in (("q", q), ("k", k))
            )
        y = qwen.attention(c, q, k, v, inputs)
        x = G.add(x, common.linear(layer, "attn_out", y))
        y = common.norm(layer, "ln2", x, c.eps)
        x = G.add(x, _fed(c, layer, y, il)).named(f"v.l_out-{il}")
    if "mm.post_norm.weight" in w:
        x = common.norm(w, "mm.post_norm", x, c.eps)
    x = common.layer_norm(w, "mm.input_norm", x, 1e-6)
    n_rows = exact_div(n, c.merge**2)
    assert n_rows is not None  # the inputs have whole squares
    x = G.reshape(x, c.n_embd * c.merge**2, n_rows)
    return common.linear(w, "mm.2", G.gelu_erf(common.linear(w, "mm.0", x)))


def _fed(c: TowerConfig, w: Weights, x: Tensor, il: int) -> Tensor:
    """The rows that a gated layer, or a mixture of experts, adds to rows x [n_embd, n]."""
    n_expert, n_ff = c.experts[il] if c.experts else (0, 0)
    if n_expert:
        n_used = min(c.n_used, n_expert)
        moe = MoeConfig(n_expert=n_expert, n_used=n_used, n_ff=n_ff, sigmoid=True)
        bias = {} if "exp_probs_b.weight" not in w else {"exp_probs_b": w["exp_probs_b.weight"]}
        return Experts().mixture(Weights({**w, **bias}), x, moe)
    y = G.swiglu(common.linear(w, "ffn_gate", x), common.linear(w, "ffn_up", x))
    return common.linear(w, "ffn_down", y)


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of whole squares, near the proportions of an image and within the limits."""
    return qwen.size_of(in_limits(c), height, width)


DOTSOCR = Family(
    rows=rows, inputs=lambda c: qwen.inputs(in_limits(c)), forward=forward, sized=sized_by(size_of),
    values=qwen.values, n_rows=rows_by(size_of), merge=2, before="<|img|>", after="<|endofimg|>",
)  # fmt: skip
