"""Importance matrices against llama-imatrix's, runs that go on, and merged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.llm.quality.golden import DATA, TEXT, f32_model, opened
from tests.llm.quality.mixture import write_mixture
from weft.errors import ContextError, FormatError
from weft.frontends.gguf.imatrix_file import Imatrix, ImatrixEntry, read_imatrix, write_imatrix
from weft.frontends.gguf.reader import open_gguf
from weft.llm import Context
from weft.llm.quality.imatrix import (
    ImatrixOptions,
    ImatrixRun,
    as_imatrix,
    imatrix_statistics,
    layer_statistics,
    merged,
)


@pytest.fixture(scope="module")
def f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return f32_model(tmp_path_factory.mktemp("imatrix"))


def a_run(model: Path, out: Path, options: ImatrixOptions) -> tuple[ImatrixRun, Context]:
    loaded, tokenizer, context = opened(model, 128, n_seq_max=2, states=True, n_outputs=40)
    ids = tokenizer.encode(TEXT)
    bos = tokenizer.vocab.bos
    return ImatrixRun(loaded, ids, out, options, bos=bos, text_name="questions.txt"), context


def alike(got: Imatrix, want: Imatrix, rel: float) -> None:
    assert got.entries.keys() == want.entries.keys()
    assert (got.datasets, got.chunk_count) == (want.datasets, want.chunk_count)
    for name, entry in want.entries.items():
        own = got.entries[name]
        assert own.counts.tolist() == entry.counts.tolist(), name
        off = np.linalg.norm((own.sums - entry.sums).astype(float)) / np.linalg.norm(entry.sums)
        assert off < rel, (name, off)


def test_the_file_is_that_of_llama_imatrix(f32: Path, tmp_path: Path) -> None:
    out = tmp_path / "imatrix.gguf"
    run, context = a_run(f32, out, ImatrixOptions(n_ctx=64))
    *_, last = run.measure(context)
    assert last.n_chunks == last.n_all == 16
    assert last.ppl is not None and last.ppl.value == pytest.approx(1.8299, abs=1e-4)
    alike(read_imatrix(out), read_imatrix(DATA / "imatrix.gguf"), 1e-5)
    own, want = out.read_bytes(), (DATA / "imatrix.gguf").read_bytes()
    assert len(own) == len(want) and own[:2500] == want[:2500]  # all but the numbers
    assert not context.is_watched


def test_the_older_format(f32: Path, tmp_path: Path) -> None:
    out = tmp_path / "imatrix.dat"
    run, context = a_run(f32, out, ImatrixOptions(n_ctx=64, legacy=True, ppl=False))
    context.set_eval_callback(callback := lambda tensor, ask: False)
    assert all(step.ppl is None for step in run.measure(context))
    assert context.eval_callback is callback
    alike(read_imatrix(out), read_imatrix(DATA / "imatrix.dat"), 1e-5)


def test_experts_have_counts_of_their_own(f32: Path, tmp_path: Path) -> None:
    write_mixture(f32, tmp_path / "mixture.gguf")
    out = tmp_path / "imatrix.gguf"
    options = ImatrixOptions(n_ctx=64, n_chunks=6, output=True)
    run, context = a_run(tmp_path / "mixture.gguf", out, options)
    list(run.measure(context))
    got = read_imatrix(out).entries
    want = json.loads((DATA / "mixture.json").read_text())
    assert got.keys() == want.keys() and "output.weight" in got
    for name, figures in want.items():
        assert got[name].counts.tolist() == figures["counts"], name
        totals = got[name].sums.astype(float).sum(axis=1)
        assert totals == pytest.approx(figures["totals"], rel=1e-4), name
    assert len(set(want["blk.0.ffn_up_exps.weight"]["counts"])) == 8


def test_a_killed_run_goes_on_with_the_same_sums(f32: Path, tmp_path: Path) -> None:
    options = ImatrixOptions(n_ctx=64, output_every=4, save_every=8)
    whole, context = a_run(f32, tmp_path / "whole.gguf", options)
    *_, want = whole.measure(context)

    out = tmp_path / "out.gguf"
    run, context = a_run(f32, out, options)
    for step in run.measure(context):
        if step.n_chunks == 6:
            break
    del run, step
    with open_gguf(out) as file:
        assert file.get_int("weft.imatrix.chunks_done", 0) == 4
    other, _ = a_run(f32, out, ImatrixOptions(n_ctx=64, n_chunks=5))
    assert other.n_done == 0  # other options
    again, context = a_run(f32, out, options)
    assert again.n_done == 4
    *_, last = again.measure(context)
    assert last.ppl == want.ppl and last.n_chunks == 16
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert "weft.imatrix.run" not in out.read_bytes().decode("latin-1")
    assert read_imatrix(tmp_path / "out.gguf.at_8").chunk_count == 8
    anew, _ = a_run(f32, out, options)
    assert anew.n_done == 0  # it was finished


def test_merged_files_are_sums(tmp_path: Path) -> None:
    def matrix(sums: list[list[float]], counts: list[int], legacy: bool = False) -> Imatrix:
        entry = ImatrixEntry(np.array(sums, np.float32), np.array(counts))
        return Imatrix({"blk.0.a.weight": entry}, ("t",), 1, 8, legacy, True)

    one = matrix([[1, 2], [3, 4]], [8, 16])
    both = merged([one, matrix([[10, 20], [30, 40]], [0, 8])], 8)["blk.0.a.weight"]
    assert both.squares.tolist() == [[11, 22], [33, 44]] and both.counts.tolist() == [8, 24]
    old = merged([matrix([[1, 2, 3, 4]], [5], legacy=True), one], 8)["blk.0.a.weight"]
    assert old.squares.tolist() == [[9, 18], [27, 36]] and old.counts.tolist() == [48, 56]
    result = as_imatrix(merged([one], 8), ["a", "b"], 8)
    assert result.chunk_count == 2 and result.datasets == ("a", "b")
    write_imatrix(tmp_path / "m.gguf", result)
    assert read_imatrix(tmp_path / "m.gguf").entries["blk.0.a.weight"].counts.tolist() == [8, 16]
    with pytest.raises(FormatError, match=r"cannot be merged: blk\.0\.a\.weight has 3 columns"):
        merged([one, matrix([[1, 2, 3]], [1])], 8)
    with pytest.raises(FormatError, match="not a number"):
        merged([matrix([[1, float("nan")]], [1])], 8)


def test_statistics() -> None:
    rows = imatrix_statistics(read_imatrix(DATA / "imatrix.gguf"))
    assert [row.name.split(".")[2] for row in rows[:5]] == ["attn_k"] * 5
    assert rows[0].total >= rows[1].total
    values = np.array([1.0, 1, 1, 5])
    sums = {"blk.1.x.weight": [4 * values], "blk.0.x.weight": [values]}
    entries = {n: ImatrixEntry(np.array(s, np.float32), np.array([4])) for n, s in sums.items()}
    first, second = imatrix_statistics(Imatrix(entries, (), 1, 4, False, True))
    assert (first.layer, first.total, first.mean, first.maximum) == (1, 8, 2, 5)
    assert first.deviation == pytest.approx(values.std()) and first.far == 0.25
    assert first.entropy == pytest.approx(-(0.375 * np.log2(0.125) + 0.625 * np.log2(0.625)))
    assert first.cosine == pytest.approx(1) and second.cosine == 0
    assert [layer.total for layer in layer_statistics([first, second])] == [2, 8]
    empty = {"a": ImatrixEntry(np.zeros((1, 2), np.float32), np.array([0]))}
    with pytest.raises(FormatError, match="all its counts are 0"):
        imatrix_statistics(Imatrix(empty, (), 0, 1, False, True))


def test_bad_options(f32: Path, tmp_path: Path) -> None:
    for options, what in (
        (ImatrixOptions(n_ctx=2), "n_ctx is 2"),
        (ImatrixOptions(n_ctx=64, n_chunks=0), "n_chunks is 0"),
        (ImatrixOptions(n_ctx=64, from_chunk=-1), "from_chunk is -1"),
        (ImatrixOptions(n_ctx=64, from_chunk=15), "from_chunk leaves out 960"),
        (ImatrixOptions(n_ctx=1024), "2048 are needed"),
    ):
        with pytest.raises(ContextError, match=what):
            a_run(f32, tmp_path / "x.gguf", options)
