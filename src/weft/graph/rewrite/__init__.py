"""Named rewrites (fusions) of a device's nodes, each a pattern and a replacement.

A device names those that it has kernels for (`Backend.rewrites`); they run after placement and
before memory is planned, so that what they remove takes no memory. The last node of a match becomes
the fused one, in its place; a match needs everything in between to be read by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from weft.errors import GraphError
from weft.flags import FLAGS
from weft.graph.rewrite import cache, convolution, norm, product, quantize, softmax
from weft.graph.rewrite.match import Fused, Matcher
from weft.graph.tensor import Tensor
from weft.records import dataclass

__all__ = ["REWRITES", "Rewrite", "Rewritten", "chosen_rewrites", "rewrite"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A row of the table."""

    name: str
    pattern: str
    """What it finds and what it makes of it, for people."""
    match: Callable[[Matcher, Tensor], Fused | None]
    """The replacement of the match whose last node it is given, None where there is none."""


REWRITES: dict[str, Rewrite] = {
    r.name: r
    for r in (
        Rewrite(
            "softmax-mask-scale",
            "SOFT_MAX(ADD(SCALE(x), mask)) -> SOFT_MAX(x, mask, scale)",
            softmax.with_mask_and_scale,
        ),
        Rewrite(
            "norm-scale",
            "MUL(NORM or RMS_NORM(x), weight) -> NORM_SCALE(x, weight)",
            norm.with_weight,
        ),
        Rewrite(
            "norm-scale-bias",
            "ADD(NORM_SCALE(x, weight), bias) -> NORM_SCALE(x, weight, bias)",
            norm.with_bias,
        ),
        Rewrite(
            "add-norm",
            "NORM_SCALE(ADD(a, b), weight, bias) -> NORM_SCALE(a, weight, bias, b)",
            norm.of_sum,
        ),
        Rewrite(
            "matmul-bias",
            "ADD(MUL_MAT(w, x), bias) -> MUL_MAT(w, x, bias)",
            product.with_bias,
        ),
        Rewrite(
            "matmul-activation",
            "f(MUL_MAT(w, x, bias)) -> MUL_MAT(w, x, bias, f); f of UNARY, or MAP's clamp",
            product.with_activation,
        ),
        Rewrite(
            "conv-add",
            "ADD(CONV_2D_LAST(x, w, bias), r) -> CONV_2D_LAST(x, w, bias, r)",
            convolution.with_residual,
        ),
        Rewrite(
            "conv-clamp",
            "relu, relu6 or clamp(CONV_2D_LAST(...)) -> CONV_2D_LAST(...) with bounds",
            convolution.with_bounds,
        ),
        Rewrite(
            "norm-quantize",
            "QUANTIZE(NORM_SCALE(...)) -> NORM_SCALE(...) as blocks",
            quantize.norm,
        ),
        Rewrite("glu-quantize", "QUANTIZE(GLU(a, b)) -> GLU_QUANTIZE(a, b)", quantize.glu),
        Rewrite(
            "rope-cache",
            "SET_ROWS(RESHAPE(ROPE(k)), cells, cache) -> ROPE_SET_ROWS(k, ..., cells, cache)",
            cache.rope_into_cache,
        ),
    )
}
"""All rewrites by name, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What one rewrite did."""

    name: str
    node: str
    """Name of the fused node."""
    removed: int
    """Nodes that are gone."""


def rewrite(
    nodes: Sequence[Tensor],
    names: Collection[str],
    needed: Collection[Tensor] = (),
    allowed: Callable[[Tensor], bool] = lambda node: True,
) -> tuple[list[Tensor], list[Rewritten]]:
    """`nodes` (in order, changed in place) after the rewrites called `names`, and what was done.

    `needed`: tensors that somebody outside of `nodes` reads. `allowed`: whether the device has a
    kernel for a fused node. Outputs stay."""
    matcher = Matcher(nodes, needed)
    done: list[Rewritten] = []
    for name, row in REWRITES.items():
        if name not in names:
            continue
        for node in nodes:
            if node in matcher.gone:
                continue
            fused = row.match(matcher, node)
            if fused is not None and allowed(fused.as_node()):
                done.append(Rewritten(name, node.name, len(fused.removed)))
                matcher.replace(fused)
    return [n for n in nodes if n not in matcher.gone], done


def chosen_rewrites(names: Iterable[str] | None = None) -> frozenset[str]:
    """The rewrites to use: `names`, or what WEFT_REWRITES says. Raises GraphError for a name that
    there is none of."""
    if names is not None:
        chosen = set(names)
    else:
        words = [w for w in FLAGS.rewrites.replace(",", " ").split() if w]
        left_out = {w[1:] for w in words if w.startswith("-")}
        kept = [w for w in words if not w.startswith("-")]
        unknown_ok = {"all": set(REWRITES), "none": set[str]()}
        chosen = set().union(*(unknown_ok.get(w, {w}) for w in kept)) if kept else set(REWRITES)
        _check(left_out)
        chosen -= left_out
    _check(chosen)
    return frozenset(chosen)


def _check(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(REWRITES))
    if unknown:
        raise GraphError(f"no rewrite called {unknown[0]!r}; there are {', '.join(REWRITES)}")
