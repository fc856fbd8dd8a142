"""Graphs as text: refused with GraphError, or read, checked and written the same again."""

from __future__ import annotations

import random
from pathlib import Path

from tests.fuzz.mutate import mutate_text
from tests.fuzz.rounds import Round
from weft.backends.cases import all_cases
from weft.errors import GraphError
from weft.graph import Graph
from weft.graph.op import OPS
from weft.graph.text import format_graph, parse_graph

NATIVE = False

PIECES = ("sym n 1..8", "n", "-", "1d", "f32[1]", "q4_0[32, 1]", "input", "constant", "base",
          "leaf", "nb=[4, 4, 4, 4]", "view=%0+8", "flags=output", "buffer=weights+0", "%0",
          "%99", "max(", "ceil(", *sorted(OPS))  # fmt: skip


def prepare(folder: Path) -> Round:
    """Starts from a graph of every op."""
    texts = sorted({format_graph(Graph(case.node())) for case in all_cases()})

    def one(rng: random.Random) -> str:
        text = rng.choice(texts)
        if rng.randrange(4) == 0:
            text += rng.choice(texts)
        text = mutate_text(text, rng, PIECES)
        try:
            graph = parse_graph(text)
        except GraphError as error:
            assert len(str(error)) < 2000
            return "refused"
        written = format_graph(graph)
        assert format_graph(parse_graph(written)) == written
        return "read"

    return one
