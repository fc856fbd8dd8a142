"""Names of the tensors of models, beside those in logs of llama.cpp."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.llm.made_models import context
from tests.llm.other_models import OTHERS, make_other
from tests.llm.tiny import write_model
from weft import graph as G
from weft.graph.tensor import Buffer
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.models.names import name_tensors, own_name

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).resolve().parents[3] / "shared/vectors/models/archs"
THEIRS: dict[str, list[str]] = json.loads((DATA / "llama_cpp_names.json").read_text())
"""Names in logs of llama.cpp by golden model, with N for the numbers of layers; without names of
views."""

ELSEWHERE = {
    "ffn_moe_argsort-N", "ffn_moe_weights_sum_clamped-N", "wqkv_clamped-N", "Qcur_scaled-N",
    "ffn_sub_out-N", "ffn_down-N", "inp_norm-N", "result_embd_pooled", "ffn_post_norm",
}  # fmt: skip
"""Tensors that weft's graphs lack, or that llama.cpp gives the number of another layer or none."""


def names_of(context: Context) -> list[str]:
    return [node.name for node in context.plan.plan.schedule.graph.nodes]


@pytest.mark.parametrize("name", THEIRS)
def test_golden_models_have_the_names_of_llama_cpp(name: str) -> None:
    path = DATA / "vectors/models/archs" / f"{name}.gguf"
    path = path if path.exists() else SHARED / f"{name}.gguf"
    if not path.exists():
        pytest.skip("the golden models (../shared/vectors) are not part of a public clone")
    c = Context(Model.open(path), 64, devices=["cpu"], embeddings="bert" in name)
    ours = {re.sub(r"-\d+", "-N", node) for node in names_of(c)}
    missing = (
        {own_name(t.replace("-N", "-7")).replace("-7", "-N") for t in THEIRS[name]}
        - ours
        - ELSEWHERE
    )
    assert not missing


@pytest.mark.parametrize("name", OTHERS)
def test_most_nodes_have_a_name(name: str, tmp_path: Path) -> None:
    """Among them all that read a weight, with the weight's layer."""
    path = write_model(tmp_path / "m.gguf", *make_other(tmp_path, name))
    nodes = context(path).plan.plan.schedule.graph.nodes
    named = [node for node in nodes if not node.name.startswith("node_")]
    assert len(named) > (0.4 if "rwkv" in name else 0.65) * len(nodes)
    for node in nodes:
        leaf = node.src[0]
        if node.op.name == "MUL_MAT" and leaf is not None and leaf.buffer is not None:
            if leaf.buffer.usage == "weights" and leaf.name.startswith("blk."):
                assert node.name.endswith(f"-{leaf.name.split('.')[1]}"), (node.name, leaf.name)


def weight(name: str, *shape: int) -> G.Tensor:
    tensor = G.input(name, shape, "f32")
    tensor.flags, tensor.buffer = frozenset(), Buffer("weights")
    return tensor


def test_names_follow_weights_ops_and_names_before() -> None:
    """A name that was given stays; what a name before does not tell has its number."""
    x = G.input("x", (3, 8), "f32")
    y = G.mul(G.rms_norm(x, 1e-5), weight("blk.7.attn_norm.weight", 8))
    q = G.add(G.mul_mat(weight("blk.7.attn_q.weight", 8, 8), y), weight("blk.7.attn_q.bias", 8))
    q = G.permute(G.reshape(q, 4, 2, 3), 0, 2, 1, 3)
    down = G.mul_mat(weight("blk.7.ffn_down.weight", 8, 8), G.silu(y))
    down = G.add(down, weight("blk.7.ffn_down.bias", 8))
    own = G.mul_mat(weight("blk.7.odd.weight", 8, 8), down)
    graph = G.Graph(q, G.add(own, x).named("mine"))
    name_tensors(graph)
    assert [node.name for node in graph.nodes] == [
        "norm-7", "attn_norm-7", "Qcur-7", "Qcur-7", "Qcur-7", "Qcur-7 (permuted)",
        "node_6", "ffn_down-7", "ffn_out-7", "odd-7", "mine",
    ]  # fmt: skip
    name_tensors(graph)
    assert graph.nodes[-1].name == "mine"


def test_names_of_other_versions_lead_to_the_same_tensor() -> None:
    assert own_name("inp_embd") == "embd" and own_name("result_output") == "logits"
    assert own_name("model.layers.{}.conv.in_proj-3") == "shortconv.in_proj-3"
    assert own_name("post_attn_norm-11 (view)") == "attn_post_norm-11 (view)"
