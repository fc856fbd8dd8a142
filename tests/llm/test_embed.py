"""Texts and chunks in batches: what each is alone, whatever the model keeps of a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.encoder_models import make_encoder
from tests.llm.other_models import make_other as made
from tests.llm.tiny import metadata, write_model
from weft.errors import ContextError
from weft.llm import LLM, Context, Model
from weft.llm.compute.embed import embed_texts, sequences_for
from weft.llm.compute.perplexity import chunks_at_once, score_chunks
from weft.llm.planning.prepare import prepare

ARCHS = Path(__file__).resolve().parents[1] / "data/vectors/models/archs"
LENGTHS = (3, 9, 1, 30, 2, 2, 2, 50, 4, 4, 40, 1, 1, 1, 5)


def texts_of(model: Model) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(3, model.config.n_vocab, n).tolist() for n in LENGTHS]


def context(model: Model, n_seq_max: int = 1, **options: Any) -> Context:
    """A context on the reference, whose products have rows that do not depend on each other."""
    options = {"n_ubatch": 64, "devices": ["reference"], "flash": True} | options
    return Context(model, 64, n_seq_max=n_seq_max, **options)


def models(tmp_path: Path) -> dict[str, Model]:
    keys = metadata(**{"llama.context_length": 256})
    by_name = {p.stem: Model.open(p) for p in sorted(ARCHS.glob("*.gguf"))}
    by_name["tiny"] = Model.open(write_model(tmp_path / "tiny.gguf", keys))
    for name in ("mamba2", "lfm2", "cohere2", "bloom", "gpt2"):
        meta, tensors = made(tmp_path, name)
        by_name[name] = Model.open(write_model(tmp_path / f"{name}.gguf", meta, tensors))
    by_name["bert"] = Model.open(make_encoder(tmp_path)[0])
    return by_name


def test_texts_together_are_what_they_are_alone(tmp_path: Path) -> None:
    for name, model in models(tmp_path).items():
        texts = texts_of(model)
        together, alone = context(model, 8, embeddings=True), context(model, embeddings=True)
        for pooling in ("mean", "last", "cls", "none"):
            vectors = embed_texts(together, texts, pooling)
            for row, ids in zip(vectors, texts, strict=True):
                want = alone.embed(ids, pooling)
                assert row.shape == want.shape
                np.testing.assert_allclose(row, want, atol=2e-5, rtol=2e-5, err_msg=name)
        assert together.cache.n_used == 0
        runs = together.counters.graphs_reused
        embed_texts(together, texts, "mean")
        if model.config.recurrent is None:  # they did run together
            assert together.counters.graphs_reused - runs < len(texts), name


def test_texts_are_told_apart(tmp_path: Path) -> None:
    """A neighbour changes nothing."""
    model = models(tmp_path)["bert"]
    c = context(model, 4, embeddings=True)
    one = embed_texts(c, [[5, 6], [7, 8, 9]], "mean")
    two = embed_texts(c, [[5, 6], [9, 9, 9]], "mean")
    np.testing.assert_array_equal(one[0], two[0])
    assert np.abs(one[1] - two[1]).max() > 1e-4


def test_progress_and_mistakes(tmp_path: Path) -> None:
    model = models(tmp_path)["tiny"]
    c = context(model, 4, embeddings=True)
    told: list[tuple[int, int]] = []
    embed_texts(c, [[5]] * 6, progress=lambda *a: told.append(a))
    assert told == [(4, 6), (6, 6)]
    assert embed_texts(c, []) == []
    with pytest.raises(ContextError, match="a text has no tokens"):
        embed_texts(c, [[5], []])
    with pytest.raises(ContextError, match="embeddings=True"):
        embed_texts(context(model), [[5]])
    assert sequences_for(model.config, 0) == 1 and sequences_for(model.config, 10**6) == 32


def test_lists_of_an_llm(tmp_path: Path) -> None:
    for name in ("tiny", "bert"):
        llm = LLM(models(tmp_path)[name].file.path, n_threads=1)
        texts = ["the abc", "b", "abc " * 12, "teh"]
        alone = np.stack([llm.embed(text) for text in texts])
        np.testing.assert_allclose(llm.embed(texts), alone, atol=2e-4)  # f16 keys and values


def test_an_llm_that_follows_a_plan_file(tmp_path: Path) -> None:
    """The plan is of the context that writes; the others are on its devices."""
    path = models(tmp_path)["tiny"].file.path
    plan = prepare(Model.open(path), n_ctx=64, n_outputs=1, n_gpu_layers=1,
                   devices=["reference", "cpu"]).to_json()  # fmt: skip
    llm, plain = LLM(path, plan=plan), LLM(path, n_ctx=64, n_threads=1)
    ids = texts_of(llm.model)[7] * 4
    np.testing.assert_allclose(llm.embed("the abc"), plain.embed("the abc"), atol=2e-4)
    got, want = llm.perplexity(ids, n_ctx=16), plain.perplexity(ids, n_ctx=16)
    assert got.value == pytest.approx(want.value, rel=1e-3)


def test_chunks_together_are_what_they_are_alone(tmp_path: Path) -> None:
    for name, model in models(tmp_path).items():
        if name == "bert":
            continue
        ids = np.random.default_rng(1).integers(3, model.config.n_vocab, 16 * 7 + 3).tolist()
        want = list(score_chunks(context(model), ids, 16, bos=1))
        for n_seq in (2, 4, 7):
            many = Context(model, 16 * n_seq, n_seq_max=n_seq, n_ubatch=64, devices=["reference"])
            got = list(score_chunks(many, ids, 16, bos=1))
            assert [e.n_chunks for e in got] == list(range(1, 8))
            np.testing.assert_allclose(
                [(e.value, e.error, e.n_scored) for e in got],
                [(e.value, e.error, e.n_scored) for e in want],
                rtol=1e-5, err_msg=f"{name} {n_seq}",
            )  # fmt: skip
            assert many.cache.n_used == 0


def test_how_many_chunks_go_together(tmp_path: Path) -> None:
    by_name = models(tmp_path)
    plain, recurrent = by_name["tiny"].config, by_name["mamba2"].config
    assert chunks_at_once(plain, 512, 512, 100) == 1
    assert chunks_at_once(plain, 128, 512, 100) == 4
    assert chunks_at_once(plain, 128, 512, 3) == 3
    assert chunks_at_once(plain, 2048, 512, 100) == 1
    assert chunks_at_once(plain, 128, 512, 0) == 1
    assert chunks_at_once(plain, 4, 512, 1000) == 32
    assert chunks_at_once(recurrent, 4, 512, 1000) == 4  # each has states of its own
