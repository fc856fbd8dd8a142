"""Whole nodes of a Ray cluster that are lost while a text is written: their layers move to the
nodes that are left, then to this machine, and the text has the same tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import weft
from tests.cluster.test_ray_workers import (
    ACTOR,
    MODEL,
    PROMPT,
    N,
    end,
    go_on,
    program,
    read,
)
from tests.ray_nodes import Nodes, ray_nodes
from tests.worker_processes import runs

pytest.importorskip("ray")
pytestmark = [pytest.mark.part("cluster"), pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head and two nodes, with a CPU each."""
    with ray_nodes(1, 1, 1) as made:
        yield made


def test_layers_of_lost_nodes_move_to_who_is_left(nodes: Nodes) -> None:
    with weft.LLM(MODEL) as llm:
        expected = llm.generate(PROMPT, max_tokens=N, temperature=0)
    process = program(nodes, again=3, WEFT_MACHINE_TIMEOUT="4")
    lost: list[int] = []
    try:
        for loses in (True, False, True):
            assert read(process) == "writing"
            if loses:
                lost += nodes.lose(ACTOR)
            go_on(process)
        result: dict[str, Any] = json.loads(read(process))
        assert process.wait(120) == 0
    finally:
        end(process)
    assert result["texts"] == [expected] * 3
    assert len(result["devices"]) == 3 and result["now"] == ["cpu"]
    assert sum("going on without" in text for text in result["said"]) == 2
    assert not any(runs(pid) for pid in lost)
    assert nodes.wait_for_end(ACTOR) == []
