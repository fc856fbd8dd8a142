"""Parts of patterns: the readers of a tensor, and the replacement of the last node of a match."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.dtype import DType
from weft.graph.node import make_node
from weft.graph.op import NONE, OPS
from weft.graph.params import Params
from weft.graph.tensor import Tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Fused:
    """The node that `last` becomes, and the nodes that are then superfluous."""

    last: Tensor
    op: str
    src: tuple[Tensor | None, ...]
    params: Params | None
    removed: tuple[Tensor, ...]

    def as_node(self) -> Tensor:
        """The fused node on its own, for the question whether a device runs it."""
        last = self.last
        return make_node(
            self.op, last.dtype, last.ne, *self.src, params=self.params, nb=last.nb,
            view_of=last.view_src, view_offs=last.view_offs, name=last.name,
        )  # fmt: skip


class Matcher:
    """The nodes of one device and their readers. Nodes that were fused away are in `gone`."""

    def __init__(self, nodes: Sequence[Tensor], needed: Collection[Tensor]) -> None:
        self._nodes = set(nodes)
        self._needed = set(needed)
        self._users: dict[Tensor, list[Tensor]] = {}
        self.gone: set[Tensor] = set()
        for node in nodes:
            self._enter(node)

    def _reads(self, node: Tensor) -> set[Tensor]:
        read = {s for s in node.src if s is not None and s is not node}
        return read if node.view_src is None else read | {node.view_src}

    def _enter(self, node: Tensor) -> None:
        for t in self._reads(node):
            self._users.setdefault(t, []).append(node)

    def inner(self, t: Tensor | None, op: str, user: Tensor) -> Tensor | None:
        """`t` if it is a node `op` that `user` alone reads and nothing else needs, else None. It is
        not an output, has memory of its own without views into it, and runs on this device."""
        if t is None or t.op is not OPS[op] or t not in self._nodes or t in self.gone:
            return None
        outside = t in self._needed or t.is_output or t.buffer is not None
        if outside or self._users.get(t) != [user]:
            return None
        if not t.op.is_view and t.view_src is not None:
            return None  # computed in place, in memory of another tensor
        return t

    def replace(self, fused: Fused) -> None:
        """Replaces the matched nodes by the fused one in the graph."""
        for node in (*fused.removed, fused.last):
            for t in self._reads(node):
                self._users[t].remove(node)
        self.gone.update(fused.removed)
        last = fused.last
        made = fused.as_node()
        last.op, last.src, last.params = made.op, made.src, made.params
        self._enter(last)


def is_row(t: Tensor | None, like: Tensor, dtype: DType) -> bool:
    """Whether `t` is one row of `dtype`, as long as a row of `like`, that is used for every row."""
    return (
        t is not None
        and t.dtype is dtype
        and t.ne == (like.ne[0], 1, 1, 1)
        and t.is_contiguous
        and (t.op is NONE or t.view_src is not like)
    )
