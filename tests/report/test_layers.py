"""Which nodes of a graph are layers, and which layers repeat."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.llm.paper_model import LLAMA_7B, MIXTRAL, paper_model
from weft.llm.planning.prepare import prepare
from weft.report import regime_data
from weft.report.layers import blocks_of, folds_of, layers_data, number_in
from weft.schedule import load_profile
from weft.schedule.machine import paper_devices


def regime(folder: Path, hyper: dict[str, int], **options: Any) -> dict[str, Any]:
    """The graph of single tokens of a model on a machine with a gpu."""
    devices = paper_devices(load_profile("desktop-rtx4090"))
    plan = prepare(paper_model(folder, hyper), n_outputs=1, n_ctx=256, devices=devices, **options)
    return regime_data(plan.regimes[0].plan)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("blk.3.attn_q.weight", 3), ("cache_k_12", 12), ("model.layers.7.mlp.weight", 7),
        ("0.n.bias", 0), ("output.weight", None), ("layer1.conv.weight", None), ("q8_0", 0),
    ],
)  # fmt: skip
def test_numbers_in_names(name: str, number: int | None) -> None:
    assert number_in(name) == number


def test_numbers_at_the_end() -> None:
    assert number_in("l_out-31", "-") == 31
    assert number_in("l_out-31 (view)", "-") == 31
    assert number_in("l_out-31.weight", "-") is None


def test_a_layer_begins_with_what_names_nothing() -> None:
    layers = [-1, None, 0, None, 0, None, 1, 1, None, -1, None]
    assert [tuple(block) for block in blocks_of(layers)] == [
        (0, 1, ""), (1, 5, "layer 0"), (5, 8, "layer 1"), (8, 11, ""),
    ]  # fmt: skip
    assert blocks_of([None, None])[0].name == "" and blocks_of([]) == []


def test_what_repeats_is_folded() -> None:
    assert folds_of(list("iaaaao")) == [[1, 1, 4]]
    assert folds_of(list("aaabaaabaaab")) == [[0, 4, 3]]
    assert folds_of(list("abc")) == [] and folds_of([]) == []
    assert folds_of(list("aabbcc")) == [[0, 1, 2], [2, 1, 2], [4, 1, 2]]


def test_a_mixture_of_experts_folds_by_device(tmp_path: Path) -> None:
    data = regime(tmp_path, MIXTRAL, n_gpu_layers=20)
    blocks, folds = data["layers"]["blocks"], data["layers"]["folds"]
    names = [name for _, _, name in blocks]
    assert [n for n in names if n] == [f"layer {i}" for i in range(32)]
    folded = [[names[at], times] for at, period, times in folds if period == 1]
    # layers of the host, then those of the gpu; the first and last ones differ from the others
    assert folded == [["layer 0", 11], ["layer 12", 19]]
    assert blocks[0][0] == data["layers"]["first"] and blocks[-1][1] == len(data["tensors"]["name"])
    assert all(a[1] == b[0] for a, b in pairwise(blocks))


def test_folded_layers_are_alike(tmp_path: Path) -> None:
    data = regime(tmp_path, LLAMA_7B, n_gpu_layers=99)
    columns, blocks = data["tensors"], data["layers"]["blocks"]
    assert data["layers"]["folds"]
    for at, period, times in data["layers"]["folds"]:
        spans = [blocks[at + k * period : at + (k + 1) * period] for k in range(times)]
        for key in ("op", "shape", "type", "device", "kind"):
            seen = [[columns[key][r] for b in s for r in range(b[0], b[1])] for s in spans]
            assert all(one == seen[0] for one in seen[1:]), key


def test_a_number_that_names_no_layer() -> None:
    columns: dict[str, list[Any]] = {
        "name": ["mix_1", "a", "b"], "time": [-1, 0, 1], "kind": ["weights", "node", "node"],
        "src": [[], [0], [1]], "view": [-1, -1, -1], "split": [-1, 0, 0],
        "op": ["NONE", "ADD", "MUL"],
        "shape": ["[1]"] * 3, "type": ["f32"] * 3, "device": [0] * 3, "cause": [""] * 3,
        "refused": [None] * 3,
    }  # fmt: skip
    assert layers_data(columns, [{"inputs": []}])["blocks"] == [[1, 3, ""]]
