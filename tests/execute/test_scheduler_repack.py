"""The scheduler repacks weights where it is told to."""

from __future__ import annotations

import numpy as np

from tests.backends.panels import PanelCpu
from tests.execute.llama_graph import LlamaGraph
from weft.execute import Scheduler


def logits(scheduler: Scheduler, llama: LlamaGraph) -> list[np.ndarray]:
    rows = []
    for inputs in llama.batches():
        scheduler.reset()
        scheduler.compute(llama.graph, inputs)
        rows.append(scheduler.get("logits"))
    return rows


def test_the_same_logits() -> None:
    plain, packed = Scheduler([PanelCpu()]), Scheduler([PanelCpu()], repack=True)
    llama = LlamaGraph()
    for expected, repacked in zip(logits(plain, llama), logits(packed, LlamaGraph()), strict=True):
        np.testing.assert_array_equal(repacked, expected)
    weights = {t.name: t for t in llama.graph.leaves}
    down = weights["blk.0.ffn_down.weight"]
    graphs = plain._graphs
    assert graphs.bound().program.tensors[graphs.index(down)].layout == "rows"


def test_repacked_weights_read_as_rows() -> None:
    llama = LlamaGraph()
    scheduler = Scheduler([PanelCpu()], repack=True)
    scheduler.compute(llama.graph, next(llama.batches()))
    down = next(t for t in llama.graph.leaves if t.name == "blk.0.ffn_down.weight")
    graphs = scheduler._graphs
    assert graphs.bound().program.tensors[graphs.index(down)].layout == "interleaved"
    assert down.buffer is not None
    rows = scheduler.get(down)
    np.testing.assert_array_equal(rows.reshape(-1).view(np.uint8), down.buffer.data)
