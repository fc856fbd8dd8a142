"""Contexts over repacked weights: the same logits, shared memory, honest numbers."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.panels import PanelCpu
from tests.llm.tiny import metadata, weights, write_model
from tests.native.test_level_products import random_weights
from weft import _native, quants
from weft.backends import make_backend
from weft.backends.cpu.record import best_target
from weft.backends.cpu.repack import PanelBufferType, PanelMemory
from weft.backends.memory import HostMemory, Memory
from weft.dtype import DTYPES
from weft.errors import FormatError, OutOfMemoryError
from weft.execute import ArenaPool
from weft.frontends.gguf.writer import write_gguf
from weft.llm import Context, Model
from weft.llm.cache import memory as memory_module
from weft.llm.compute import graphs as graphs_module
from weft.llm.compute.in_place import can_wait
from weft.llm.planning.prepare import prepare
from weft.program import BufferSpec

TOKENS = [1, *range(259, 274), 7, 8, 9, 10]
META = {"llama.embedding_length": 32, "llama.feed_forward_length": 64}


def write(folder: Path, *, tied: bool = False, **changes: Any) -> Path:
    meta = metadata(**META, **changes)
    meta["tokenizer.ggml.tokens"] = [*meta["tokenizer.ggml.tokens"], *(f"x{i}" for i in range(14))]
    meta["tokenizer.ggml.scores"] = np.zeros(288, np.float32)
    meta["tokenizer.ggml.token_type"] = np.ones(288, np.int32)
    tensors = weights(meta)
    if tied:
        del tensors["output.weight"]
    return write_model(folder / "m.gguf", meta, tensors)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model.open(write(tmp_path))


def context(model: Model, **options: Any) -> Context:
    return Context(model, 32, **({"devices": [PanelCpu()]} | options))


def bound(ctx: Context) -> list[tuple[BufferSpec, Memory]]:
    """The buffers of a context's program, and their memory."""
    held = ctx.regimes[-1].session._bound.memories
    return list(zip(ctx.program.buffers, held, strict=True))


def memories(ctx: Context) -> dict[str, PanelMemory]:
    program = ctx.program
    results = {}
    for spec, memory in zip(program.buffers, ctx.regimes[-1].session._bound.memories, strict=True):
        if spec.matrix is not None:
            assert isinstance(memory, PanelMemory)
            results[spec.matrix.name] = memory
    return results


def test_logits_and_what_is_repacked(model: Model) -> None:
    plain, packed = context(model, repack=False), context(model)
    assert not memories(plain) and plain.memory.repacked == 0
    names = {name.split(".")[-2] for name in memories(packed)}
    # keys and values have 16 rows, half a panel; the embedding is read row by row
    assert names == {"attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"}
    np.testing.assert_array_equal(
        plain.decode(TOKENS, outputs="all"), packed.decode(TOKENS, outputs="all")
    )


def test_tied_embeddings_stay(tmp_path: Path) -> None:
    model = Model.open(write(tmp_path, tied=True))
    names = set(memories(context(model)))
    assert not any("embd" in name or "output.weight" == name for name in names)
    assert "blk.0.ffn_up.weight" in names


def test_experts(tmp_path: Path) -> None:
    model = Model.open(write(tmp_path, **{"llama.expert_count": 4, "llama.expert_used_count": 2}))
    packed = context(model)
    held_memories = memories(packed)
    assert held_memories["blk.1.ffn_up_exps.weight"].nbytes == 4 * 32 * 64 * 4
    np.testing.assert_array_equal(
        packed.decode(TOKENS), context(model, repack=False).decode(TOKENS)
    )


def test_one_regime_on_another_device_decides(model: Model) -> None:
    blas = make_backend("blas")
    prepared = prepare(model, n_ctx=64, n_ubatch=64, devices=[blas, PanelCpu()])
    assert len(prepared.regimes) > 1
    products = {
        node.src[0].name
        for split in prepared.plan.schedule.splits
        if split.backend == 0
        for node in split.nodes
        if node.src[0] is not None
    }
    assert products
    for regime in prepared.regimes:
        assert not products & {leaf.name for leaf in regime.plan.layouts}


def test_contexts_share_and_let_go(model: Model) -> None:
    first, second = context(model), context(model)
    a, b = memories(first), memories(second)
    assert a and all(a[name] is b[name] for name in a)
    other = Model.open(model.file.path)
    assert memories(context(other))["output.weight"] is not a["output.weight"]
    import weakref

    alive = weakref.ref(a["output.weight"])
    del first, second, a, b
    gc.collect()
    assert alive() is None
    del other


def test_progress(model: Model) -> None:
    seen: list[tuple[int, int]] = []
    ctx = context(model, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (ctx.memory.repacked,) * 2
    assert len(seen) == len(memories(ctx)) and seen == sorted(seen)


def test_numbers(model: Model) -> None:
    packed, plain = context(model), context(model, repack=False)
    rows = {(r["buffer"], r["memory"]): r["bytes"] for r in packed.plan.memory_rows()}
    size = sum(m.nbytes for m in memories(packed).values())
    assert rows["weights", "CPU_R32"] == size == packed.memory.repacked
    assert rows["weights", "CPU"] + size == plain.memory.weights
    # what is asked of the system counts, whether anyone has set a limit or not
    need = packed.plan.needs()[0]
    assert need.total == plain.plan.needs()[0].total


@pytest.fixture
def codebook(tmp_path: Path) -> Model:
    """A model of 256 wide rows, its matrices of random iq2_s, iq3_xxs and iq1_m; with experts. Its
    embedding and output are q8_0, whose panels have the bits of rows."""
    meta = metadata(**{
        "llama.embedding_length": 256, "llama.feed_forward_length": 256,
        "llama.expert_count": 4, "llama.expert_used_count": 2,
    })  # fmt: skip
    rows = []
    for i, (name, a) in enumerate(weights(meta).items()):
        is_matrix = a.ndim >= 2 and name[:3] == "blk" and "gate_inp" not in name
        is_table = a.ndim >= 2 and name[:3] != "blk"
        kind = ("iq2_s", "iq3_xxs", "iq1_m")[i % 3] if is_matrix else "q8_0" if is_table else "f32"
        if is_table:
            data = quants.encode(a, DTYPES[kind])
        elif not is_matrix:
            data = a
        else:
            data = random_weights(DTYPES[kind], a.size // 256, scale=2.0**-8)
        rows.append((name, kind, a.shape[::-1], data.tobytes()))
    write_gguf(tmp_path / "codebook.gguf", meta, rows)
    return Model.open(tmp_path / "codebook.gguf")


LEVELS = pytest.mark.skipif(
    not _native.level_types(best_target()), reason="no kernels of this machine read levels"
)


@LEVELS
def test_codebook_weights_become_levels(codebook: Model) -> None:
    options: dict[str, Any] = {"devices": ["cpu"]}
    plain, packed = context(codebook, repack=False, **options), context(codebook, **options)
    later = context(codebook, repack_later=True, **options)
    rows = {(r["buffer"], r["memory"]): r["bytes"] for r in packed.plan.memory_rows()}
    names = {leaf.name for leaf, to in packed.plan.plan.layouts.items() if to.name == "CPU_L32"}
    in_file = sum(codebook.weights[name].max_bytes for name in names)
    assert "blk.0.ffn_down_exps.weight" in names and "blk.1.attn_q.weight" in names
    assert 1.2 * in_file < rows["weights", "CPU_L32"] < 1.6 * in_file
    for tokens in (TOKENS, [9], [11, 12, 13], [4]):
        want = plain.decode(tokens, outputs="all")
        assert np.isfinite(want).all() and np.ptp(want) > 0.01
        np.testing.assert_array_equal(packed.decode(tokens, outputs="all"), want)
        np.testing.assert_array_equal(later.decode(tokens, outputs="all"), want)


@LEVELS
def test_levels_give_way_to_the_file(codebook: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"devices": ["cpu"]}
    plain = context(codebook, repack=False, **options)
    held = context(codebook, **options).memory
    monkeypatch.setattr(
        memory_module, "available_bytes", lambda: held.cache + held.compute + held.repacked - 1
    )
    with pytest.warns(UserWarning, match="codebook weights stay as the file has them, slower: "):
        kept = context(codebook, **options)
    assert not any(to.name == "CPU_L32" for to in kept.plan.plan.layouts.values())
    np.testing.assert_array_equal(kept.decode(TOKENS), plain.decode(TOKENS))


def test_too_little_memory(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(model, repack=False)
    enough = ctx.memory.cache + ctx.memory.compute
    monkeypatch.setattr(memory_module, "available_bytes", lambda: enough + 100)
    context(model, repack=False)
    with pytest.raises(OutOfMemoryError, match=r"repacked weights.*with repack off"):
        context(model)


def test_limits_that_the_caller_sets_count_it(model: Model) -> None:
    total = context(model).plan.needs()[0].total
    context(model, memory={"cpu": total})
    with pytest.raises(OutOfMemoryError, match="repacked weights"):
        context(model, memory={"cpu": total - 1})


def test_plan_files_keep_the_choice(model: Model) -> None:
    for repack in (True, False):
        prepared = prepare(model, n_ctx=32, devices=[PanelCpu()], repack=repack)
        saved = json.loads(json.dumps(prepared.to_json()))
        again = prepare(model, devices=[PanelCpu()], plan=saved)
        assert again.memory_rows() == prepared.memory_rows()
        assert bool(again.plan.layouts) == repack
        with pytest.raises(FormatError, match="repack"):
            prepare(model, devices=[PanelCpu()], plan=saved, repack=not repack)


@pytest.fixture
def quantized(tmp_path: Path) -> Model:
    """The same model with matrices of q8_0."""
    meta = dict(Model.open(write(tmp_path)).file.metadata)
    rows = []
    for name, a in weights(meta).items():
        is_matrix = a.ndim == 2 and name != "token_embd.weight"
        data = quants.encode(a, DTYPES["q8_0"]) if is_matrix else a
        rows.append((name, "q8_0" if is_matrix else "f32", a.shape[::-1], data.tobytes()))
    write_gguf(tmp_path / "q8_0.gguf", meta, rows)
    return Model.open(tmp_path / "q8_0.gguf")


def test_float_weights_wait_in_the_order_of_panels(model: Model) -> None:
    """Rows of floats are summed otherwise than panels, unless they are to be repacked."""
    options: dict[str, Any] = {"devices": ["cpu"]}
    waits, packed = context(model, repack_later=True, **options), context(model, **options)
    if not memories(packed):
        pytest.skip("this machine's kernels have no panels of floats")
    in_rows = [m for spec, m in bound(waits) if spec.matrix is not None]
    assert in_rows and all(isinstance(m, HostMemory) for m in in_rows)
    for tokens in (TOKENS, [9], [4]):
        np.testing.assert_array_equal(waits.decode(tokens), packed.decode(tokens))
    assert {*memories(waits)} == {*memories(packed)}


def test_repacked_after_the_first_batch_gives_the_same_bits(quantized: Model) -> None:
    model = quantized
    waits, packed = context(model, repack_later=True), context(model)
    assert not memories(waits) and waits.memory.repacked == packed.memory.repacked
    for tokens in (TOKENS, [9], [11, 12, 13], [4]):
        np.testing.assert_array_equal(waits.decode(tokens), packed.decode(tokens))
    assert {*memories(waits)} == {*memories(packed)}
    assert waits.counters.graphs_built == packed.counters.graphs_built


def test_rows_are_repacked_for_a_long_prompt_and_on_request(
    quantized: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantized
    asked = context(model, repack_later=True)
    asked.repack()
    asked.repack()
    assert memories(asked)
    monkeypatch.setattr(graphs_module, "MOST_IN_PLACE", len(TOKENS) - 1)
    long = context(model, repack_later=True)
    long.decode(TOKENS)
    assert memories(long)


def test_weights_stay_in_place_without_the_memory_to_repack(
    quantized: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantized
    waits, packed = context(model, repack_later=True), context(model)
    waits.decode(TOKENS)

    def refuse(*_: Any, **__: Any) -> None:
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(ArenaPool, "load", refuse)
    with pytest.warns(UserWarning, match="weights stay as the file has them, slower: no room"):
        row = waits.decode([9])
    packed.decode(TOKENS)
    np.testing.assert_array_equal(row, packed.decode([9]))
    np.testing.assert_array_equal(waits.decode([4]), packed.decode([4]))
    assert not memories(waits)


def test_only_panels_wait(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other layout is known to give the bits of rows."""
    plan = prepare(model, n_ctx=32, devices=[PanelCpu()]).plan
    assert can_wait([plan])
    assert not can_wait([replace(plan, layouts={})])
    monkeypatch.setattr(PanelBufferType, "layout", "lookup")
    assert not can_wait([plan])
