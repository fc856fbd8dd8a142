"""What the tests of this folder have in common."""

from tests.frontends.fx.operators import operators_once

__all__ = ["operators_once"]
