"""The parts of vision transformers (arXiv 2010.11929) that towers share: patches, attention without
a mask, and blocks. A part lists its weights (`rows`) and computes, as those of text models do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

from weft import graph as G
from weft.errors import FormatError
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision.config import TowerConfig
from weft.llm.weights import Row, Weights, maybe, need

ACT: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": G.gelu, "gelu_quick": G.gelu_quick, "gelu_erf": G.gelu_erf, "silu": G.silu,
}  # fmt: skip


def patch_rows(c: TowerConfig, name: str = "v.patch_embd", *, bias: bool = True) -> Iterator[Row]:
    """The kernel that makes a row of a patch."""
    yield need(f"{name}.weight", c.patch_size, c.patch_size, 3, c.n_embd)
    if bias:
        yield maybe(f"{name}.bias", c.n_embd)


def require_squares(c: TowerConfig) -> None:
    """Raises FormatError for a square image that is not made of whole squares of patches."""
    unit = c.patch_size * c.merge
    if c.image_size % unit:
        raise FormatError(
            f"the tower takes images of {c.image_size} pixels each side, in squares of {unit}; "
            "sides must be multiples of these"
        )


def square_inputs(c: TowerConfig) -> dict[str, Tensor]:
    """The input of a tower for squares: patches [3 p p, n_patches]."""
    return {"patches": G.input("patches", (c.side * c.side, c.patch_values), "f32")}


def embed_patches(c: TowerConfig, w: Weights, patches: Tensor) -> Tensor:
    """Rows [n_embd, n_patches] of patches [3 p p, n_patches]: a convolution whose windows do not
    overlap."""
    kernel = G.reshape(w["v.patch_embd.weight"], c.patch_values, c.n_embd)
    x = G.mul_mat(kernel, patches)
    return G.add(x, w["v.patch_embd.bias"]) if "v.patch_embd.bias" in w else x


def merged(kernel: Tensor, x: Tensor) -> Tensor:
    """Rows [n_out, n / (k k)] of a convolution whose windows are squares of k patches; the patches
    of a square follow one another in x [n_embd, n]."""
    n_in, k, n_out = x.ne[0], kernel.ne[0], kernel.ne[3]
    assert isinstance(k, int)  # weights have no symbols
    unit = k * k
    n_rows = exact_div(x.ne[1], unit)
    assert n_rows is not None  # the inputs have whole squares
    # the kernel has the places of a square innermost
    x = G.cont(G.permute(G.reshape(x, n_in, unit, n_rows), 1, 0, 2, 3))
    return G.mul_mat(G.reshape(kernel, n_in * unit, n_out), G.reshape(x, n_in * unit, n_rows))


class HeadConfig(Protocol):
    """The sizes of an encoder that its heads need."""

    @property
    def n_embd(self) -> int: ...
    @property
    def n_head(self) -> int: ...


class BlockConfig(HeadConfig, Protocol):
    """The sizes of a tower for images or sound that blocks need."""

    @property
    def n_ff(self) -> int: ...
    @property
    def eps(self) -> float: ...
    @property
    def act(self) -> str: ...
    @property
    def swapped(self) -> bool: ...


def block_rows(
    c: BlockConfig, il: int, *, bias: bool = True, fused: bool = False, at: str = "v"
) -> Iterator[Row]:
    """The weights of one block with LayerNorm and a feed-forward layer of two matrices; `fused` is
    for one matrix of queries, keys and values, and `at` is "a" in a tower for sound."""
    at = f"{at}.blk.{il}"
    for name in ("ln1", "ln2"):
        yield need(f"{at}.{name}.weight", c.n_embd)
        yield need(f"{at}.{name}.bias", c.n_embd)
    for name in ("attn_qkv", "attn_out") if fused else ("attn_q", "attn_k", "attn_v", "attn_out"):
        n = c.n_embd * (3 if name == "attn_qkv" else 1)
        yield need(f"{at}.{name}.weight", c.n_embd, n)
        if bias:
            yield maybe(f"{at}.{name}.bias", n)
    up, down = _up_down(c)
    yield need(f"{at}.{up}.weight", c.n_embd, c.n_ff)
    yield maybe(f"{at}.{up}.bias", c.n_ff)
    yield need(f"{at}.{down}.weight", c.n_ff, c.n_embd)
    yield maybe(f"{at}.{down}.bias", c.n_embd)


def _up_down(c: BlockConfig) -> tuple[str, str]:
    """The names of a feed-forward layer's matrices; old converters had them the other way."""
    return ("ffn_down", "ffn_up") if c.swapped else ("ffn_up", "ffn_down")


def attention(
    c: BlockConfig, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float = 0.0
) -> Tensor:
    """Attention of all rows to all, or where `mask` f16 [n, n] is 0; q, k and v are [d, n_head, n].
    Scores are multiplied by `scale` (0: by 1 / sqrt(d)). Returns [d n_head, n]."""
    n: Size = q.ne[2]
    d = c.n_embd // c.n_head
    q, k, v = (G.permute(t, 0, 2, 1, 3) for t in (q, k, v))
    out = G.flash_attn_ext(q, k, v, mask, scale=scale or 1 / math.sqrt(d))
    return G.reshape(out, c.n_embd, n)


def split_qkv(c: HeadConfig, y: Tensor, n: Size) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [d, n_head, n] of y [3 n_embd, n]."""
    d, size = c.n_embd // c.n_head, y.dtype.bytes
    q, k, v = (
        G.view_3d(y, d, c.n_head, n, d * size, y.nb[1], part * c.n_embd * size) for part in range(3)
    )
    return q, k, v


def require_pairs(c: BlockConfig) -> None:
    """Raises FormatError for heads whose halves are not pairs, which turn by height and width."""
    if c.n_embd // c.n_head % 4:
        raise FormatError(
            f"heads of the tower have {c.n_embd // c.n_head} elements; they must be multiples of 4"
        )


def rotated_by_sides(
    c: BlockConfig, x: Tensor, first: Tensor, second: Tensor, theta: float
) -> Tensor:
    """Queries or keys x [d, n_head, n], whose first half is rotated by the positions `first` and
    whose second half by `second`, pairs of neighbours at the same speeds."""
    half = c.n_embd // c.n_head // 2
    x = G.rope(x, first, mode="normal", n_dims=half, freq_base=theta)
    return G.rope(x, second, mode="normal", n_dims=half, n_offset=half, freq_base=theta)


def encode(
    c: BlockConfig,
    w: Weights,
    x: Tensor,
    n_layer: int,
    first: int = 0,
    *,
    at: str = "v",
    mask: Tensor | None = None,
    rotated: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The blocks from `first` to before `n_layer` over rows x [n_embd, n]; `at` is as in
    `block_rows`, `mask` as in `attention`. `rotated` rotates queries and keys [d, n_head, n]."""
    d, n = c.n_embd // c.n_head, x.ne[1]
    up, down = _up_down(c)
    for il in range(first, n_layer):
        layer = Weights(dict(w), f"{at}.blk.{il}.")
        y = _normed(c, layer, "ln1", x)
        if "attn_qkv.weight" in layer:
            q, k, v = split_qkv(c, common.linear(layer, "attn_qkv", y), n)
        else:
            q, k, v = (_projected(c, layer, f"attn_{name}", y) for name in "qkv")
            q, k, v = (G.reshape(part, d, c.n_head, n) for part in (q, k, v))
        if rotated is not None:
            q, k = rotated(q), rotated(k)
        y = common.linear(layer, "attn_out", attention(c, q, k, v, mask))
        x = G.add(x, _scaled(layer, "ls1", y))
        y = _normed(c, layer, "ln2", x)
        if "ffn_gate.weight" in layer:
            y = G.swiglu(common.linear(layer, "ffn_gate", y), common.linear(layer, up, y))
        else:
            y = ACT[c.act](common.linear(layer, up, y))
        x = G.add(x, _scaled(layer, "ls2", common.linear(layer, down, y)))
        x = x.named(f"{at}.l_out-{il}")
    return x


def _normed(c: BlockConfig, w: Weights, name: str, x: Tensor) -> Tensor:
    """LayerNorm; RMS norm if there is no bias."""
    norm = common.layer_norm if f"{name}.bias" in w else common.norm
    return norm(w, name, x, c.eps)


def _projected(c: BlockConfig, w: Weights, name: str, x: Tensor) -> Tensor:
    """Queries, keys or values, normed if the file has gains for it."""
    y = common.linear(w, name, x)
    return common.norm(w, f"{name}_norm", y, c.eps) if f"{name}_norm.weight" in w else y


def _scaled(w: Weights, name: str, x: Tensor) -> Tensor:
    return G.mul(x, w[f"{name}.weight"]) if f"{name}.weight" in w else x
