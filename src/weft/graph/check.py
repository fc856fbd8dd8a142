"""placeholder until the graph branch lands"""
from weft.graph.graph import Graph
def check_graph(graph: Graph) -> None:
    """x"""
