"""Gemma 3's tower: SigLIP (arXiv 2303.15343) over squares, whose patches are averaged and projected
(arXiv 2503.19786). The rows of an image see one another in the decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks
from weft.llm.vision.config import Family, TowerConfig, patches_of
from weft.llm.vision.images import resized
from weft.llm.weights import Row, Weights, need


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.side * c.side)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    yield need("v.post_ln.weight", c.n_embd)
    yield need("v.post_ln.bias", c.n_embd)
    yield need("mm.soft_emb_norm.weight", c.n_embd)
    yield need("mm.input_projection.weight", c.n_out, c.n_embd)


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = G.add(blocks.embed_patches(c, w, inputs["patches"]), w["v.position_embd.weight"])
    x = blocks.encode(c, w, x, c.n_layer)
    x = common.layer_norm(w, "v.post_ln", x, c.eps)
    planes = G.reshape(G.cont(G.transpose(x)), c.side, c.side, c.n_embd)
    k = c.merge
    planes = G.pool_2d(planes, G.PoolOp.AVG, k, k, k, k)
    n = (c.side // k) ** 2
    x = G.cont(G.transpose(G.reshape(planes, n, c.n_embd)))
    x = G.mul(G.rms_norm(x, c.eps), w["mm.soft_emb_norm.weight"])
    # the file has the matrix as it stands on the right of a product
    return G.mul_mat(G.cont(G.transpose(w["mm.input_projection.weight"])), x)


GEMMA3 = Family(
    rows=rows, forward=forward, inputs=blocks.square_inputs,
    sized=lambda c, pixels: resized(pixels, c.image_size, c.image_size, "bilinear"),
    values=lambda c, pixels: {"patches": patches_of(c, pixels)},
    n_rows=lambda c, height, width: (c.side // c.merge) ** 2, merge=4,
    before="\n\n<start_of_image>", after="<end_of_image>\n\n", together=True,
)  # fmt: skip
