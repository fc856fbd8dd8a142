"""Graphs of a context, run again or compiled anew each time: the same results, other counters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.llm.tiny import write_model
from weft.llm.compute.context import Context
from weft.llm.model import Model

TOKENS = [1, *range(259, 274), 7, 8]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.mark.parametrize("devices", [["cpu"], ["reference", "cpu"]])
def test_results_are_the_same_without_reuse(file: Path, devices: list[str]) -> None:
    def run(reuse: bool) -> tuple[list[np.ndarray], Context]:
        context = Context(Model.open(file), 64, devices=devices, n_ubatch=8)
        context.reuse_graphs = reuse
        rows = [context.decode(TOKENS, outputs="all"), context.decode([5]), context.decode([6, 7])]
        context.seq_add(0, 10, -1, 1)
        rows.append(context.decode([9]))
        return rows, context

    (want, on), (got, off) = run(True), run(False)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)
    n_runs = on.counters.graphs_reused
    assert n_runs == 6 and off.counters.graphs_reused == 0
    assert off.counters.graphs_built == on.counters.graphs_built + n_runs
    assert off.counters.reserves == on.counters.reserves + n_runs
    off.reuse_graphs = True
    off.decode([1])
    assert off.counters.graphs_reused == 1


def test_the_environment_switches_it_off(file: Path) -> None:
    code = (
        "import sys; from weft.llm import Context, Model\n"
        "c = Context(Model.open(sys.argv[1]), 64); c.decode([1, 2, 3]); c.decode([4])\n"
        "print(c.counters.graphs_reused, c.reuse_graphs)"
    )
    for value, said in (("0", "0 False"), ("1", "2 True")):
        process = subprocess.run(
            [sys.executable, "-c", code, str(file)],
            env=os.environ | {"WEFT_GRAPH_REUSE": value}, capture_output=True, text=True,
        )  # fmt: skip
        assert process.stdout.strip() == said, process.stderr
