"""Named rewrites (fusions) of a device's nodes, each a pattern and a replacement.

A device names those that it has kernels for (`Backend.rewrites`); they run after placement and
before memory is planned, so that what they remove takes no memory. The last node of a match becomes
the fused one, in its place; a match needs everything in between to be read by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from weft.errors import GraphError
from weft.flags import FLAGS
from weft.graph.rewrite.fusions import REWRITES, Rewrite
from weft.graph.rewrite.match import Matcher
from weft.graph.tensor import Tensor
from weft.records import dataclass

__all__ = ["REWRITES", "Rewrite", "Rewritten", "chosen_rewrites", "rewrite"]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewrite that was applied."""

    name: str
    node: str
    """Name of the fused node."""
    removed: int
    """The number of nodes that it removed."""


def rewrite(
    nodes: Sequence[Tensor],
    names: Collection[str],
    needed: Collection[Tensor] = (),
    allowed: Callable[[Tensor], bool] = lambda node: True,
) -> tuple[list[Tensor], list[Rewritten]]:
    """`nodes` (in order, changed in place) after the rewrites called `names`, and those applied.

    `needed` are tensors that nodes outside of `nodes` read. `allowed` says whether the device has a
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
    """The rewrites to use: `names`, by default the names in WEFT_REWRITES. Raises GraphError for an
    unknown name."""
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
