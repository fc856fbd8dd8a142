"""Visitors, a file per family. Importing this package registers all of them."""

from weft.frontends.fx.ops import elementwise, matmul, shape

__all__ = ["elementwise", "matmul", "shape"]
