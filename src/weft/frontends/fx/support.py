"""`Support`: whether a node can become weft ops, with the reason in a sentence where it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.errors import UnsupportedOpError
from weft.records import dataclass


class InheritedReason(str):
    """A reason that a node may have from another node whose shape or type it takes over."""


FROM_DATA = InheritedReason(
    "a shape depends on data, so that no memory can be planned for it; torch.where and masked_fill "
    "keep the shape"
)


@dataclass(frozen=True, slots=True)
class Support:
    """The answer of `supports`; true when the node can be converted."""

    ok: bool
    reason: str = ""
    """The reason of a refusal, a sentence without a name; empty where the node is supported."""

    def __bool__(self) -> bool:
        return self.ok


YES = Support(True)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node of an exported program that cannot be converted."""

    node: str
    """The node's name in the exported graph."""
    op: str
    """The op's name, e.g. `aten.nonzero.default`."""
    reason: str
    cause: str = ""
    """Another refused node, from which this one got the shape or type for which it is refused."""


def refuse_all(refusals: Sequence[Refusal]) -> UnsupportedOpError:
    """One error with a line for every node that cannot be converted.

    Nodes that only inherited their shape or type from a refused one are counted behind it."""
    first = [r for r in refusals if not r.cause]
    behind = Counter(r.cause for r in refusals if r.cause)
    width = max(len(r.node) for r in first)
    ops = max(len(r.op) for r in first)
    lines = []
    for r in first:
        more = f" (and {behind[r.node]} behind it)" if behind[r.node] else ""
        lines.append(f"  {r.node:<{width}}  {r.op:<{ops}}  {r.reason}{more}")
    what = "node" if len(refusals) == 1 else "nodes"
    error = UnsupportedOpError(
        f"{len(refusals)} {what} of the exported program cannot be converted:\n"
        + "\n".join(lines)
        + "\nWrite them with other ops, or take them out of the module and run them in PyTorch."
    )
    error.refusals = tuple(refusals)  # type: ignore[attr-defined]
    return error
