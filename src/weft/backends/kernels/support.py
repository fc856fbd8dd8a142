"""The nodes that devices with kernels take; needs neither a driver nor a device."""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.base import YES, Support, why_not_general
from weft.backends.kernels.ops import find_family
from weft.graph.op import NONE
from weft.graph.rewrite.general import GENERAL
from weft.graph.tensor import Tensor

_LEFT_OUT = {
    "QUANTIZE": "products make bytes of activations, or read them as they are",
    "GLU_QUANTIZE": "products make bytes of activations, or read them as they are",
}
"""Ops without kernels, and the device's way to do without them."""


GENERALIZED = frozenset(GENERAL)
"""Ops that the device runs in their general form: all that have one."""


def supports(
    node: Tensor, name: str, lacks: Callable[[Tensor], str | None] = lambda node: None
) -> Support:
    """Whether there are kernels for a node, or for its general form; views need none.

    `lacks` may say what a device lacks for the kernels of a node. A refusal is a sentence."""

    def why_not(node: Tensor) -> str | None:
        return _why_not(node) or lacks(node)

    why = why_not_general(node, GENERALIZED, why_not)
    return YES if why is None else Support(False, f"{node.op} on {name}: {why}")


def _why_not(node: Tensor) -> str | None:
    if node.op.is_view or node.op is NONE:
        return None
    family = find_family(node.op.name)
    if family is None:
        return _LEFT_OUT.get(node.op.name, "no kernel for this op")
    return family.refuse(node)


class KernelRules:
    """The nodes that every device of a kind takes."""

    generalizes = GENERALIZED

    def __init__(self, name: str) -> None:
        self.name = name

    def supports_op(self, node: Tensor) -> Support:
        """Supports the nodes for which there are kernels."""
        return supports(node, self.name)
