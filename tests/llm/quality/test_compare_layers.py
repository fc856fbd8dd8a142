"""Layers of models beside the same models of transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from weft.errors import ContextError, FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, compare_layers

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")

FAMILIES = ("llama", "qwen3", "gemma2", "phi3", "gptneox", "falcon2", "mixtral", "granite",
            "mamba2", "qwen35", "bert", "deepseek2", "gemma3n")  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_agree_with_transformers(name: str, tmp_path: Path) -> None:
    """Also where a converter puts rows in another order, cuts matrices or multiplies them."""
    model = folders.make_folder(name, tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    for path in (tmp_path, tmp_path / "m.gguf"):
        found = compare_layers(path, model, folders.IDS)
        assert not found.differs, found.summary()
        names = {pair.name for pair in found.pairs}
        assert len(found.pairs) > 10 and f"{len(folders.IDS)} tokens" in found.about
        if name in ("llama", "qwen3", "granite", "mixtral"):
            assert {"embd", "attn_norm-0", "Qcur-1", "Kcur-1", "Vcur-0", "l_out-1"} < names


@pytest.mark.parametrize(
    ("name", "where", "first"),
    [
        ("llama", "model.layers.1.mlp.up_proj", "ffn_up-1"),
        ("llama", "model.layers.1.self_attn.k_proj", "Kcur-1"),
        ("gptneox", "gpt_neox.layers.0.attention.dense", "attn_out-0"),
        ("qwen3", "model.layers.0.self_attn.q_norm", "Qcur_normed-0"),
    ],
)
def test_a_planted_fault_is_found(name: str, where: str, first: str, tmp_path: Path) -> None:
    model = folders.make_folder(name, tmp_path)
    with torch.no_grad():
        model.get_submodule(where).weight.view(-1)[3] += 2.0
    found = compare_layers(tmp_path, model, folders.IDS)
    assert found.first is not None and found.first.name == first
    assert f"first tensor that differs: {first} (" in str(found)
    assert " here, " in found.summary() and "differs" in found.table()


def test_a_fault_between_modules_is_found_at_the_layer(tmp_path: Path) -> None:
    """The rotation has no weight, so the result of attention is the first that tells."""
    model = folders.make_folder("llama", tmp_path)
    model.model.rotary_emb.inv_freq *= 1.2
    found = compare_layers(tmp_path, model, folders.IDS)
    assert found.first is not None and found.first.name == "attn_out-0"


def test_a_text_and_an_open_model(tmp_path: Path) -> None:
    model = folders.make_folder("llama3", tmp_path)
    with LLM(tmp_path, n_ctx=64, devices=["cpu"]) as llm:
        found = compare_layers(llm, model, "the quick brown fox")
        assert not found.differs
        assert f", {len(llm.tokenize('the quick brown fox'))} tokens" in found.about
        assert llm.generate("the", max_tokens=2) is not None  # it goes on as before
    assert not compare_layers(tmp_path, model, "the quick").differs


def test_half_precision_has_bounds_of_its_own(tmp_path: Path) -> None:
    model = folders.make_folder("llama", tmp_path)
    found = compare_layers(tmp_path, model.to(torch.bfloat16), folders.IDS)
    assert "at most 1.0%" in found.about and not found.differs


def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = folders.make_folder("llama", tmp_path)
    with pytest.raises(ContextError, match="a model of transformers is needed, not Linear"):
        compare_layers(tmp_path, torch.nn.Linear(2, 2), [1])
    unknown = type("Unknown", (type(model),), {})(model.config)
    with pytest.raises(FormatError, match="which weft does not know"):
        compare_layers(tmp_path, unknown, [1])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ContextError, match=r"needs PyTorch and transformers; install it with `pip install"
    ):
        compare_layers(tmp_path, model, folders.IDS)
