"""Named graph rewrites (fusions). Each has a name, so that it can be reported and switched off.

There are none yet that change a graph; the stage stands in the pipeline so that adding one touches
this file only.
"""

from __future__ import annotations

from weft.graph.graph import Graph

__all__ = ["rewrite"]


def rewrite(graph: Graph) -> Graph:
    """The graph after every rewrite that is switched on."""
    return graph
