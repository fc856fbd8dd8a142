"""Types for a budget: what is measured, what is chosen, and the plan file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.tiny import write_wide_model
from weft.errors import ContextError, FormatError, OutOfMemoryError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.imatrix_file import Importance
from weft.frontends.gguf.mixes import Choices
from weft.llm import LLM, DraftOptions, Model
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.fitting.baseline import Held, Text, text_of, write_text
from weft.llm.fitting.budget import Budget, file_bytes
from weft.llm.fitting.choices import groups_of
from weft.llm.fitting.fit import Fit, FitOptions, fit, manner_for
from weft.llm.fitting.measured import (
    Kept,
    cache_pairs,
    digest_of,
    measure,
    n_probes,
    relative_error,
    usual_pairs,
)
from weft.llm.fitting.plan_file import fit_data, types_in_plan
from weft.llm.fitting.sizes import Sizes, plan_to_run

DEMO = Path(__file__).resolve().parents[3] / "examples" / "weft-demo.gguf"
FEW = ("q5_0", "q4_0", "q2_0")


def own_text(model: Model) -> Text:
    return write_text(model, 64, 4, 1)


@pytest.fixture(scope="module")
def found() -> Fit:
    options = FitOptions(Budget(file=650_000), 256, "each", FEW, keep=False)
    return fit(open_gguf(DEMO), options, own_text)


def test_the_choice_is_within_the_budget_and_better_than_mixes(found: Fit) -> None:
    assert found.solved.file <= 650_000
    assert len(found.tried) > 1
    assert found.best.choice is found.solved
    assert all(t.choice.file <= 650_000 for t in found.tried)
    assert [t.kl for t in found.tried] == sorted(t.kl for t in found.tried)
    types = found.fitting.by_tensor(found.solved.types)
    assert found.solved.file == file_bytes(found.file, types)


def test_a_larger_size_is_never_worse_on_the_curve(found: Fit) -> None:
    sizes = [c.whole.weights for c in found.curve]
    costs = [c.kl for c in found.curve]
    assert len(costs) > 5
    assert sizes == sorted(sizes) and costs == sorted(costs, reverse=True)


def test_what_is_measured_is_the_same_each_time(tmp_path: Path) -> None:
    file = open_gguf(DEMO)
    groups = groups_of(file, types=("q4_0",))[:6]
    model = Model(file)
    text = own_text(model)
    assert np.array_equal(own_text(Model(file)).chunks, text.chunks)
    runs = [
        measure(file, groups, "each", Held(model, text, repack=False), Kept(None)) for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert all(kl > 0 for row in runs[0].values() for name, kl in row.items() if name == "q4_0")
    path = tmp_path / "kept.jsonl"
    measure(file, groups, "each", Held(model, text, repack=False), Kept(path))
    assert measure(file, groups, "each", None, Kept(path)) == runs[0]  # nothing is left to measure


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    file = open_gguf(DEMO)
    groups = groups_of(file, types=("q4_0",))[:4]
    held = Held(Model(file), own_text(Model(file)), repack=False)
    path = tmp_path / "kept.jsonl"

    def kill(done: int, total: int, what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(file, groups, "each", held, Kept(path), progress=kill)
    with path.open("ab") as torn:
        torn.write(b'{"key": "kl blk.0.attn_k.weight q4_0", "val')
    kept = Kept(path)
    assert len(kept) == 2
    whole = measure(file, groups, "each", held, kept)
    assert whole == measure(file, groups, "each", held, Kept(None))


def test_damaged_lines_of_kept_figures_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    path.write_bytes(
        b'\xff\xfe\n[]\n{"key": 1, "value": 2}\n{"key": "a", "value": NaN}\n'
        b'{"key": "b", "value": 0.5}\n' + b"[" * 5000 + b"\n"
    )
    kept = Kept(path)
    assert len(kept) == 1 and kept.get("b") == 0.5
    kept.add("c", 0.25)
    assert Kept(path).get("c") == 0.25


def test_another_text_or_model_is_kept_apart(tmp_path: Path) -> None:
    one, other = open_gguf(DEMO), open_gguf(write_wide_model(tmp_path / "wide.gguf"))
    assert digest_of(one, "a") == digest_of(one, "a")
    assert len({digest_of(one, "a"), digest_of(one, "b"), digest_of(other, "a")}) == 3


def test_errors_grow_as_bits_go(tmp_path: Path) -> None:
    file = open_gguf(write_wide_model(tmp_path / "wide.gguf"))
    group = next(g for g in groups_of(file) if len(g.types) > 8)
    t = file.tensors[group.tensors[0]]
    by_name = {d.name: relative_error(t, d) for d in group.types}
    assert by_name["q8_0"] < by_name["q6_K"] < by_name["q4_K"] < by_name["q2_K"] < 1
    weights = Importance({t.name: np.zeros(t.ne[0], np.float32)}, {})
    weights.weights[t.name][0] = 1
    q4_0 = next(d for d in group.types if d.name == "q4_0")
    assert relative_error(t, q4_0, weights) != by_name["q4_0"]


def test_scaled_costs_one_probe_for_each_group_and_keeps_the_order() -> None:
    file = open_gguf(DEMO)
    groups = groups_of(file, types=("q5_0", "q4_0", "q1_0"))
    assert n_probes(groups, "scaled") == len(groups)
    assert n_probes(groups, "each") == 3 * len(groups)
    assert n_probes(groups, "error") == 0
    text = own_text(Model(file))
    costs = measure(file, groups[:3], "scaled", Held(Model(file), text, repack=False), Kept(None))
    for row in costs.values():
        assert 0 == row["q8_0"] < row["q5_0"] < row["q4_0"] < row["q1_0"]
    assert manner_for(groups, file, 100) == "each"
    assert manner_for(groups, file, 10**12) == "scaled"


def test_many_tensors_join_by_role() -> None:
    file = open_gguf(DEMO)
    groups = groups_of(file, most=22)
    assert len(groups) == 22
    names = [name for group in groups for name in group.tensors]
    assert sorted(names) == sorted(n for g in groups_of(file) for n in g.tensors)
    assert any(group.name == "blk.0-1.ffn_up.weight" for group in groups)


def test_sizes_are_those_of_whole_plans() -> None:
    file = open_gguf(DEMO)
    groups = groups_of(file, types=FEW)
    sizes = Sizes(file, groups, 128)
    for index in range(4):
        types = {g.name: g.types[(index + i) % 4] for i, g in enumerate(groups)}
        whole = sizes.whole({n: types[g.name] for g in groups for n in g.tensors})
        parts = sum(sizes.nbytes(g, types[g.name]) for g in groups)
        assert whole.nbytes - sizes.fixed_bytes - parts < 20_000  # buffers that depend on types
        assert whole.cache == 128 * 5 * 2 * 64 * 2


def test_an_impossible_budget_names_the_least() -> None:
    file = open_gguf(DEMO)

    def never(model: Model) -> Text:
        raise AssertionError("nothing is measured for a budget that cannot be")

    with pytest.raises(OutOfMemoryError, match=r"no types fit into 1.00 MiB: .* smallest take"):
        fit(file, FitOptions(Budget(memory=1 << 20), 256, keep=False), never)
    with pytest.raises(OutOfMemoryError, match="the smallest make one of"):
        fit(file, FitOptions(Budget(file=1000), 256, keep=False), never)


def test_cache_types_are_chosen_where_the_context_takes_much() -> None:
    file = open_gguf(DEMO)
    groups = groups_of(file, types=FEW)
    n_ctx = 8192
    with_f16 = Sizes(file, groups, n_ctx).whole({})
    budget = Budget(memory=with_f16.nbytes - with_f16.cache // 3)
    options = FitOptions(budget, n_ctx, "scaled", FEW, keep=False)
    found = fit(file, options, own_text)
    assert found.best.choice.cache != CacheTypes("f16", "f16")
    assert found.best.choice.whole.nbytes <= budget.memory  # type: ignore[operator]
    asked = FitOptions(budget, n_ctx, "scaled", FEW, cache=CacheTypes("f16", "f16"), keep=False)
    with pytest.raises(OutOfMemoryError, match="as f16/f16"):
        fit(file, asked, own_text)


def test_pairs_of_cache_types_need_whole_blocks(tmp_path: Path) -> None:
    demo = Model.open(DEMO).config
    assert len(cache_pairs(demo)) == 81
    assert str(usual_pairs(demo)[0]) == "f16/f16"
    bits = {"f16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5,
            "iq4_nl": 4.5}  # fmt: skip
    assert all(bits[p.type_v] <= bits[p.type_k] for p in usual_pairs(demo))


def test_a_users_types_stay() -> None:
    import re

    file = open_gguf(DEMO)
    q8_0 = file.tensors["token_embd.weight"].dtype
    choices = Choices(patterns=((re.compile("attn_v"), q8_0),))
    fixed = [g for g in groups_of(file, choices) if len(g.types) == 1]
    assert [g.name for g in fixed] == [f"blk.{i}.attn_v.weight" for i in range(5)]


def test_short_texts_are_refused() -> None:
    with pytest.raises(ContextError, match="at least 16 are needed"):
        text_of([1] * 15, 512, None, None)
    assert text_of([1] * 20, 512, None, None).chunks.shape == (1, 20)


def test_a_plan_is_used_again(found: Fit, tmp_path: Path) -> None:
    data = json.loads(json.dumps(fit_data(found)))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    types, cache = types_in_plan(path, found.file)
    assert types == found.fitting.by_tensor(found.best.choice.types)
    assert cache == ""
    assert sum(row["bytes"] for row in data["tensors"]) < data["chosen"]["file"]
    for row in data["tensors"]:
        assert row["why"] and math.isfinite(row["kl"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(format="other"), "format is not"),
        (lambda d: d.update(tensors=3), "must be a list"),
        (lambda d: d.update(tensors=[]), "names no tensors"),
        (lambda d: d.update(tensors=[7]), "no name or no type"),
        (lambda d: d["tensors"][0].update(name="nope"), "has no tensor 'nope'"),
        (lambda d: d["tensors"][0].update(type="q9_9"), "not a type of weights"),
        (lambda d: d["tensors"][0].update(type="q8_K"), "not a type of weights"),
        (lambda d: d["tensors"][0].update(type="q4_K"), "not whole blocks"),
        (lambda d: d["tensors"][0].update(name="output_norm.weight"), "cannot have another type"),
    ],
)
def test_a_damaged_plan_is_a_sentence(found: Fit, tmp_path: Path, change: Any, said: str) -> None:
    data = json.loads(json.dumps(fit_data(found)))
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError, match=said):
        types_in_plan(path, found.file)


def test_memory_is_what_a_text_takes() -> None:
    """Logits of one text and its drafts are counted, not the logits of a whole ubatch."""
    with LLM(DEMO, n_ctx=256, n_threads=1, drafting=DraftOptions()) as llm:
        planned = plan_to_run(Model.open(DEMO), 256, {"n_threads": 1})
        assert planned.memory_rows() == llm.context.plan.memory_rows()
