"""Named rewrites: patterns of several nodes that become fewer weft ops.

A rewrite is tried at the last node of its pattern, before the op's visitor. It looks back through
the exported graph; where the pattern is another, it returns None, and the visitor builds the node.
Nodes inside of a pattern are never computed unless another node reads them.
"""

from weft.frontends.fx.rewrite import activation, attention, bytes, norm, rotary, scan
from weft.frontends.fx.rewrite.table import REWRITES, Rewrite, rewrite

__all__ = [
    "REWRITES",
    "Rewrite",
    "activation",
    "attention",
    "bytes",
    "norm",
    "rewrite",
    "rotary",
    "scan",
]
